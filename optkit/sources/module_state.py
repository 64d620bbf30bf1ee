"""What a module's forward leaves behind in it.

A forward may keep values for the next call, for example the anchors of a detector and the shape for
which they hold. torch.export follows the code for all sizes, so such a value of one size makes the
axis static, and the code that computes the value is missing in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """After the body, every part has the tensors, shapes and buffers that it had before: what was
    added is removed, and what was replaced is back.

    Other attributes stay, because they may say what else the body did, such as the flag that hooks
    are installed. So does a part that the body initialized (`nn.LazyLinear`), and what changed
    inside of a list or a dictionary.
    """
    before = [
        (part, type(part), dict(vars(part)), dict(part._buffers)) for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, kind, attributes, buffers in before:
            if type(part) is kind:
                _restore(vars(part), attributes)
                _restore(part._buffers, buffers)


def _restore(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() | before.keys():
        old, new = before.get(name), now.get(name)
        if old is new or not (_is_data(old) or _is_data(new)):
            continue
        if name in before:
            now[name] = old
        else:
            del now[name]


def _is_data(value: object) -> bool:
    """Whether it is a tensor, a shape, or several of them."""
    import torch

    if isinstance(value, tuple | list):
        return bool(value) and all(type(part) is int or _is_data(part) for part in value)
    return isinstance(value, torch.Tensor)
