"""Statistics as one safetensors file: equal statistics give equal bytes.

Tensors are written one by one, and second moments are mapped, not loaded, because they may be
larger than memory. The layout is that of safetensors (8 bytes of length, JSON, then the numbers);
the safetensors library would hold the whole file in memory, twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open

from optkit.facts.codec import from_json, to_json
from optkit.facts.dtypes import DTYPES
from optkit.facts.errors import IntegrityError
from optkit.ground.statistics.model_statistics import Statistics
from optkit.ground.statistics.values import (
    ROWS,
    Channels,
    MissingRange,
    Moments,
    Patches,
    SampledRows,
    ValueStatistics,
)
from optkit.ground.statistics.windows import Window

if TYPE_CHECKING:  # a worker does without pydantic
    from pydantic import JsonValue

SCHEMA = "optkit.statistics/v3"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ALWAYS = ("range", "bins", "counts")
_CHANNELS, _ROWS, _MOMENTS = ("low", "high", "sums"), ("hashes", "rows"), ("total", "diagonal")
_MAPPED = "total"
_KEY = "optkit"  # of the metadata in a safetensors header


class _Sparse:
    """A field that has its default is not in the JSON."""

    def to_json(self) -> dict[str, JsonValue]:
        values = {each: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return {
            each.name: to_json(value) for each, value in values.items() if value != each.default
        }


@dataclass(frozen=True)
class PatchesRemark(_Sparse):
    window: Window
    moment_rows: int | None = None


@dataclass(frozen=True)
class Remark(_Sparse):
    """The JSON of a value, without its arrays."""

    channel_rows: int | None = None
    moment_rows: int | None = None
    patches: tuple[PatchesRemark, ...] = ()
    excluded: int = 0
    verdict: MissingRange | None = None
    given: bool = False


@dataclass(frozen=True)
class _Header:
    schema: str
    samples: int
    data: str
    versions: dict[str, str]
    values: dict[str, Remark]


@dataclass(frozen=True)
class _TensorPlace:
    """What a safetensors header says of a tensor. The offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def save(statistics: Statistics, path: Path) -> None:
    """Write one safetensors file."""
    tensors: dict[str, np.ndarray] = {}
    remarks: dict[str, Remark] = {}
    for name, value in statistics.values.items():
        arrays, remark = value_to_arrays(value)
        tensors |= {f"{kind}/{name}": array for kind, array in arrays.items()}
        remarks[name] = remark
    versions = dict(statistics.versions)
    header = _Header(SCHEMA, statistics.samples, statistics.data, versions, remarks)
    write_tensors(path, tensors, header)


def load(path: Path) -> Statistics:
    """Read what `save` wrote; second moments stay mapped from the file.

    Raises IntegrityError if the file is not exactly that.
    """
    try:
        metadata, tensors = read_tensors(path, mapped=_MAPPED)
        return _checked(metadata, tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"not a statistics file: {error}", where=str(path), hint="calibrate again"
        ) from error


def value_to_arrays(value: ValueStatistics) -> tuple[dict[str, np.ndarray], Remark]:
    """(arrays by kind, JSON of the other fields) of one value."""
    arrays = {
        "range": np.array([value.low, value.high], np.float32),
        "bins": value.bins,
        "counts": value.counts,
    }
    if value.channels is not None:
        channels = value.channels
        arrays |= {"low": channels.low, "high": channels.high, "sums": np.stack(channels.sums)}
    if value.rows is not None:
        arrays |= {"hashes": value.rows.hashes, "rows": value.rows.data}
    if value.moments is not None:
        arrays |= {"total": value.moments.total, "diagonal": value.moments.diagonal}
    patches: list[PatchesRemark] = []
    for index, (window, patches_of) in enumerate(sorted(value.patches.items())):
        arrays |= {f"hashes {index}": patches_of.rows.hashes, f"rows {index}": patches_of.rows.data}
        if (moments := patches_of.moments) is not None:
            arrays |= {f"total {index}": moments.total, f"diagonal {index}": moments.diagonal}
        patches.append(PatchesRemark(window, _rows_of(moments)))
    return arrays, Remark(
        _rows_of(value.channels),
        _rows_of(value.moments),
        tuple(patches),
        value.excluded,
        value.verdict,
        value.given,
    )


