"""The numbers that a model expects, according to its preprocessing, its first weights, and the
recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optkit.craft.calibration.suspects.entrance import FLAT, BatchNorm, ChannelMoments, Entrance
from optkit.craft.calibration.suspects.profile import NumericInput
from optkit.facts.documents.data_finding import DataFinding

_CONFIGS = ("preprocessor_config.json", "processor_config.json")
_WHITE = 255.0
_BEYOND = 0.1  # share of the width by which resampling may exceed the range
_REACHED = 0.3
"""The allowed distance of the data from each end of the predicted range, in widths. Eight pictures
have a pixel darker than 30 % and one brighter than 70 %, unless all are of one tone."""

_SPREAD = 3.0
"""Ratio of the standard deviation in a batch norm and the measured one, over all channels. The
running statistics are averages over training batches. So clean data agrees within 1.3 (all classes,
any 8 samples), and one class of ten within 1.5. Without normalization the ratio is 4.4, without
division by 255 it is 255."""

# in standard deviations of training: distance of the means, root mean square over all channels
_MOVED = 3.0
_HIDDEN = 1 / 50
"""The first product divided by the constants that are added to it. Both were trained together: the
ratio is 0.3 to 30 in trained networks. Division by 255 changes it to 0.001 to 0.1."""

_RAW = 16.0
"""Standard deviation of the first product if pixels are 0 to 255. With the usual initialization it
is near 1 (He et al., arXiv:1502.01852), and training changes it by a small factor."""

_BRIGHT = 128.0  # the least maximum of raw 8-bit pictures
_DIM = 1 / 64  # the largest number after two divisions by 255 is 1/255
_SATURATED = 0.5
"""Share of elements on the flat ends of the first activation. A trained layer has some; if it has
mostly such elements, it loses its gradient (Glorot and Bengio, 2010, section 3)."""


@dataclass(frozen=True)
class PixelRange:
    """The range after the model's preprocessing of pixels 0 to 255, by colour."""

    low: tuple[float, ...]
    high: tuple[float, ...]


def of_preprocessor(folder: Path) -> PixelRange | None:
    """(pixel · rescale_factor − mean) / std, as in the image processors of transformers; None if
    the folder has no image processor."""
    for name in _CONFIGS:
        try:
            config = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and isinstance(config.get("image_processor"), dict):
            config = config["image_processor"]
        if isinstance(config, dict) and (expected := _expected(config)) is not None:
            return expected
    return None


def _expected(config: Mapping[str, Any]) -> PixelRange | None:
    if not {"image_mean", "do_rescale", "rescale_factor", "image_processor_type"} & config.keys():
        return None
    rescales = config.get("do_rescale", True)
    factor = config.get("rescale_factor", 1 / _WHITE) if rescales else 1.0
    normal = config.get("do_normalize", "image_mean" in config)
    mean, std = (config.get(f"image_{key}") if normal else None for key in ("mean", "std"))
    try:
        less = np.atleast_1d(np.asarray(0.0 if mean is None else mean, np.float64))
        over = np.atleast_1d(np.asarray(1.0 if std is None else std, np.float64))
        ends = [(white * float(factor) - less) / over for white in (0.0, _WHITE)]
    except (TypeError, ValueError):
        return None
    if not (over > 0).all() or not all(np.isfinite(end).all() for end in ends):
        return None
    return PixelRange(tuple(ends[0].tolist()), tuple(ends[1].tolist()))


def preprocessed(x: NumericInput, expected: PixelRange) -> Iterator[DataFinding]:
    """Pictures whose range differs from that of the model's preprocessing."""
    if not x.is_picture:
        return
    low, high = min(expected.low), max(expected.high)
    width = high - low
    beyond = x.low < low - _BEYOND * width or x.high > high + _BEYOND * width
    short = x.low > low + _REACHED * width or x.high < high - _REACHED * width
    if beyond or short:
        yield DataFinding(
            "preprocessing",
            x.info.name,
            f"its range is [{x.low:.4g}, {x.high:.4g}]; the model's preprocessing "
            f"makes [{low:.4g}, {high:.4g}] of pixels from 0 to 255",
            x.high - x.low,
            width,
            "prepare pictures with the model's own processor",
        )


