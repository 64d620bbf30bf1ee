"""Pictures with masks of classes, for the evaluation of segmentation.

A mask is a picture of the same name in another folder; the value of each pixel (the index, where
the picture has a palette) is its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.ground.data import images, reading
from optkit.ground.data.checking import Item
from optkit.ground.data.frames import Frame
from optkit.ground.data.preprocessing import Numbers, Size
from optkit.ground.data.reading import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

_IMAGES, _MASKS = "images", ("masks", "labels", "annotations")
_MASK_MODES = ("P", "L", "1", "I;16", "I")
_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif")
IGNORED = 255
"""The class of pixels that do not count, also of those around a letterboxed picture."""


def samples(
    path: Path,
    masks: Path | None = None,
    preprocessing: str | None = None,
    size: Size = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """Batches of (feed, masks int32 [batch, height, width]) at the size of the model's input.

    path: a folder with `images` and `masks` (or `labels`, `annotations`), or the folder of the
    pictures, with `masks`: that of the masks. The other arguments are those of `images.samples`; a
    preprocessing that cuts the middle out resizes the whole picture here. Masks are resized to the
    nearest pixel; around a letterboxed picture they are 255.

    Raises InputRefused for a picture without a mask, a mask of another size or with colours.
    """
    pictures, beside = _folders(path, masks)
    name, info = images.pixel_input(inputs)
    files = [picture for picture, _ in images.pictures(pictures)]
    pairs = [(file, _mask_of(file, pictures, beside)) for file in files]
    prepare = images.framed(preprocessing, size, mean, std, processor, model, info)
    dtype = info.dtype if info is not None else "float32"
    for group in reading.grouped(pairs, inputs):
        rows = [_prepared(file, mask, prepare, images.mode_of(info)) for file, mask in group]
        # pictures of different sizes never meet in one batch
        for _, alike in groupby(rows, key=lambda row: row[0].shape):
            pixels, labels = zip(*alike, strict=True)
            yield {name: np.stack(pixels).astype(dtype, copy=False)}, np.stack(labels)


def _folders(path: Path, masks: Path | None) -> tuple[Path, Path]:
    """The folders of the pictures and of the masks. Raises InputRefused."""
    if masks is not None:
        return path, reading.existing(masks, "images")
    beside = next((path / name for name in _MASKS if (path / name).is_dir()), None)
    if beside is None or not (path / _IMAGES).is_dir():
        raise InputRefused(
            f"the folder has no {_IMAGES}/ and {'/, '.join(_MASKS)}/",
            where=str(path),
            hint="args.masks: the folder of the masks, if path is that of the pictures",
        )
    return path / _IMAGES, beside


def _mask_of(picture: Path, pictures: Path, masks: Path) -> Path:
    """The mask of a picture: a file of the same name without its suffix."""
    place = masks / picture.relative_to(pictures)
    found = [file for suffix in _SUFFIXES if (file := place.with_suffix(suffix)).is_file()]
    if not found:
        raise InputRefused(
            "the picture has no mask",
            where=str(picture),
            hint=f"expected {place.with_suffix(_SUFFIXES[0])}",
        )
    return found[0]


def _prepared(
    file: Path, mask: Path, prepare: Callable[[Image], tuple[np.ndarray, Frame]], mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of a picture, and its mask at the same size, int32 [height, width]."""
    picture = images.decoded(file, mode)
    pixels, frame = prepare(picture)
    classes = _classes(mask)
    if classes.size != picture.size:
        raise InputRefused(
            f"the mask has {classes.width}×{classes.height} pixels, the picture "
            f"{picture.width}×{picture.height}",
            where=str(mask),
        )
    return pixels, _framed(classes, frame)


def _classes(mask: Path) -> Image:
    """A decoded mask. Raises InputRefused if it cannot be decoded, or has colours."""
    image = reading.optional("PIL.Image", "data")
    try:
        with mask.open("rb") as file, image.open(file) as picture:
            picture.load()
    except Exception as error:  # for a damaged file Pillow raises nearly any exception
        reason = f"not a mask that can be decoded: {error}"
        raise InputRefused(reason, where=str(mask), hint="fix or remove it") from error
    if picture.mode not in _MASK_MODES:
        raise InputRefused(
            f"the mask has colours ({picture.mode}), and not a class per pixel",
            where=str(mask),
            hint="save masks as gray or palette pictures whose values are the classes",
        )
    whole: Image = image.fromarray(np.asarray(picture).astype(np.int32))
    return whole


def _framed(mask: Image, frame: Frame) -> np.ndarray:
    """A mask where its picture lies in the input; pixels around it do not count."""
    nearest = reading.optional("PIL.Image", "data").Resampling.NEAREST
    inner = (round(frame.width * frame.across), round(frame.height * frame.down))
    resized = np.asarray(mask.resize(inner, nearest))
    whole = np.full((int(frame.input_height), int(frame.input_width)), IGNORED, np.int32)
    left, top = int(frame.left), int(frame.top)
    whole[top : top + inner[1], left : left + inner[0]] = resized
    return whole
