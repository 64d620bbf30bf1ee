"""Pictures as a model's input, by a named preprocessing or by mean and standard deviation.

A preprocessing fits a picture into the size of the input in one of three ways:

    stretch     both sides are resized, each by its own factor
    crop        the shorter side is resized, then the middle is cut out
    letterbox   the picture is resized by one factor, so that all of it fits, and the rest is
                filled: what detectors of the YOLO family are trained with

and normalizes the values: (value / 255 - mean) / std.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from optkit.facts.errors import InputRefused, unknown_name
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import reading
from optkit.ground.data.frames import Frame

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

Numbers = float | list[float]
Fit = Literal["stretch", "crop", "letterbox"]
Size = int | list[int] | None


@dataclass(frozen=True)
class NamedPreprocessing:
    """A preprocessing by name. `resize`: the shorter side before the middle is cut out, as a
    multiple of the size of the input."""

    fit: Fit
    mean: Numbers
    std: Numbers
    resize: float = 1.0


NAMED: Mapping[str, NamedPreprocessing] = MappingProxyType(
    {
        "imagenet": NamedPreprocessing(
            "crop", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], resize=256 / 224
        ),
        "clip": NamedPreprocessing(
            "crop", [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
        ),
        "half": NamedPreprocessing("stretch", 0.5, 0.5),
        "unit": NamedPreprocessing("stretch", 0.0, 1.0),
        "bytes": NamedPreprocessing("stretch", 0.0, 1 / 255),
        "letterbox": NamedPreprocessing("letterbox", 0.0, 1.0),
    }
)
"""imagenet: torchvision's evaluation; clip: OpenAI's CLIP; half: values in [-1, 1]; unit: values in
[0, 1]; bytes: values from 0 to 255; letterbox: that of YOLO models, values in [0, 1]."""

_FILL = 114  # the gray of Ultralytics' letterbox; other values change the scores of its models


@dataclass(frozen=True)
class Preprocessing:
    """Fits decoded pictures into an input of `size` (height, width) and normalizes them.

    `resize`: the length of the shorter side in pixels before the middle is cut out (fit "crop").
    """

    size: tuple[int, int]
    fit: Fit
    resize: int
    mean: np.ndarray  # [channels, 1, 1]; one channel: for all
    std: np.ndarray

    @classmethod
    def of(
        cls,
        *,
        name: str | None,
        size: Size,
        resize: int | None,
        mean: Numbers | None,
        std: Numbers | None,
        info: TensorInfo | None,
    ) -> Self:
        """From the args of a reader: a name, or `mean` and `std`, which also replace those of the
        name. `info`: the model's input, whose fixed sides are the default of `size`.

        Raises UnknownName, InputRefused (mean without std, or no size).
        """
        named = _named(name, resize, mean, std)
        sides = [size] if isinstance(size, int) else list(size or _fixed_sides(info))
        if len(sides) not in (1, 2):
            given = f"args.preprocessing {name} is given" if name else "args.mean is given"
            raise _incomplete(given, "size")
        whole = (sides[0], sides[-1])
        shorter = resize or round(min(whole) * named.resize)
        return cls(whole, named.fit, shorter, _channels(named.mean), _channels(named.std))

    def stretched(self) -> Self:
        """The same with all of the picture in the input. A crop would cut off what is annotated."""
        return replace(self, fit="stretch") if self.fit == "crop" else self

    def __call__(self, pictures: Sequence[Image]) -> np.ndarray:
        """Float32 [batch, channels, height, width]."""
        return np.stack([self.prepared(picture)[0] for picture in pictures])

    def prepared(self, picture: Image) -> tuple[np.ndarray, Frame]:
        """One picture [channels, height, width], and where it lies in the input."""
        fitted, frame = self.fitted(picture, _bilinear(), _FILL)
        pixels = np.asarray(fitted)
        values = np.atleast_3d(pixels).transpose(2, 0, 1).astype(np.float32) / 255
        normal: np.ndarray = (values - self.mean) / self.std
        return normal, frame

    def fitted(self, picture: Image, resampling: Resampling, fill: int) -> tuple[Image, Frame]:
        """The picture at the size of the input, before it is normalized. `fill`: the value of the
        pixels around it (fit "letterbox")."""
        height, width = self.size
        inner = self._inner(picture)
        # of an odd rest the smaller half comes first, as in Ultralytics' letterbox
        left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
        resized = picture.resize(inner, resampling)
        frame = Frame.of(picture.size, inner, (left, top), (width, height))
        if inner == (width, height):
            return resized, frame
        if self.fit == "crop":
            return resized.crop((-left, -top, width - left, height - top)), frame
        colour = fill if len(resized.getbands()) == 1 else (fill,) * 3
        image = reading.optional("PIL.Image", "data")
        canvas: Image = image.new(resized.mode, (width, height), colour)
        canvas.paste(resized, (left, top))
        return canvas, frame

    def _inner(self, picture: Image) -> tuple[int, int]:
        """Width and height of the resized picture, before it is cut or filled."""
        height, width = self.size
        if self.fit == "stretch":
            return width, height
        if self.fit == "letterbox":
            factor = min(height / picture.height, width / picture.width)
            least = 1
        else:
            factor, least = self.resize / min(picture.size), self.resize
        return max(least, round(picture.width * factor)), max(least, round(picture.height * factor))


def _named(
    name: str | None, resize: int | None, mean: Numbers | None, std: Numbers | None
) -> NamedPreprocessing:
    """The preprocessing of this name, with these numbers. Raises as `Preprocessing.of` does."""
    if name is not None and name not in NAMED:
        raise unknown_name("preprocessing", name, tuple(NAMED))
    if name is None and (mean is None or std is None):
        given, missing = ("std", "mean") if mean is None else ("mean", "std")
        raise _incomplete(f"args.{given} is given", missing)
    named = (
        NAMED[name]
        if name
        else NamedPreprocessing("stretch" if resize is None else "crop", 0.0, 1.0)
    )
    return replace(
        named, mean=named.mean if mean is None else mean, std=named.std if std is None else std
    )


def _incomplete(given: str, missing: str) -> InputRefused:
    return InputRefused(
        f"{given}, args.{missing} is not",
        hint="e.g. {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], size: 224}, or "
        f"{{preprocessing: imagenet, size: 224}}; preprocessings: {', '.join(NAMED)}",
    )


def _fixed_sides(info: TensorInfo | None) -> list[int]:
    """Height and width of the model's input, if they are fixed."""
    sides = info.shape[2:] if info is not None and len(info.shape) == 4 else ()
    return [side for side in sides if isinstance(side, int)]


def _channels(values: Numbers) -> np.ndarray:
    """[channels, 1, 1] in float32; one number for all is one channel."""
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def _bilinear() -> Resampling:
    bilinear: Resampling = reading.optional("PIL.Image", "data").Resampling.BILINEAR
    return bilinear
