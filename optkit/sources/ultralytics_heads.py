"""The heads of Ultralytics' models, as Ultralytics' own export sets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_MODES = ("export", "dynamic")
"""export: return the predictions alone, without the maps that the loss needs; dynamic: compute the
anchors in each call, also if those of an earlier call are there."""


@contextmanager
def exported(module: nn.Module) -> Iterator[None]:
    """During the body, the heads of a model of Ultralytics (detect, segment, pose, obb, classify,
    RT-DETR) are in the mode of their export. Other modules do not change."""
    before = [
        (part, name, vars(part).get(name))
        for part in module.modules()
        if any(kind.__module__.startswith("ultralytics.") for kind in type(part).__mro__)
        for name in _MODES
        if isinstance(getattr(part, name, None), bool)
    ]
    try:
        for part, name, _ in before:
            setattr(part, name, True)
        yield
    finally:
        for part, name, own in before:
            if own is None:
                del vars(part)[name]
            else:
                setattr(part, name, own)
