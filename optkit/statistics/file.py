"""Statistics as one safetensors file: the same statistics give the same bytes.

Written tensor by tensor, and second moments are mapped, never loaded: they may be larger than
memory. The layout is safetensors' own (8 bytes of length, JSON, then the numbers); the library
itself would hold the whole file in memory, twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from optkit.errors import IntegrityError
from optkit.statistics.dataset import Statistics
from optkit.statistics.values import (
    ROWS,
    Channels,
    Moments,
    Patches,
    Rows,
    ValueStatistics,
    Verdict,
)
from optkit.statistics.windows import Window

SCHEMA = "optkit.statistics/v3"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DTYPES = {
    "float64": "F64", "float32": "F32", "int64": "I64", "uint64": "U64", "uint16": "U16",
}  # fmt: skip
_ALWAYS = {"range", "bins", "counts"}
_CHANNELS, _ROWS, _MOMENTS = {"low", "high", "sums"}, {"hashes", "rows"}, {"total", "diagonal"}
_MAPPED = "total"


def save(statistics: Statistics, path: Path) -> None:
    """Write one safetensors file."""
    tensors: dict[str, np.ndarray] = {}
    remarks: dict[str, dict[str, Any]] = {}
    for name, value in statistics.values.items():
        arrays, remark = value_to_arrays(value)
        tensors |= {f"{kind}/{name}": array for kind, array in arrays.items()}
        remarks[name] = remark
    metadata = {
        "schema": SCHEMA,
        "samples": statistics.samples,
        "data": statistics.data,
        "versions": dict(statistics.versions),
        "values": remarks,
    }
    write_tensors(path, tensors, metadata)


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


def value_to_arrays(value: ValueStatistics) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by kind, what JSON holds of the rest) of one value."""
    arrays = {
        "range": np.array([value.low, value.high], np.float32),
        "bins": value.bins,
        "counts": value.counts,
    }
    remark: dict[str, Any] = {}
    if value.channels is not None:
        channels = value.channels
        arrays |= {"low": channels.low, "high": channels.high, "sums": np.stack(channels.sums)}
        remark["channel_rows"] = channels.count
    if value.rows is not None:
        arrays |= {"hashes": value.rows.hashes, "rows": value.rows.data}
    if value.moments is not None:
        arrays |= {"total": value.moments.total, "diagonal": value.moments.diagonal}
        remark["moment_rows"] = value.moments.count
    for index, (window, patches_of) in enumerate(sorted(value.patches.items())):
        entry: dict[str, Any] = {"window": asdict(window)}
        arrays |= {f"hashes {index}": patches_of.rows.hashes, f"rows {index}": patches_of.rows.data}
        if (moments := patches_of.moments) is not None:
            arrays |= {f"total {index}": moments.total, f"diagonal {index}": moments.diagonal}
            entry["moment_rows"] = moments.count
        remark.setdefault("patches", []).append(entry)
    if value.excluded:
        remark["excluded"] = value.excluded
    if value.verdict is not None:
        remark["verdict"] = [value.verdict.sample, value.verdict.what]
    return arrays, remark


