"""Statistics: what calibration learned about each tapped value. One safetensors file, mergeable.

A histogram's bins are the upper 16 bits of the float32 (sign, exponent, top 7 mantissa bits), so
their edges depend on no data: 1/128 relative width at every magnitude, and counts are integers.
Merging adds integers and takes minima and maxima, so any order and any split gives the same bits.

    ordinal  0x0000 ........ 0x7FFF | 0x8000 ........ 0xFFFF     bins sorted by value
    value      -max ........ -0     |     +0 ........ +max
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from optkit.errors import InputRefused, IntegrityError

SCHEMA = "optkit.statistics/v1"
FEW_SAMPLES = 32  # fewer than this and `warnings` says so
BINS = 1 << 16

# ordinal -> upper bits of the float: negatives fall as their magnitude rises
_CODES = np.concatenate([np.arange(BINS - 1, BINS // 2 - 1, -1), np.arange(BINS // 2)])
_CHUNK = 1 << 20
Method = Literal["minmax", "percentile"]

_DIGEST_SPACE = 1 << 256
_DIGEST = re.compile(r"[0-9a-f]{64}")


def count_bins(x: np.ndarray) -> np.ndarray:
    """Elements per bin, int64 [BINS] by ordinal. `x`: finite floats of any shape and width."""
    counts = np.zeros(BINS, np.int64)
    flat = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)
    for start in range(0, flat.size, _CHUNK):  # bincount widens its input to 64 bits: 8 MiB at most
        counts += np.bincount(flat[start : start + _CHUNK] >> 16, minlength=BINS)
    by_value: np.ndarray = counts[_CODES]
    return by_value


def edges(ordinal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) float64 edges of bins: the values in a bin lie within, both ends closed."""
    code = _CODES[ordinal].astype(np.uint32)
    near = (code << 16).view(np.float32).astype(np.float64)  # the edge on zero's side
    far = (code << 16 | 0xFFFF).view(np.float32).astype(np.float64)
    return np.minimum(near, far), np.maximum(near, far)


@dataclass(frozen=True, eq=False)
class ValueStatistics:
    """One value over all samples: extremes (exact, float32) and a sparse histogram.

    `bins` are ordinals in rising order (uint16 [k]), `counts` theirs (int64 [k], all > 0).
    """

    low: float
    high: float
    bins: np.ndarray
    counts: np.ndarray

    @property
    def count(self) -> int:
        """Number of elements seen."""
        return int(self.counts.sum())

    def range(self, method: Method, percentile: float) -> tuple[float, float]:
        """(low, high) to represent; always finite, low ≤ high, not yet widened to hold zero.

        minmax: the extremes. percentile: the narrowest bin edges that keep `percentile` % of the
        elements, half of the rest cut from each tail (at most one bin, 1/128, wider than exact).
        """
        if method == "minmax" or percentile >= 100:
            return self.low, self.high
        tail = self.count * (100 - percentile) / 200
        below = np.cumsum(self.counts)  # elements up to and with this bin
        lower, upper = edges(self.bins)
        first = int(np.searchsorted(below, tail, side="right"))
        last = int(np.searchsorted(below, self.count - tail, side="left"))
        return max(self.low, float(lower[first])), min(self.high, float(upper[last]))

    def fraction_outside(self, low: float, high: float) -> float:
        """Share of elements whose whole bin lies outside [low, high]: what clipping there cuts."""
        lower, upper = edges(self.bins)
        outside = (np.maximum(lower, self.low) > high) | (np.minimum(upper, self.high) < low)
        return int(self.counts[outside].sum()) / self.count


@dataclass(frozen=True, eq=False)
class Statistics:
    """All tapped values by name, with the identity of the data they come from.

    `data` is the sum of the samples' sha256 digests modulo 2**256, in hex: it names the multiset of
    samples and, like the counts, is the same however the samples were ordered or split.
    """

    values: Mapping[str, ValueStatistics]
    samples: int
    data: str
    versions: Mapping[str, str] = field(default_factory=dict)  # tool -> version that ran the model

    def range(self, name: str, method: Method, percentile: float) -> tuple[float, float]:
        """See `ValueStatistics.range`. Raises InputRefused for a value that was not observed."""
        return self.value(name).range(method, percentile)

    def value(self, name: str) -> ValueStatistics:
        if name not in self.values:
            raise InputRefused(
                "no statistics were collected for this value",
                where=f"tensor {name!r}",
                hint="calibrate the same fused graph that is quantized",
            )
        return self.values[name]

    def warnings(self) -> list[str]:
        """What a reader should know before trusting the ranges."""
        found = []
        if self.samples < FEW_SAMPLES:
            found.append(
                f"only {self.samples} calibration samples; {FEW_SAMPLES} or more are usual"
            )
        for name, value in sorted(self.values.items()):
            if value.low == value.high:
                found.append(f"tensor {name!r} is constant ({value.low:g}) over all samples")
        return found


