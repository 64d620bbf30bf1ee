"""The input of a vision model.

    pixel_values    float32 [batch, channels, height, width]

The size comes from config.json, or else from the folder's image processor, or else from the recipe,
or else from the image processor that transformers has for the family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.sources.toolchain import quiet
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec, TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NAME = "pixel_values"
_FILES = ("preprocessor_config.json", "processor_config.json")
_PUBLISHED = {"d_fine": "RTDetrImageProcessor", "rt_detr_v2": "RTDetrImageProcessor"}
"""Family → the image processor that its published checkpoints name, where transformers has none for
the family."""


def spec(
    config: PreTrainedConfig, folder: Path, declared: Sequence[InputSpec]
) -> tuple[InputSpec, str | None]:
    """The input, and a warning if its size is only that of the family's image processor. Raises
    InputRefused if no size is known."""
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", 3)
    processor = _processor(folder)
    shapes = (spec.info.shape for spec in declared if spec.info.name == NAME)
    size = (
        _pair(getattr(vision, "image_size", None))
        or _processed(processor)
        or next((shape[2:] for shape in shapes if len(shape) == 4), None)
    )
    warning = None
    if size is None and (family := _of_family(config, processor)):
        named, size = family
        warning = (
            f"the folder has no size of its images; {size[0]}×{size[1]} is the size of "
            f"{named}: for another one, {_setting(channels, 'HEIGHT, WIDTH')}"
        )
    if size is None:
        raise InputRefused(
            "the size of its images is not known: neither config.json nor preprocessor_config.json "
            "contains it",
            where=str(folder),
            hint=_setting(channels, "224, 224"),
        )
    return InputSpec(TensorInfo(NAME, "float32", ("batch", channels, *size))), warning


def _setting(channels: int, size: str) -> str:
    return f"--set 'inputs.{NAME}={{dtype: float32, shape: [batch, {channels}, {size}]}}'"


def _processor(folder: Path) -> Mapping[str, object]:
    """The configuration of the folder's image processor; empty if there is none."""
    file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if file is None:
        return {}
    try:
        read = json.loads(file.read_bytes())
        found = read.get("image_processor") or read
        if isinstance(found, Mapping):
            return found
        raise ValueError
    except (ValueError, AttributeError) as error:
        raise InputRefused(
            "not JSON of an image processor", where=str(file), hint="save the processor again"
        ) from error


def _processed(processor: Mapping[str, object]) -> tuple[int, int] | None:
    """The size after the image processor."""
    cropped = processor.get("crop_size") if processor.get("do_center_crop", True) else None
    return _pair(cropped) or _pair(processor.get("size"))


def _of_family(
    config: PreTrainedConfig, processor: Mapping[str, object]
) -> tuple[str, tuple[int, int]] | None:
    """The name and the size of the class that the processor's configuration names, or else of
    the class for the family. None if that has no height and width: an edge alone does not say what
    is cropped."""
    from transformers.models.auto import image_processing_auto

    known = vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"].get(config.model_type)
    names = [processor.get("image_processor_type")]
    names += list(known.values()) if isinstance(known, Mapping) else [known]
    names.append(_PUBLISHED.get(config.model_type))
    for name in names:
        size = _own_size(str(name))
        if isinstance(size, Mapping) and "height" in size and (pair := _pair(size)):
            return str(name), pair
    return None


def _own_size(processor: str) -> object:
    """The size that a class of transformers has by default; None if it is not there, or needs a
    package that is not installed."""
    import transformers

    try:
        with quiet():
            return getattr(getattr(transformers, processor, None), "size", None)
    except ImportError:
        return None


def _pair(size: object) -> tuple[int, int] | None:
    """(height, width) of 224, [224, 224], {"height": 224, "width": 224}, {"shortest_edge": 224}."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = [size.get("height", edge), size.get("width", edge)]
    if isinstance(size, int):
        size = [size, size]
    if isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int for n in size):
        return size[0], size[1]
    return None
