"""Small pictures as data URIs, from the inputs of a model and from masks. Each one has a bounded
number of bytes, so that a page that contains a few of them stays small."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

from optkit.facts.tensors import Feed
from optkit.ground.data import reading

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 480
"""The longest side in pixels."""
MOST_BYTES = 40_000
"""Of one picture, before base64."""
_QUALITIES = (85, 70, 50, 30)


def pixels_of(feed: Feed, row: int) -> np.ndarray | None:
    """The picture that a feed has of one sample: float [height, width] or [height, width, 3] from 0
    to 1. None if no input has the axes of a picture.

    The normalization of a model is not known here. So the smallest value of the picture is black
    and the largest is white.
    """
    for array in feed.values():
        if array.ndim == 4 and (array.shape[1] in (1, 3) or array.shape[3] in (1, 3)):
            one = np.asarray(array[row], np.float64)
            one = np.moveaxis(one, 0, -1) if array.shape[1] in (1, 3) else one
            low, high = float(one.min()), float(one.max())
            whole: np.ndarray = (one - low) / (high - low if high > low else 1.0)
            return whole[..., 0] if whole.shape[-1] == 1 else whole
    return None


def fitting(width: int, height: int) -> float:
    """By how much a picture of this size is made smaller; at most 1."""
    return min(1.0, SIDE / max(width, height))


def jpeg(pixels: np.ndarray) -> str:
    """A picture from 0 to 1, [height, width] or [height, width, 3], as a JPEG. Raises
    ToolchainMissing without Pillow."""
    image = reading.optional("PIL.Image", "data")
    return _bounded(image.fromarray(np.round(pixels * 255).astype(np.uint8)), "jpeg", _QUALITIES)


def png(codes: np.ndarray, palette: tuple[tuple[int, int, int], ...]) -> str:
    """Codes of pixels [height, width] as a PNG: 0 is transparent, the others have the colours of
    the palette from 1 on. Raises ToolchainMissing without Pillow."""
    image = reading.optional("PIL.Image", "data")
    picture = image.fromarray(codes.astype(np.uint8), "P")
    picture.putpalette([0, 0, 0, *(part for colour in palette for part in colour)])
    return _bounded(picture, "png", (0,))


def _bounded(picture: Image, form: str, qualities: tuple[int, ...]) -> str:
    """The picture as a data URI, with the best quality, then the largest size that is small
    enough."""
    image = reading.optional("PIL.Image", "data")
    smooth = image.Resampling.BOX if form == "jpeg" else image.Resampling.NEAREST
    scale = fitting(*picture.size)
    while True:
        size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
        smaller = picture.resize(size, smooth)
        for quality in qualities:
            buffer = io.BytesIO()
            if form == "png":
                smaller.save(buffer, form, transparency=0, optimize=True)
            else:
                smaller.save(buffer, form, quality=quality)
            if buffer.tell() <= MOST_BYTES:
                text = base64.b64encode(buffer.getvalue()).decode()
                return f"data:image/{form};base64,{text}"
        scale *= 0.75