def data_digest(samples: Iterable[bytes]) -> str:
    """Combine sha256 digests of samples (32 bytes each) into `Statistics.data`."""
    return f"{sum(int.from_bytes(d, 'big') for d in samples) % _DIGEST_SPACE:064x}"


def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of both data sets together; the same bits for any order and grouping.

    Raises InputRefused unless both hold the same values.
    """
    if a.values.keys() != b.values.keys():
        odd = sorted(a.values.keys() ^ b.values.keys())
        raise InputRefused(
            f"only one side holds {odd[0]!r}",
            where="merging statistics",
            hint="both shards must be calibrated on the same graph",
        )
    return Statistics(
        values={name: _merge_value(a.values[name], b.values[name]) for name in sorted(a.values)},
        samples=a.samples + b.samples,
        data=data_digest((bytes.fromhex(a.data), bytes.fromhex(b.data))),
        versions={
            tool: _join(a.versions.get(tool), b.versions.get(tool))
            for tool in sorted(a.versions.keys() | b.versions.keys())
        },
    )


def save(statistics: Statistics, path: Path) -> None:
    """Write one safetensors file: the same statistics give the same bytes."""
    tensors: dict[str, np.ndarray] = {}
    for name, value in statistics.values.items():
        tensors[f"range/{name}"] = np.array([value.low, value.high], np.float32)
        tensors[f"bins/{name}"] = value.bins
        tensors[f"counts/{name}"] = value.counts
    metadata = {
        "schema": SCHEMA,
        "samples": statistics.samples,
        "data": statistics.data,
        "versions": dict(statistics.versions),
    }
    # one key: safetensors writes several in an order that differs from run to run
    header = {"optkit": json.dumps(metadata, sort_keys=True)}
    path.write_bytes(safetensors.numpy.save(tensors, header))


def load(path: Path) -> Statistics:
    """Read what `save` wrote. Raises IntegrityError if the file is not exactly that."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get("optkit", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _checked(metadata, tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"not a statistics file: {error}", where=str(path), hint="calibrate again"
        ) from error


def _checked(metadata: Any, tensors: Mapping[str, np.ndarray]) -> Statistics:
    if not isinstance(metadata, dict) or metadata.get("schema") != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    names = sorted(key.removeprefix("range/") for key in tensors if key.startswith("range/"))
    if len(tensors) != 3 * len(names):
        raise ValueError("tensors do not come in threes")
    values = {}
    for name in names:
        low, high = tensors[f"range/{name}"].astype(np.float32).tolist()
        bins, counts = tensors[f"bins/{name}"], tensors[f"counts/{name}"]
        sound = bins.dtype == np.uint16 and counts.dtype == np.int64 and bins.shape == counts.shape
        if not sound or bins.ndim != 1 or not bins.size or (np.diff(bins.astype(int)) <= 0).any():
            raise ValueError(f"histogram of {name!r} is malformed")
        if (counts <= 0).any() or not -np.inf < low <= high < np.inf:
            raise ValueError(f"numbers of {name!r} are out of range")
        values[name] = ValueStatistics(low, high, bins, counts)
    samples, data, versions = metadata["samples"], metadata["data"], metadata["versions"]
    if not isinstance(samples, int) or samples < 1 or not _DIGEST.fullmatch(data):
        raise ValueError("samples or data digest are malformed")
    return Statistics(values, samples, data, {str(k): str(v) for k, v in versions.items()})


def _merge_value(a: ValueStatistics, b: ValueStatistics) -> ValueStatistics:
    bins, place = np.unique(np.concatenate([a.bins, b.bins]), return_inverse=True)
    counts = np.zeros(bins.size, np.int64)
    np.add.at(counts, place, np.concatenate([a.counts, b.counts]))
    return ValueStatistics(min(a.low, b.low), max(a.high, b.high), bins, counts)


def _join(a: str | None, b: str | None) -> str:
    return ", ".join(sorted({v for joined in (a, b) if joined for v in joined.split(", ")}))