def declared(x: NumericInput, span: tuple[float, float]) -> Iterator[DataFinding]:
    """Numbers outside of the range that the recipe declares for the input, or in a small part of
    it."""
    low, high = span
    width = high - low
    if (
        x.low < low - _BEYOND * width
        or x.high > high + _BEYOND * width
        or (x.high - x.low < width / 16 and width)
    ):
        yield DataFinding(
            "declared",
            x.info.name,
            f"its range is [{x.low:.4g}, {x.high:.4g}]; the recipe declares [{low:.4g}, "
            f"{high:.4g}]",
            x.high - x.low,
            width,
            "prepare the samples for this range, or correct the declared range",
        )


def trained(x: NumericInput, norm: BatchNorm, seen: ChannelMoments) -> Iterator[DataFinding]:
    """Compare the input of the first batch norm with its input in training."""
    alive = (norm.variance > 1e-8 * norm.variance.max()) & (norm.variance > 0)
    if not alive.any():
        return
    ours, training = (np.sqrt(v[alive]) for v in (seen.variance, norm.variance))
    tiny = float(np.finfo(np.float32).tiny)
    ratio = float(np.exp(np.median(np.log(np.maximum(ours, tiny) / training))))
    moved = float(np.sqrt(np.mean(((seen.mean - norm.mean)[alive] / training) ** 2)))
    if max(ratio, 1 / ratio) >= _SPREAD:
        shown = f"{ratio:.4g}" if ratio >= 1 else f"1/{1 / ratio:.4g}"
        yield DataFinding(
            "training statistics",
            x.info.name,
            f"{norm.name!r} reads values {shown} times as spread as in training (standard "
            f"deviation {np.median(ours):.3g}, by its running statistics "
            f"{np.median(training):.3g})",
            float(np.median(ours)),
            float(np.median(training)),
            "prepare samples as the model was trained: scale, mean and standard deviation",
        )
    elif moved >= _MOVED:
        yield DataFinding(
            "training statistics",
            x.info.name,
            f"the means that {norm.name!r} reads are {moved:.2g} standard deviations off those of "
            "its running statistics",
            moved,
            0.0,
            "prepare samples as the model was trained: scale, mean and standard deviation",
        )


def first_product(
    x: NumericInput, entrance: Entrance, seen: Mapping[str, ChannelMoments]
) -> Iterator[DataFinding]:
    """Numbers that make the output of the first product too large or too small."""
    if entrance.product is None or entrance.product[0] not in seen:
        return
    response = float(np.sqrt(seen[entrance.product[0]].variance.mean()))
    low, high = entrance.reach(x.low, x.high)
    if x.is_picture and low >= 0 and high >= _BRIGHT and response >= _RAW:
        yield DataFinding(
            "raw pixels",
            x.info.name,
            f"pixels from {x.low:g} to {x.high:g} reach the first product unscaled, whose results "
            f"then have a standard deviation of {response:.3g} (1 is usual)",
            response,
            1.0,
            "divide by 255 and normalize as in training, or declare "
            "inputs.<name>.range if the model takes these",
        )
    if x.is_picture and low >= 0 and 0 < high <= _DIM:
        yield DataFinding(
            "dim",
            x.info.name,
            f"the brightest pixel of {x.samples} samples is {x.high:.4g}: as if divided by 255 "
            "twice",
            x.high,
            1.0,
            "prepare pictures as the model was trained",
        )
    elif entrance.constants and x.samples > 1 and response < _HIDDEN * entrance.constants:
        yield DataFinding(
            "vanishing",
            x.info.name,
            f"the samples hardly move the first product: standard deviation {response:.2g}, while "
            f"the constants added to it are {entrance.constants:.2g} (range [{x.low:.4g}, "
            f"{x.high:.4g}])",
            response,
            entrance.constants,
            "check the scale: it may have been divided twice",
        )
    yield from _saturated(x, entrance, seen)


def _saturated(
    x: NumericInput, entrance: Entrance, seen: Mapping[str, ChannelMoments]
) -> Iterator[DataFinding]:
    """An activation behind the first product that reads mostly numbers of its flat ends."""
    if entrance.activation is None or entrance.activation[1] not in seen:
        return
    op, value = entrance.activation
    if (flat := seen[value].flat) >= _SATURATED:
        yield DataFinding(
            "saturated",
            x.info.name,
            f"{flat:.0%} of what the first {op} reads is beyond ±{FLAT[op]:g}, where it is "
            f"flat (range [{x.low:.4g}, {x.high:.4g}])",
            flat,
            _SATURATED,
            "prepare samples as the model was trained",
        )
