"""The output sizes of pools with `ceil_mode`, without a question about the size.

torch rounds the number of windows up, and drops the last one if it would begin behind the input. It
asks this of each size, so that torch.export refuses an axis with sizes of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAME = "pooling_output_shape_pad_lr"


@contextmanager
def unasked() -> Iterator[None]:
    """During the body, torch computes the sizes of pools in this way while it traces."""
    from torch import _meta_registrations as torchs

    before = getattr(torchs, _NAME)
    setattr(torchs, _NAME, windows)
    try:
        yield
    finally:
        setattr(torchs, _NAME, before)


def windows(
    size: Any, kernel: int, left: int, right: int, stride: int, dilation: int, ceil: bool
) -> Any:
    """The number of windows along an axis of `size` (an int, or a SymInt of torch) with `left` and
    `right` places of padding.

    Window i begins at i·stride - left. With `ceil` the last one has a place of the padded input and
    begins in the input or before it. These two bounds of i·stride differ by a number that does not
    depend on the size.
    """
    span = dilation * (kernel - 1) + 1
    if not ceil:
        return (size + left + right - span) // stride + 1
    return (size + left - 1 + min(right + stride - span, 0)) // stride + 1
