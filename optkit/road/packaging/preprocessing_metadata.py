"""What is known about the preprocessing of a model, for the metadata of its ONNX files.

It is what the model's own Hugging Face files say, and the numbers that the recipe gives to optkit's
reader of pictures. What a user's own code does to its samples is not known, and nothing is said
about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from optkit.ground.recipe import Recipe

PREPROCESSING = "preprocessing"
"""Its key in the metadata."""

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_PROCESSOR_KEYS = (
    "preprocessing", "image_processor_type", "feature_extractor_type", "processor_class",
    "do_convert_rgb", "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale",
    "rescale_factor", "do_normalize", "image_mean", "image_std", "sampling_rate", "feature_size",
    "n_fft", "hop_length", "chunk_length", "return_attention_mask", "padding_side", "padding_value",
)  # fmt: skip
_TOKENIZER = "tokenizer_config.json"
_TOKENIZER_KEYS = ("tokenizer_class", "do_lower_case", "padding_side", "model_max_length")
_PICTURES = "calibration/images.py"
_PICTURE_KEYS = ("mean", "std", "size", "resize")


def preprocessing(assets: Mapping[str, Path | bytes], recipe: Recipe) -> str | None:
    """JSON with `processor`, `tokenizer` and `pictures`, each if it is known; None if nothing is.

    assets: the model's own files, by name.
    """
    processors = (_chosen(_read(assets.get(name)), _PROCESSOR_KEYS) for name in _PROCESSORS)
    known = {
        "processor": next((found for found in processors if found), {}),
        "tokenizer": _chosen(_read(assets.get(_TOKENIZER)), _TOKENIZER_KEYS),
        "pictures": _pictures(recipe),
    }
    said = {name: facts for name, facts in known.items() if facts}
    return json.dumps(said, sort_keys=True) if said else None


def _pictures(recipe: Recipe) -> dict[str, object]:
    """The numbers by which optkit's own reader prepares calibration pictures."""
    source = recipe.samples("calibration")
    if source is None or source.place.root != "content" or source.place.relative != _PICTURES:
        return {}
    return _chosen(source.args, _PICTURE_KEYS)


def _read(file: Path | bytes | None) -> Mapping[str, object]:
    """A configuration file of the model; empty if there is none, or if it is no object of JSON."""
    if file is None:
        return {}
    try:
        data = json.loads(file if isinstance(file, bytes) else file.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _chosen(data: Mapping[str, object], keys: tuple[str, ...]) -> dict[str, object]:
    return {key: data[key] for key in keys if data.get(key) is not None}