def value_from_arrays(arrays: Mapping[str, np.ndarray], remark: Remark) -> ValueStatistics:
    """The value that `value_to_arrays` took apart. Raises ValueError if it is not one."""
    patches, arrays = _patches(arrays, remark)
    kinds = set(arrays).difference(_ALWAYS)
    for part in (_CHANNELS, _ROWS, _MOMENTS):
        if kinds.intersection(part) and not kinds.issuperset(part):
            raise ValueError(f"some of {sorted(part)} are missing")
    if not set(arrays).issuperset(_ALWAYS) or kinds.difference(_CHANNELS, _ROWS, _MOMENTS):
        raise ValueError("the set of arrays is not one of a value")
    extremes, bins, counts = (arrays[kind] for kind in _ALWAYS)
    low, high = extremes.astype(np.float32).tolist()
    value = ValueStatistics(
        low,
        high,
        bins,
        counts,
        _channels(arrays, remark) if "low" in kinds else None,
        _rows(arrays) if "rows" in kinds else None,
        _moments(arrays, remark.moment_rows) if "total" in kinds else None,
        remark.excluded,
        remark.verdict,
        patches,
        remark.given,
    )
    _check_histogram(value)
    return value


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: object) -> None:
    """Write a safetensors file, one tensor at a time, the widest dtypes first (so all are aligned).

    `metadata`: what has JSON, kept under one key.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    text = json.dumps(to_json(metadata), sort_keys=True)
    header: dict[str, object] = {"__metadata__": {_KEY: text}}
    offset = 0
    for name in order:
        array = tensors[name]
        offsets = (offset, offset + array.nbytes)
        dtype = str(DTYPES[array.dtype.name].stored)
        header[name] = to_json(_TensorPlace(dtype, array.shape, offsets))
        offset += array.nbytes
    layout = json.dumps(header, separators=(",", ":")).encode()
    layout += b" " * (-len(layout) % 8)
    with path.open("wb") as file:
        file.write(len(layout).to_bytes(8, "little"))
        file.write(layout)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).data)


def read_tensors(path: Path, *, mapped: str) -> tuple[object, dict[str, np.ndarray]]:
    """(metadata, tensors by name); those whose name starts with `mapped` are mapped read-only.

    Raises SafetensorError, OSError, ValueError or KeyError for any other file.
    """
    with safe_open(path, framework="numpy") as file:  # checks the header and every offset
        metadata = json.loads(file.metadata()[_KEY])
        names: Collection[str] = file.keys()
        tensors = {name: file.get_tensor(name) for name in names if not name.startswith(mapped)}
        wide = [name for name in names if name.startswith(mapped)]
    if wide:
        with path.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        for name in wide:
            place = from_json(_TensorPlace, header[name])
            if place.dtype != "F64" or 0 in place.shape:
                raise ValueError(f"{name!r} holds no matrices of float64")
            start = 8 + length + place.data_offsets[0]
            tensors[name] = np.memmap(path, np.float64, "r", start, place.shape)
    return metadata, tensors


def _checked(metadata: object, tensors: Mapping[str, np.ndarray]) -> Statistics:
    if not isinstance(metadata, dict) or metadata.get("schema") != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    header = from_json(_Header, metadata)
    arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in header.values}
    for key, array in tensors.items():
        kind, _, name = key.partition("/")
        arrays[name][kind] = array
    values = {}
    for name in sorted(arrays):
        try:
            values[name] = value_from_arrays(arrays[name], header.values[name])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    if _count(header.samples) < 1 or not _DIGEST.fullmatch(header.data):
        raise ValueError("samples or data digest are malformed")
    return Statistics(values, header.samples, header.data, header.versions)


def _check_histogram(value: ValueStatistics) -> None:
    bins, counts = value.bins, value.counts
    sound = bins.dtype == np.uint16 and counts.dtype == np.int64 and bins.shape == counts.shape
    if not sound or bins.ndim != 1 or (np.diff(bins.astype(int)) <= 0).any():
        raise ValueError("the histogram is malformed")
    ordered = (value.low, value.high) == (np.inf, -np.inf)
    if bins.size:
        ordered = -np.inf < value.low <= value.high < np.inf
    if (counts <= 0).any() or not ordered or value.excluded < 0:
        raise ValueError("numbers are out of range")
    _check_sizes(value)


def _check_sizes(value: ValueStatistics) -> None:
    """Every part has as many channels; a value with a verdict has no part."""
    extras = (value.channels, value.rows, value.moments, value.patches or None)
    if value.verdict is not None and (
        value.bins.size or any(extra is not None for extra in extras)
    ):
        raise ValueError("a value with a verdict holds numbers")
    sizes = [] if value.channels is None else [len(value.channels.low)]
    sizes += [] if value.rows is None else [value.rows.data.shape[1]]
    sizes += [] if value.moments is None else [len(value.moments.diagonal)]
    sizes += [part.rows.data.shape[1] // window.taps for window, part in value.patches.items()]
    if len(set(sizes)) > 1:
        raise ValueError("parts differ in their number of channels")


def _channels(arrays: Mapping[str, np.ndarray], remark: Remark) -> Channels:
    low, high, sums = (arrays[kind] for kind in _CHANNELS)
    sound = low.dtype == high.dtype == np.float32 and sums.dtype == np.float64
    if not sound or low.ndim != 1 or high.shape != low.shape or sums.shape != (2, low.size):
        raise ValueError("numbers per channel are malformed")
    count = _count(remark.channel_rows)
    if not np.isfinite(sums).all() or (count and not (np.isfinite(low) & (low <= high)).all()):
        raise ValueError("numbers per channel are out of range")
    return Channels(low, high, (sums[0], sums[1]), count)


def _rows(arrays: Mapping[str, np.ndarray]) -> SampledRows:
    hashes, data = (arrays[kind] for kind in _ROWS)
    sound = hashes.dtype == np.uint64 and data.dtype == np.float32 and data.ndim == 2
    if not sound or hashes.shape != data.shape[:1] or len(hashes) > ROWS:
        raise ValueError("rows are malformed")
    if (hashes[1:] <= hashes[:-1]).any() or not np.isfinite(data).all():
        raise ValueError("rows are out of range")
    return SampledRows(hashes, data)


def _patches(
    arrays: Mapping[str, np.ndarray], remark: Remark
) -> tuple[dict[Window, Patches], Mapping[str, np.ndarray]]:
    """(patches by window, the arrays that are none)."""
    rest, patches = dict(arrays), {}
    for index, entry in enumerate(remark.patches):
        window = entry.window
        _check_window(window)
        rows = _rows({kind: rest.pop(f"{kind} {index}") for kind in _ROWS})
        moments = None
        if entry.moment_rows is not None:
            arrays_of = {kind: rest.pop(f"{kind} {index}") for kind in _MOMENTS}
            moments = _moments(arrays_of, entry.moment_rows, (window.groups,))
            if moments.diagonal.size != rows.data.shape[1]:
                raise ValueError("patches and their moments differ in size")
        patches[window] = Patches(rows, moments)
    return patches, rest


def _check_window(window: Window) -> None:
    axes = (window.kernel, window.strides, window.dilations)
    numbers = (*window.kernel, *window.strides, *window.dilations, *window.pads, window.groups)
    whole = all(isinstance(number, int) for number in numbers)
    if not whole or len({*map(len, axes), len(window.pads) / 2}) > 1:
        raise ValueError("a window is malformed")


def _moments(
    arrays: Mapping[str, np.ndarray], count: int | None, groups: tuple[int, ...] = ()
) -> Moments:
    total, diagonal = (arrays[kind] for kind in _MOMENTS)
    size = diagonal.shape[-1:]
    sound = total.dtype == diagonal.dtype == np.float64 and len(size) == 1
    if not sound or diagonal.shape != (*groups, *size) or total.shape != (*groups, *size, *size):
        raise ValueError("moments are malformed")
    if not all(np.isfinite(a).all() for a in (diagonal, np.einsum("...kk->...k", total))):
        raise ValueError("moments are out of range")
    return Moments(total, diagonal, _count(count))


def _rows_of(part: Channels | Moments | None) -> int | None:
    return None if part is None else part.count


def _count(given: object) -> int:
    if not isinstance(given, int) or given < 0:
        raise ValueError(f"{given!r} is not a count")
    return given
