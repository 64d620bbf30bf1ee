"""torch's one_hot as a comparison.

With a number of classes that depends on an axis, torch.export takes the number of the example for a
constant. `classes == index` is the same for every number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def compared() -> Iterator[None]:
    """During the body, `torch.nn.functional.one_hot` compares where the number of its classes is
    given: int64 [...] → int64 [..., classes]."""
    import torch
    from torch.nn import functional

    original = functional.one_hot

    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        if isinstance(num_classes, int) and num_classes < 0:
            return original(tensor, num_classes)
        classes = torch.arange(num_classes, device=tensor.device)
        return (tensor.unsqueeze(-1) == classes).to(torch.int64)

    functional.one_hot = one_hot
    try:
        yield
    finally:
        functional.one_hot = original
