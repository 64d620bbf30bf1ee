"""Images of a folder as a model's input, prepared by its processor or by a transform from args.

Images are in class subfolders, or all in one folder. Pillow decodes them, they are rotated by their
EXIF data, and the Pillow version of the processor prepares them, so torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.data import folders, pretrained, reading
from optkit.data.reading import PICTURES, Inputs
from optkit.errors import InputRefused
from optkit.tensors import Feed, TensorInfo

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

_PIXELS = "pixel_values"

Numbers = float | list[float]
Transform = Callable[["Sequence[Image]"], np.ndarray]
"""Converts pictures to one float array [batch, channels, height, width]."""


def samples(
    path: Path,
    size: int | list[int] | None = None,
    resize: int | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Feed]:
    """Feeds of pictures from a folder. They are ordered so that the first few come from different
    classes.

    The processor of the model (or the one in folder `processor`) prepares them. Without one, or if
    `mean` is given: values in [0, 1] minus `mean`, divided by `std` (a number, or one per channel),
    at `size` (height and width; default: the model's fixed size), cropped from the middle after the
    shorter side was resized to `resize`, if that is given.

    Raises InputRefused with the name of a picture that cannot be decoded.
    """
    paths = [picture for picture, _ in pictures(path)]
    name, info = _pixels(inputs)
    transform = _transform(size, resize, mean, std, processor, model, info)
    for group in reading.grouped(paths, inputs):
        yield {name: _prepared(group, transform, info)}


def labelled(
    path: Path,
    *,
    classes: list[str] | None,
    size: int | list[int] | None,
    resize: int | None,
    mean: Numbers | None,
    std: Numbers | None,
    processor: Path | None,
    model: str | None,
    inputs: Inputs | None,
) -> Iterator[tuple[Feed, np.ndarray]]:
    """Pictures with the class of their subfolder, int64 [batch]: its index in `classes`, by default
    those of the model, or the sorted names of the subfolders. Arguments as for `samples`."""
    files = pictures(path)
    names = folders.classes(path, files, classes, model, "pictures")
    pixels, info = _pixels(inputs)
    transform = _transform(size, resize, mean, std, processor, model, info)
    for group in reading.grouped(files, inputs):
        labels = np.asarray([names.index(name) for _, name in group], np.int64)
        yield {pixels: _prepared([picture for picture, _ in group], transform, info)}, labels


def pictures(folder: Path) -> folders.ClassFiles:
    """Each picture and its subfolder. Raises InputRefused for a folder without pictures."""
    return folders.spread(folder, "images", PICTURES, "pictures")


@dataclass(frozen=True)
class _Normalization:
    """Values in [0, 1] minus the mean, divided by the standard deviation, from the args."""

    size: tuple[int, int]  # height, width
    resize: int | None
    mean: np.ndarray  # [channels, 1, 1] or [1]
    std: np.ndarray

    def __call__(self, pictures: Sequence[Image]) -> np.ndarray:
        values = np.stack(list(map(self._resized, pictures)))  # [batch, H, W, channels]
        scaled = values.transpose(0, 3, 1, 2).astype(np.float32) / 255
        normal: np.ndarray = (scaled - self.mean) / self.std
        return normal

    def _resized(self, picture: Image) -> np.ndarray:
        height, width = self.size
        if self.resize is None:
            picture = picture.resize((width, height), _bilinear())
        else:
            scale = self.resize / min(picture.size)
            sides = [max(self.resize, round(side * scale)) for side in picture.size]
            left, top = (sides[0] - width) // 2, (sides[1] - height) // 2
            picture = picture.resize((sides[0], sides[1]), _bilinear())
            picture = picture.crop((left, top, left + width, top + height))
        array = np.asarray(picture)
        return array[..., None] if array.ndim == 2 else array


def _transform(
    size: int | list[int] | None,
    resize: int | None,
    mean: Numbers | None,
    std: Numbers | None,
    processor: Path | None,
    model: str | None,
    info: TensorInfo | None,
) -> Transform:
    """The transform from the args or the processor. Raises InputRefused if there is neither."""
    if mean is None:
        return _processor(processor, model)
    sides = [size] if isinstance(size, int) else list(size or _fixed_sides(info))
    if len(sides) not in (1, 2) or std is None:
        missing = "std" if std is None else "size"
        raise InputRefused(
            f"args.mean is given, args.{missing} is not",
            hint="e.g. {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], size: 224}",
        )
    return _Normalization((sides[0], sides[-1]), resize, _channels(mean), _channels(std))


def _fixed_sides(info: TensorInfo | None) -> list[int]:
    """Height and width of the model's input, if they are fixed."""
    sides = info.shape[2:] if info is not None and len(info.shape) == 4 else ()
    return [side for side in sides if isinstance(side, int)]


def _processor(named: Path | None, model: str | None) -> Transform:
    """The processor in folder `named`, otherwise the model's own, in its Pillow version."""
    folder = named or (Path(model) if model else None)
    if folder is None or not pretrained.holds_processor(folder):
        raise InputRefused(
            f"no {pretrained.PROCESSORS[0]}" if named else "the model has no image processor",
            where=str(named) if named else model,
            hint="name the folder that holds it in args.processor"
            if named
            else "give args: {mean: [...], std: [...], size: ...}, as in the training, or "
            "args: {processor: FOLDER} with a preprocessor_config.json",
        )
    load = pretrained.loader("AutoImageProcessor", folder)
    try:
        processor = load(backend="pil")
    except Exception as error:
        reason = f"the image processor cannot be read: {error}"
        raise InputRefused(reason, where=str(folder), hint="give args.mean and args.std") from error

    def transform(pictures: Sequence[Image]) -> np.ndarray:
        pixels: np.ndarray = processor(images=list(pictures), return_tensors="np")[_PIXELS]
        return pixels

    return transform


def _prepared(paths: Sequence[Path], transform: Transform, info: TensorInfo | None) -> np.ndarray:
    """One batch in the dtype of the model."""
    mode = "L" if info is not None and len(info.shape) == 4 and info.shape[1] == 1 else "RGB"
    pixels = transform([_decoded(path, mode) for path in paths])
    return pixels.astype(info.dtype if info is not None else np.float32, copy=False)


def _decoded(path: Path, mode: str) -> Image:
    """A decoded picture. Raises InputRefused with the name of the file."""
    image, turn = reading.optional("PIL.Image", "data"), reading.optional("PIL.ImageOps", "data")
    try:
        with path.open("rb") as file, image.open(file) as picture:
            return _of_8_bits(turn.exif_transpose(picture), picture.format).convert(mode)
    except Exception as error:  # for a damaged file Pillow raises nearly any exception
        reason = f"not a picture that can be decoded: {str(error).partition(' <')[0]}"
        hint = "copy the file again, or remove it"
        raise InputRefused(reason, where=str(path), hint=hint) from error


def _of_8_bits(picture: Image, form: str | None) -> Image:
    """For 16 bits per pixel the upper 8 bits, as Pillow itself uses them for colours; its `convert`
    cuts gray off at 255. Raises ValueError for numbers without a known value of white."""
    if picture.mode == "F" or (picture.mode == "I" and form != "PPM"):
        raise ValueError("its pixels are 32-bit numbers")
    if picture.mode[0] != "I":
        return picture
    upper = (np.asarray(picture) >> 8).astype(np.uint8)
    gray: Image = reading.optional("PIL.Image", "data").fromarray(upper)
    return gray


def _pixels(inputs: Inputs | None) -> tuple[str, TensorInfo | None]:
    """The input for pictures: pixel_values, otherwise the only one with four axes."""
    if inputs is None:
        return _PIXELS, None
    fitting = [name for name, info in inputs.items() if len(info.shape) == 4]
    name = _PIXELS if _PIXELS in inputs else fitting[0] if len(fitting) == 1 else None
    if name is None:
        raise InputRefused(
            f"the model has {len(fitting)} inputs that could take pictures, and no {_PIXELS!r}",
            hint=f"its inputs are {', '.join(inputs)}; write your own source for them",
        )
    return name, inputs[name]


def _channels(values: Numbers) -> np.ndarray:
    """[channels, 1, 1] in float32; one number for all is one channel."""
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def _bilinear() -> Resampling:
    bilinear: Resampling = reading.optional("PIL.Image", "data").Resampling.BILINEAR
    return bilinear
