"""`tensor.chunk(1)` without a question about the size.

TabNet cuts its batch into pieces of 128. For a batch that is one piece, torch asks whether
ceil(n / n) is 1 for each size n, and its solver finds only the traced size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def unasked() -> Iterator[None]:
    """During the body, one chunk of a tensor is the tensor."""
    import torch

    places: list[Any] = [torch, torch.Tensor]
    before = [place.chunk for place in places]
    for place, chunk in zip(places, before, strict=True):
        place.chunk = _whole(chunk)
    try:
        yield
    finally:
        for place, chunk in zip(places, before, strict=True):
            place.chunk = chunk


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)  # torch asks its functions for their names
    def chunk(input: Tensor, chunks: int, dim: int = 0) -> Any:
        return (input,) if chunks == 1 else original(input, chunks, dim)

    return chunk
