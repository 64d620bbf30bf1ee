"""The heads of Ultralytics' models as its export sets them, and the pictures that they take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_MODES = ("export", "dynamic")
"""export: return the predictions alone, without the maps that the loss needs; dynamic: compute the
anchors in each call, also if those of an earlier call are there."""

_PREPROCESSINGS = {"Detect": "letterbox", "RTDETRDecoder": "unit"}
"""Head → a name in `optkit.data.preprocessing`: what Ultralytics' predictors do."""


def image_processor(module: nn.Module) -> dict[str, object] | None:
    """What prepares the pictures for a detector of Ultralytics (also with masks, keypoints or
    angles). None for any other model."""
    kinds = {kind for part in module.modules() for kind in _kinds(part)}
    name = next((name for head, name in _PREPROCESSINGS.items() if head in kinds), None)
    if name is None:
        return None
    return {"preprocessing": name, "do_rescale": True, "rescale_factor": 1 / 255}


@contextmanager
def exported(module: nn.Module) -> Iterator[None]:
    """During the body, the heads of a model of Ultralytics (detect, segment, pose, obb, classify,
    RT-DETR) are in the mode of their export. Other modules do not change."""
    before = [
        (part, name, vars(part).get(name))
        for part in module.modules()
        if _kinds(part)
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


def _kinds(part: nn.Module) -> list[str]:
    """The names of its classes that are Ultralytics'."""
    return [
        kind.__name__ for kind in type(part).__mro__ if kind.__module__.startswith("ultralytics.")
    ]
