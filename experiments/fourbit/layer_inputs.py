"""The inputs of linear layers while a network runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def hooked(
    layers: dict[str, nn.Linear], seen: Callable[[str, Tensor], Tensor | None]
) -> Iterator[None]:
    """Inside, `seen` gets the input of each layer, and may return another."""
    handles = [
        part.register_forward_pre_hook(lambda _, given, name=name: seen(name, given[0]))
        for name, part in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
