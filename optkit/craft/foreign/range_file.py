"""Ranges of activations in the files of other tools.

TensorRT's calibration cache: a line `TRT-8601-EntropyCalibration2` (version, calibrator), then for
each tensor `name: 3c010a14`, a float32 as hexadecimal digits, the most significant first. It is the
scale of symmetric int8 codes, so the range is ±127 times the number (NVIDIA, TensorRT 10 developer
guide, "Post-Training Quantization Using Calibration"). TensorRT 11 has neither calibrators nor
caches.

AIMET's encodings: JSON with `activation_encodings`. Up to version 0.6.1 it maps each tensor to a
list with one entry (`min`, `max`, `bitwidth`, …); since 1.0.0 it is a list of entries (`name`,
`bw`, `scale`, `offset`: x = scale · (code + offset), code from 0 to 2^bw - 1). Version 2.0.0 has
one list `encodings` of all tensors (`name`, `output_dtype`, `y_scale`, `y_zero_point`, as in ONNX).
`param_encodings` are of weights, whose scales optkit computes itself.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optkit.facts.errors import InputRefused

_CACHE = re.compile(r"TRT-\d+-\w*Calibration\w*")
_SCALE = re.compile(r"[0-9a-fA-F]{1,8}")
_CODES = 127  # of the largest magnitude, in TensorRT's symmetric codes
_DTYPE = re.compile(r"u?int(4|8|16|32)")
_FORMS = (
    "a calibration cache of TensorRT begins with a line like TRT-8601-EntropyCalibration2; "
    "encodings of AIMET are JSON with activation_encodings"
)


@dataclass(frozen=True)
class GivenRanges:
    """Tensor → its smallest and largest number. `written_by`: the tool and the form of the file."""

    written_by: str
    ranges: Mapping[str, tuple[float, float]]


def read_ranges(path: Path) -> GivenRanges:
    """Read either kind of file. Raises InputRefused, with the line or the tensor."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputRefused("it holds no ranges: it is not text", hint=_FORMS) from error
    first = text.lstrip().partition("\n")[0].strip()
    if _CACHE.fullmatch(first):
        found = GivenRanges(f"TensorRT, {first}", dict(_cache(text.strip().splitlines()[1:])))
    elif first.startswith("{"):
        found = _encodings(text)
    else:
        raise InputRefused("it is no file of ranges that optkit knows", hint=_FORMS)
    if not found.ranges:
        raise InputRefused("it names no range of an activation", hint=_FORMS)
    return found


def _cache(lines: list[str]) -> Iterator[tuple[str, tuple[float, float]]]:
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        name, _, digits = line.strip().rpartition(":")  # a name may contain colons
        digits = digits.strip()
        if not name or not _SCALE.fullmatch(digits):
            raise _refused(f"line {number}", f"not `tensor: hexadecimal scale`: {line[:80]!r}")
        (scale,) = struct.unpack("!f", bytes.fromhex(digits.zfill(8)))
        yield name, _range(-_CODES * scale, _CODES * scale, f"line {number}")


def _encodings(text: str) -> GivenRanges:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"not valid JSON: {error}", hint=_FORMS) from error
    activations = data.get("activation_encodings", data.get("encodings"))
    version = str(data.get("version", "0.x"))
    rows: Iterator[tuple[str, Any]]
    if isinstance(activations, dict):
        rows = iter(activations.items())
    elif isinstance(activations, list):
        rows = ((_name(row, index), row) for index, row in enumerate(activations))
    else:
        raise InputRefused("it has no activation_encodings", hint=_FORMS)
    found = {}
    for name, row in rows:
        try:
            ends = _encoding(row)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise _refused(f"tensor {name!r}", f"not an encoding of AIMET: {what}") from error
        if ends is not None:
            found[name] = _range(*ends, f"tensor {name!r}")
    return GivenRanges(f"AIMET, encodings {version}", found)


def _name(row: Any, index: int) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise _refused(f"entry {index}", "an encoding of AIMET has a name")
    return str(row["name"])


def _encoding(row: Any) -> tuple[float, float] | None:
    """The range of an entry in any of the versions; None if it has none (floats, or several scales,
    which only weights have)."""
    if isinstance(row, dict) and {"input", "output"} & row.keys():
        raise ValueError("it is by modules of torch; export the encodings for ONNX")
    if isinstance(row, list):
        if len(row) != 1:
            return None
        (row,) = row
    if str(row.get("dtype", row.get("output_dtype", "int"))).lower().startswith("float"):
        return None
    if "y_scale" in row:
        return _onnx_range(row)
    if "min" in row:
        return float(row["min"]), float(row["max"])
    scales, offsets = row["scale"], row["offset"]
    if not isinstance(scales, list):
        scales, offsets = [scales], [offsets]
    if len(scales) != 1:
        return None
    codes = 2 ** int(row["bw"] if "bw" in row else row["bitwidth"]) - 1
    scale, offset = float(scales[0]), float(offsets[0])
    return scale * offset, scale * (offset + codes)


def _onnx_range(row: Mapping[str, Any]) -> tuple[float, float] | None:
    scale, zero = row["y_scale"], row.get("y_zero_point") or 0
    if isinstance(scale, list) or isinstance(zero, list):
        return None
    dtype = str(row["output_dtype"])
    bits = _DTYPE.fullmatch(dtype)
    if bits is None:
        raise ValueError(f"{dtype} codes")
    codes = 2 ** int(bits[1])
    low = 0 if dtype.startswith("u") else -codes // 2
    return float(scale) * (low - zero), float(scale) * (low + codes - 1 - zero)


def _range(low: float, high: float, where: str) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise _refused(where, f"its range is [{low:g}, {high:g}]")
    return low, high


def _refused(where: str, problem: str) -> InputRefused:
    return InputRefused(problem, where=where, hint="write the file again with the tool")
