"""Images of a folder as a model's input, prepared by its processor or by a transform from args.

Images are in class subfolders, or all in one folder. Pillow decodes them, they are rotated by their
EXIF data, and the Pillow version of the processor prepares them, so torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.data import folders, pretrained, reading
from optkit.ground.data.checking import Item, item
from optkit.ground.data.frames import Frame
from optkit.ground.data.preprocessing import Numbers, Preprocessing, Size
from optkit.ground.data.reading import PICTURES, Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

_PIXELS = "pixel_values"

Transform = Callable[["Sequence[Image]"], np.ndarray]
"""Converts pictures to one float array [batch, channels, height, width]."""


def samples(
    path: Path,
    preprocessing: str | None = None,
    size: Size = None,
    resize: int | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Feed]:
    """Feeds of pictures from a folder. They are ordered so that the first few come from different
    classes.

    The processor of the model (or the one in folder `processor`) prepares them. `preprocessing`
    names another one (`preprocessing.NAMED`). Or give `mean`: values in [0, 1] minus `mean`,
    divided by `std` (a number, or one per channel), at `size` (height and width; default: the
    model's fixed size), cropped from the middle after the shorter side was resized to `resize`, if
    that is given.

    Raises InputRefused with the name of a picture that cannot be decoded, UnknownName.
    """
    paths = [picture for picture, _ in pictures(path)]
    name, info = pixel_input(inputs)
    transform = transform_of(preprocessing, size, resize, mean, std, processor, model, info)
    for group in reading.grouped(paths, inputs):
        yield {name: _prepared(group, transform, info)}


def labelled(
    path: Path,
    *,
    classes: list[str] | None,
    preprocessing: str | None,
    size: Size,
    resize: int | None,
    mean: Numbers | None,
    std: Numbers | None,
    processor: Path | None,
    model: str | None,
    inputs: Inputs | None,
) -> Iterator[Item]:
    """Pictures with the class of their subfolder, int64 [batch]: its index in `classes`, by default
    those of the model, or the sorted names of the subfolders. Pictures of one folder within a class
    folder are a group (`folders.groups`). Arguments as for `samples`."""
    files = pictures(path)
    group_of = folders.groups(files)
    names = folders.classes(path, files, classes, model, "pictures")
    pixels, info = pixel_input(inputs)
    transform = transform_of(preprocessing, size, resize, mean, std, processor, model, info)
    for some in reading.grouped(files, inputs):
        labels = np.asarray([names.index(name) for _, name in some], np.int64)
        feed = {pixels: _prepared([picture for picture, _ in some], transform, info)}
        yield item(feed, labels, None, group_of(some))


def pictures(folder: Path) -> folders.ClassFiles:
    """Each picture and its subfolder. Raises InputRefused for a folder without pictures."""
    return folders.spread(folder, "images", PICTURES, "pictures")


def transform_of(
    preprocessing: str | None,
    size: Size,
    resize: int | None,
    mean: Numbers | None,
    std: Numbers | None,
    processor: Path | None,
    model: str | None,
    info: TensorInfo | None,
) -> Transform:
    """The transform from the args or the processor. Raises InputRefused if there is neither."""
    preprocessing = preprocessing or (_declared(processor, model) if mean is None else None)
    if mean is None and preprocessing is None:
        return processor_of(processor, model)
    return Preprocessing.of(
        name=preprocessing, size=size, resize=resize, mean=mean, std=std, info=info
    )


def framed(
    preprocessing: str | None,
    size: Size,
    mean: Numbers | None,
    std: Numbers | None,
    processor: Path | None,
    model: str | None,
    info: TensorInfo | None,
) -> Callable[[Image], tuple[np.ndarray, Frame]]:
    """A function that returns the pixels of one picture [channels, height, width], and where the
    picture lies in them. All of the picture is in them: a preprocessing that cuts the middle out
    resizes the whole picture. Arguments and errors as for `samples`."""
    preprocessing = preprocessing or (_declared(processor, model) if mean is None else None)
    if preprocessing is not None or mean is not None:
        given = Preprocessing.of(
            name=preprocessing, size=size, resize=None, mean=mean, std=std, info=info
        )
        return given.stretched().prepared
    transform = processor_of(processor, model)

    def prepared(picture: Image) -> tuple[np.ndarray, Frame]:
        (pixels,) = transform([picture])
        height, width = pixels.shape[-2:]
        return pixels, Frame.of(picture.size, (width, height), (0, 0), (width, height))

    return prepared


def _declared(processor: Path | None, model: str | None) -> str | None:
    """The preprocessing that the model declares by name."""
    return pretrained.preprocessing(processor or (Path(model) if model else None))


def processor_of(named: Path | None, model: str | None) -> Transform:
    """The processor in folder `named`, otherwise the model's own, in its Pillow version."""
    folder = named or (Path(model) if model else None)
    if folder is None or not pretrained.holds_processor(folder):
        raise InputRefused(
            f"no {pretrained.PROCESSORS[0]}" if named else "the model has no image processor",
            where=str(named) if named else model,
            hint="name the folder that holds it in args.processor"
            if named
            else "name what the training did: --set calibration.args.preprocessing=letterbox "
            "(YOLO), imagenet, clip, unit (0 to 1), half (-1 to 1) or bytes; or give its mean and "
            "standard deviation (args.mean, args.std), or the folder of a preprocessor_config.json "
            "(args.processor). For an evaluation task, in eval.args",
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
    pixels = transform([decoded(path, mode_of(info)) for path in paths])
    return pixels.astype(info.dtype if info is not None else np.float32, copy=False)


def mode_of(info: TensorInfo | None) -> str:
    """Pillow's mode for the channels of the model: gray for one, otherwise RGB."""
    return "L" if info is not None and len(info.shape) == 4 and info.shape[1] == 1 else "RGB"


def decoded(path: Path, mode: str) -> Image:
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


def pixel_input(inputs: Inputs | None) -> tuple[str, TensorInfo | None]:
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