def value_from_arrays(
    arrays: Mapping[str, np.ndarray], remark: Mapping[str, Any]
) -> ValueStatistics:
    """The value that `value_to_arrays` took apart. Raises ValueError if it is not one."""
    patches, arrays = _patches(arrays, remark)
    kinds = set(arrays) - _ALWAYS
    for part in (_CHANNELS, _ROWS, _MOMENTS):
        if kinds & part and not part <= kinds:
            raise ValueError(f"some of {sorted(part)} are missing")
    if not set(arrays) >= _ALWAYS or kinds - _CHANNELS - _ROWS - _MOMENTS:
        raise ValueError("the set of arrays is not one of a value")
    low, high = arrays["range"].astype(np.float32).tolist()
    verdict = None
    if "verdict" in remark:
        sample, what = remark["verdict"]
        verdict = Verdict(int(sample), str(what))
    value = ValueStatistics(
        low, high, arrays["bins"], arrays["counts"],
        _channels(arrays, remark) if "low" in kinds else None,
        _rows(arrays) if "rows" in kinds else None,
        _moments(arrays, remark) if "total" in kinds else None,
        int(remark.get("excluded", 0)), verdict, patches,
    )  # fmt: skip
    _check_histogram(value)
    return value


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Any) -> None:
    """Write a safetensors file, one tensor at a time, the widest dtypes first (so all are aligned).

    `metadata`: JSON, kept under one key.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"optkit": json.dumps(metadata, sort_keys=True)}}
    offset = 0
    for name in order:
        array = tensors[name]
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).data)


def read_tensors(path: Path, *, mapped: str) -> tuple[Any, dict[str, np.ndarray]]:
    """(metadata, tensors by name); those whose name starts with `mapped` are mapped read-only.

    Raises SafetensorError, OSError, ValueError or KeyError for any other file.
    """
    with safe_open(path, framework="numpy") as file:  # checks the header and every offset
        metadata = json.loads(file.metadata()["optkit"])
        names: Collection[str] = file.keys()
        tensors = {name: file.get_tensor(name) for name in names if not name.startswith(mapped)}
        wide = [name for name in names if name.startswith(mapped)]
    if wide:
        with path.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        for name in wide:
            if header[name]["dtype"] != "F64" or 0 in header[name]["shape"]:
                raise ValueError(f"{name!r} holds no matrices of float64")
            start = 8 + length + header[name]["data_offsets"][0]
            shape = tuple(header[name]["shape"])
            tensors[name] = np.memmap(path, np.float64, "r", start, shape)
    return metadata, tensors


def _checked(metadata: Any, tensors: Mapping[str, np.ndarray]) -> Statistics:
    if not isinstance(metadata, dict) or metadata.get("schema") != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    remarks = metadata["values"]
    arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in remarks}
    for key, array in tensors.items():
        kind, _, name = key.partition("/")
        arrays[name][kind] = array
    values = {}
    for name in sorted(arrays):
        try:
            values[name] = value_from_arrays(arrays[name], remarks[name])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    samples, data, versions = metadata["samples"], metadata["data"], metadata["versions"]
    if not isinstance(samples, int) or samples < 1 or not _DIGEST.fullmatch(data):
        raise ValueError("samples or data digest are malformed")
    return Statistics(values, samples, data, {str(k): str(v) for k, v in versions.items()})


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


def _channels(arrays: Mapping[str, np.ndarray], remark: Mapping[str, Any]) -> Channels:
    low, high, sums = arrays["low"], arrays["high"], arrays["sums"]
    sound = low.dtype == high.dtype == np.float32 and sums.dtype == np.float64
    if not sound or low.ndim != 1 or high.shape != low.shape or sums.shape != (2, low.size):
        raise ValueError("numbers per channel are malformed")
    count = _count(remark["channel_rows"])
    if not np.isfinite(sums).all() or (count and not (np.isfinite(low) & (low <= high)).all()):
        raise ValueError("numbers per channel are out of range")
    return Channels(low, high, (sums[0], sums[1]), count)


def _rows(arrays: Mapping[str, np.ndarray]) -> Rows:
    hashes, data = arrays["hashes"], arrays["rows"]
    sound = hashes.dtype == np.uint64 and data.dtype == np.float32 and data.ndim == 2
    if not sound or hashes.shape != data.shape[:1] or len(hashes) > ROWS:
        raise ValueError("rows are malformed")
    if (hashes[1:] <= hashes[:-1]).any() or not np.isfinite(data).all():
        raise ValueError("rows are out of range")
    return Rows(hashes, data)


def _patches(
    arrays: Mapping[str, np.ndarray], remark: Mapping[str, Any]
) -> tuple[dict[Window, Patches], Mapping[str, np.ndarray]]:
    """(patches by window, the arrays that are none)."""
    rest, patches = dict(arrays), {}
    for index, entry in enumerate(remark.get("patches", ())):
        window = _window(entry["window"])
        rows = _rows({kind: rest.pop(f"{kind} {index}") for kind in _ROWS})
        moments = None
        if "moment_rows" in entry:
            arrays_of = {kind: rest.pop(f"{kind} {index}") for kind in _MOMENTS}
            moments = _moments(arrays_of, entry, (window.groups,))
            if moments.diagonal.size != rows.data.shape[1]:
                raise ValueError("patches and their moments differ in size")
        patches[window] = Patches(rows, moments)
    return patches, rest


def _window(entry: Mapping[str, Any]) -> Window:
    axes = {name: tuple(map(int, entry[name])) for name in ("kernel", "strides", "dilations")}
    pads = tuple(map(int, entry["pads"]))
    if len({*map(len, axes.values()), len(pads) / 2}) > 1 or not isinstance(entry["groups"], int):
        raise ValueError("a window is malformed")
    return Window(**axes, pads=pads, groups=entry["groups"], auto_pad=str(entry["auto_pad"]))


def _moments(
    arrays: Mapping[str, np.ndarray], remark: Mapping[str, Any], groups: tuple[int, ...] = ()
) -> Moments:
    total, diagonal = arrays["total"], arrays["diagonal"]
    size = diagonal.shape[-1:]
    sound = total.dtype == diagonal.dtype == np.float64 and len(size) == 1
    if not sound or diagonal.shape != (*groups, *size) or total.shape != (*groups, *size, *size):
        raise ValueError("moments are malformed")
    if not all(np.isfinite(a).all() for a in (diagonal, np.einsum("...kk->...k", total))):
        raise ValueError("moments are out of range")
    return Moments(total, diagonal, _count(remark["moment_rows"]))


def _count(given: Any) -> int:
    if not isinstance(given, int) or given < 0:
        raise ValueError(f"{given!r} is no count")
    return given
