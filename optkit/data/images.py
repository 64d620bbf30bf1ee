"""Images of a folder as a model's input, through its own processor or a transform told in args.

Class subfolders, or all in one folder. Pictures are decoded by Pillow, turned as their EXIF data
says, and given to the processor in its Pillow form, so that torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optkit.data import folders, reading, reads
from optkit.data.reading import PICTURES, Inputs
from optkit.errors import InputRefused
from optkit.tensors import Feed, TensorInfo

_CONFIGS = ("preprocessor_config.json", "processor_config.json")
_PIXELS = "pixel_values"

Numbers = float | list[float]
Transform = Callable[[Sequence[Any]], np.ndarray]
"""Pictures to one float array [batch, channels, height, width]."""


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
    """Feeds of pictures from a folder, ordered so that any first few are spread over the classes.

    The model's processor (or the one in folder `processor`) prepares them. Without one, or where
    `mean` is given: values in [0, 1], less `mean`, over `std` (a number, or one per channel), at
    `size` (height and width; default: the model's own fixed size), of which the middle is cut out
    after the shorter side was brought to `resize`, if that is given.

    Raises InputRefused naming the picture that cannot be decoded.
    """
    found = [picture for picture, _ in pictures(path)]
    name, info = _pixels(inputs)
    transform = _transform(size, resize, mean, std, processor, model, info)
    for group in reading.grouped(found, inputs):
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
    """Pictures with the class of their subfolder, int64 [batch]: its place in `classes`, by default
    the model's, or the sorted names of the subfolders. Arguments as for `samples`."""
    found = pictures(path)
    names = folders.classes(path, found, classes, model, "pictures")
    taken, info = _pixels(inputs)
    transform = _transform(size, resize, mean, std, processor, model, info)
    for group in reading.grouped(found, inputs):
        labels = np.asarray([names.index(name) for _, name in group], np.int64)
        yield {taken: _prepared([picture for picture, _ in group], transform, info)}, labels


def pictures(folder: Path) -> folders.Found:
    """Each picture and the subfolder it is in. Raises InputRefused for a folder without any."""
    return folders.spread(folder, "images", PICTURES, "pictures")


@dataclass(frozen=True)
class _Told:
    """The transform that the args tell."""

    size: tuple[int, int]  # height, width
    resize: int | None
    mean: np.ndarray  # [channels, 1, 1] or [1]
    std: np.ndarray

    def __call__(self, given: Sequence[Any]) -> np.ndarray:
        values = np.stack([self._one(picture) for picture in given])  # [batch, H, W, channels]
        scaled = values.transpose(0, 3, 1, 2).astype(np.float32) / 255
        normal: np.ndarray = (scaled - self.mean) / self.std
        return normal

    def _one(self, picture: Any) -> np.ndarray:
        height, width = self.size
        if self.resize is None:
            picture = picture.resize((width, height), _bilinear())
        else:
            scale = self.resize / min(picture.size)
            sides = [max(self.resize, round(side * scale)) for side in picture.size]
            left, top = (sides[0] - width) // 2, (sides[1] - height) // 2
            picture = picture.resize(tuple(sides), _bilinear())
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
    """Raises InputRefused when neither args nor a processor tell how to prepare pictures."""
    if mean is None:
        folder = processor or (Path(model) if model else None)
        if folder is not None and any((folder / name).is_file() for name in _CONFIGS):
            return _processor(folder)
        if processor is not None:
            raise InputRefused(f"no {_CONFIGS[0]}", where=str(processor), hint="name its folder")
        raise InputRefused(
            "the model has no image processor",
            where=model,
            hint="args.processor: the folder of one, or args.mean and args.std (and args.size)",
        )
    own = info.shape[2:] if info is not None and len(info.shape) == 4 else ()
    sides = [size] if isinstance(size, int) else list(size or ())
    sides = sides or [side for side in own if isinstance(side, int)]
    if len(sides) not in (1, 2) or std is None:
        missing = "std" if std is None else "size"
        raise InputRefused(
            f"args.mean is given, args.{missing} is not",
            hint="e.g. {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], size: 224}",
        )
    return _Told((sides[0], sides[-1]), resize, _channels(mean), _channels(std))


def _processor(folder: Path) -> Transform:
    """The model's own, in its Pillow form."""
    reads.note_names(folder)  # another file would be read if it came
    auto = reading.optional("transformers", "hf").AutoImageProcessor
    try:
        found = auto.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:  # whatever its many classes raise
        told = f"the image processor cannot be read: {error}"
        raise InputRefused(told, where=str(folder), hint="give args.mean and args.std") from error

    def transform(given: Sequence[Any]) -> np.ndarray:
        made: np.ndarray = found(images=list(given), return_tensors="np")[_PIXELS]
        return made

    return transform


def _prepared(paths: Sequence[Path], transform: Transform, info: TensorInfo | None) -> np.ndarray:
    """One batch in the model's dtype."""
    mode = "L" if info is not None and len(info.shape) == 4 and info.shape[1] == 1 else "RGB"
    pixels = transform([_decoded(path, mode) for path in paths])
    return pixels.astype(info.dtype if info is not None else np.float32, copy=False)


def _decoded(path: Path, mode: str) -> Any:
    """Raises InputRefused naming the file."""
    image, turn = reading.optional("PIL.Image", "data"), reading.optional("PIL.ImageOps", "data")
    try:
        with path.open("rb") as file, image.open(file) as picture:
            return _of_8_bits(turn.exif_transpose(picture), picture.format).convert(mode)
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        told = f"not a picture that can be decoded: {error}"
        raise InputRefused(told, where=str(path), hint="repair or remove it") from error


def _of_8_bits(picture: Any, form: str | None) -> Any:
    """Of 16 bits per pixel the upper 8, as Pillow itself takes them of colours; its `convert` cuts
    gray off at 255. Raises ValueError for numbers that have no known white."""
    if picture.mode == "F" or (picture.mode == "I" and form != "PPM"):
        raise ValueError("its pixels are numbers of 32 bits")
    if picture.mode[0] != "I":
        return picture
    upper = (np.asarray(picture) >> 8).astype(np.uint8)
    return reading.optional("PIL.Image", "data").fromarray(upper)


def _pixels(inputs: Inputs | None) -> tuple[str, TensorInfo | None]:
    """The input that takes the pictures: pixel_values, else the only one of four axes."""
    if inputs is None:
        return _PIXELS, None
    fitting = [name for name, info in inputs.items() if len(info.shape) == 4]
    name = _PIXELS if _PIXELS in inputs else fitting[0] if len(fitting) == 1 else None
    if name is None:
        raise InputRefused(
            f"the model has {len(fitting)} inputs that could take pictures, and no {_PIXELS!r}",
            hint=f"its inputs are {', '.join(inputs)}; write a source that knows them",
        )
    return name, inputs[name]


def _channels(values: Numbers) -> np.ndarray:
    """[channels, 1, 1] in float32, one number for all being one channel."""
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def _bilinear() -> Any:
    return reading.optional("PIL.Image", "data").Resampling.BILINEAR
