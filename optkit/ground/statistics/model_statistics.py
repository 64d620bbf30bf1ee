"""All observed values of a model over one set of samples, and the merge of two such sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from optkit.facts.dtypes import FLOATS
from optkit.facts.errors import InputRefused
from optkit.ground.statistics.values import ValueStatistics

FEW_SAMPLES = 32  # fewer than this and `warnings` says so
_HALF_LARGEST, _SMALLEST = FLOATS["float16"].largest, FLOATS["float32"].smallest

_DIGEST_SPACE = 1 << 256


@dataclass(frozen=True, eq=False)
class Statistics:
    """All observed values by name, with the identity of their data.

    `data` is the sum of the sha256 digests of the samples modulo 2**256, in hex. It identifies the
    multiset of samples and, like the counts, does not depend on their order or on shards.
    """

    values: Mapping[str, ValueStatistics]
    samples: int
    data: str
    versions: Mapping[str, str] = field(default_factory=dict)  # tool -> version that ran the model

    def value(self, name: str) -> ValueStatistics:
        """The statistics of one value. Raises InputRefused if it was not observed."""
        if name not in self.values:
            raise InputRefused(
                "no statistics were collected for this value",
                where=f"tensor {name!r}",
                hint="calibrate the same fused graph that is quantized",
            )
        return self.values[name]

    def unbounded(self) -> dict[str, str]:
        """The values that have no range, each with the reason."""
        reasons = ((name, value.unbounded) for name, value in self.values.items())
        return {name: reason for name, reason in reasons if reason is not None}

    def scaled(self, factors: Mapping[str, np.ndarray]) -> Statistics:
        """These statistics, with each value in `factors` divided by its factors [K]
        (`ValueStatistics.scaled`)."""
        changed = {name: self.value(name).scaled(s) for name, s in factors.items()}
        return replace(self, values={**self.values, **changed})

    def warnings(self) -> list[str]:
        """What a reader should know before trusting the ranges."""
        remarks = []
        if self.samples < FEW_SAMPLES:
            remarks.append(
                f"only {self.samples} calibration samples; {FEW_SAMPLES} or more are usual"
            )
        for name, value in sorted(self.values.items()):
            text = _remark(value)
            idle = name.endswith("]") and name.rpartition("[")[0] in self.values
            if text is not None and not idle:  # an expert that no sample reached is reported apart
                remarks.append(f"tensor {name!r} {text}")
        return remarks


def data_digest(samples: Iterable[bytes]) -> str:
    """Combine sha256 digests of samples (32 bytes each) into `Statistics.data`."""
    return f"{sum(int.from_bytes(d, 'big') for d in samples) % _DIGEST_SPACE:064x}"


def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of both sets together. The bits are the same for any order and grouping (for
    moments: if shards end at multiples of `CHUNK` samples).

    Raises InputRefused if they have different values.
    """
    if a.values.keys() != b.values.keys():
        odd = sorted(a.values.keys() ^ b.values.keys())
        raise InputRefused(
            f"only one of the statistics has {odd[0]!r}",
            where="merging statistics",
            hint="both shards must be calibrated on the same graph",
        )
    return Statistics(
        values={name: a.values[name].merged(b.values[name]) for name in sorted(a.values)},
        samples=a.samples + b.samples,
        data=data_digest((bytes.fromhex(a.data), bytes.fromhex(b.data))),
        versions={
            tool: _join(a.versions.get(tool), b.versions.get(tool))
            for tool in sorted(a.versions.keys() | b.versions.keys())
        },
    )


def remark(low: float, high: float) -> str | None:
    """A warning about numbers with these extremes, as the end of a sentence."""
    largest = max(abs(low), abs(high))
    if low == high:
        return f"is constant ({low:g})"
    if largest < _SMALLEST:
        return f"holds only denormal numbers (up to {largest:g}): its codes are zero"
    if largest > _HALF_LARGEST:
        return f"reaches {largest:g}: FP16 carries {_HALF_LARGEST:g}"
    return None


def _remark(value: ValueStatistics) -> str | None:
    if value.unbounded is not None:
        return f"has no range: {value.unbounded}"
    text = remark(value.low, value.high)
    return f"{text} over all samples" if value.low == value.high else text


def _join(a: str | None, b: str | None) -> str:
    return ", ".join(sorted({v for joined in (a, b) if joined for v in joined.split(", ")}))
