"""How timm prepares pictures for a model, as the configuration of an image processor.

A model of timm has a `pretrained_cfg` with mean, standard deviation, size and crop: what
`timm.data.create_transform` uses for training and evaluation. Written as the
preprocessor_config.json of a Hugging Face folder, every reader of pictures follows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optkit.facts.tensors import InputSpec

if TYPE_CHECKING:
    from torch import nn

_RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # of Pillow
_CROP = 0.875  # timm's DEFAULT_CROP_PCT


def image_processor(module: nn.Module, specs: Sequence[InputSpec]) -> dict[str, object] | None:
    """The configuration for the only input of pictures, [batch, 3, height, width] with fixed sides.
    None for a model that is not timm's, and for a crop other than timm's "center"."""
    config = getattr(module, "pretrained_cfg", None)
    shapes = [spec.info.shape for spec in specs if len(spec.info.shape) == 4]
    if not isinstance(config, Mapping) or len(shapes) != 1 or shapes[0][1] != 3:
        return None
    height, width = shapes[0][2:]
    resample = _RESAMPLING.get(str(config.get("interpolation")))
    known = {"mean", "std", "interpolation"} <= config.keys() and resample is not None
    if not known or config.get("crop_mode", "center") != "center" or isinstance(height, str):
        return None
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": math.floor(height / (config.get("crop_pct") or _CROP))},
        "resample": resample,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config["mean"]),
        "image_std": list(config["std"]),
    }
