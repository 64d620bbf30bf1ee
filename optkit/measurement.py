"""Measurement: latency, fidelity and task score, each with evidence, sample size and interval.

These frozen records are used by benchmarking, prediction, gates and reports. The mathematics is in
`benchmarking/` and `prediction/`. The names of JSON fields are those of the result object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from typing import TYPE_CHECKING, Literal, NamedTuple

from optkit.codec import to_json
from optkit.evidence import Evidence
from optkit.sqnr import where, worst

if TYPE_CHECKING:  # a worker does not import pydantic
    from pydantic import JsonValue


class Interval(NamedTuple):
    """A closed interval, low ≤ high."""

    low: float
    high: float


Span = tuple[float, float]
"""The lowest and the highest value."""


@dataclass(frozen=True)
class GpuConditions:
    """The state of a GPU during a measurement. `throttled`: why its clock was held down; `others`:
    the number of processes that were on it before this one; `reason`: why the state is unknown.
    None: unknown."""

    clock_mhz: Span | None = None
    memory_clock_mhz: Span | None = None
    power_watts: Span | None = None
    temperature_c: Span | None = None
    throttled: tuple[str, ...] | None = None
    others: int | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The fields that the driver reports."""
        known = {name: to_json(value) for name, value in vars(self).items() if value is not None}
        return {**known, "reason": self.reason}


@dataclass(frozen=True)
class Conditions:
    """The machine while something was timed. None: the system does not say.

    cores                of which this process may use the first number, of the second in all
    load_average         of the last minute, before and after
    frequency_mhz        the clock of the fastest usable core
    other_cpu_share      share of the usable cores' time that other processes used
    neighbour_cpu_share  share of the time in which the other cores were busy; None: there are none
    steal_share          share of the usable cores' time that the hypervisor gave to other guests
    quota_share          share of the wall clock in which the quota of the control group let nothing
                         run
    throttles            times that heat slowed a usable core
    gpu                  None: none is timed
    """

    cores: tuple[int, int | None] | None = None
    governor: str | None = None
    load_average: tuple[float, ...] = ()
    frequency_mhz: Span | None = None
    other_cpu_share: float | None = None
    neighbour_cpu_share: float | None = None
    steal_share: float | None = None
    quota_share: float | None = None
    throttles: float | None = None
    gpu: GpuConditions | None = None

    def to_json(self) -> dict[str, JsonValue]:
        return {name: to_json(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Latency:
    """Latency of one model at one batch size, milliseconds per call.

    measured: `p50_ms`… are sample quantiles, `ci95_ms` the 95 % interval of the median,
    `samples_ms` the runs. predicted: `p50_ms` is the prediction, `band` the interval that contains
    nine of ten measurements, `at_least_ms` the time at the device's peak rates.
    `marks`: why the run is not reliable, in words; a latency with marks is measured again.
    `note`: other facts for the reader. `measured_at`: when timing began, ISO 8601 in UTC, seconds;
    `machine`: the name of the CPU or GPU; `from_store`: it was measured before the command that
    shows it. These three are None if nothing was measured.
    """

    evidence: Evidence
    p50_ms: float
    batch: int
    throughput: float  # in samples per second
    p90_ms: float | None = None  # only from 100 runs on
    p95_ms: float | None = None  # from 200
    p99_ms: float | None = None  # from 1,000
    min_ms: float | None = None
    ci95_ms: Interval | None = None
    band: Interval | None = None
    at_least_ms: float | None = None
    runs: int | None = None
    rounds: int | None = None  # equally long bursts of runs, in order
    samples_ms: tuple[float, ...] = ()
    outliers: int | None = None  # runs far above the upper quartile; they count like all others
    # difference of the highest and the lowest lasting level of the rounds, as a share
    drift: float | None = None
    warmup_runs: int | None = None
    steady: bool | None = None  # whether the warm-up became steady; None: too few runs to tell
    # on a device: "launched" or "recorded" (as a CUDA graph) → medians of `runtimes.Phases`, and
    # the number of runs
    phases: Mapping[str, Mapping[str, float]] | None = None
    marks: tuple[str, ...] = ()
    note: str | None = None
    measured_at: str | None = None
    machine: str | None = None
    from_store: bool | None = None


@dataclass(frozen=True)
class Latencies:
    """The latencies of candidate and baseline, one per batch size; empty if none is known."""

    engine: Sequence[Latency] = ()
    baseline: Sequence[Latency] = ()


@dataclass(frozen=True)
class Basis:
    """How an interval was made. `method`: "score" (Wilson), "paired score" (Tango) or "bootstrap";
    `units`: the number of independent units that it counts. These are samples, groups of samples,
    or, where neighbours in the order of the samples are alike, as many samples as these are worth
    ("alike samples")."""

    method: str
    units: int
    kind: Literal["samples", "groups", "alike samples"]


@dataclass(frozen=True)
class Score:
    """A task metric over N samples. For a paired comparison it has `per_sample`, whose mean is the
    value. A metric that is defined only for a whole set has `replicates` instead: its values on the
    bootstrap resamples; its `slices`, if they were computed, are the same metric of parts of what
    is scored, such as the boxes of one class. `groups`: the number of each sample's group, if
    samples belong together (empty: each stands for itself); `basis`: how `ci95` was made."""

    evidence: Evidence
    metric: str
    value: float
    ci95: Interval
    samples: int
    proportion: bool  # every per-sample score is 0 or 1
    per_sample: tuple[float, ...] = ()
    replicates: tuple[float, ...] = ()
    lower_is_better: bool = False
    slices: Mapping[str, Score] = field(default_factory=dict)
    groups: tuple[int, ...] = ()
    basis: Basis | None = None


@dataclass(frozen=True)
class Scores:
    """The task scores of a build; None: this model was not evaluated."""

    candidate: Score | None = None
    baseline: Score | None = None
    reference: Score | None = None

    @property
    def pair(self) -> tuple[Score, Score] | None:
        """Baseline and candidate; None if one of them was not evaluated."""
        if self.baseline is None or self.candidate is None:
            return None
        return self.baseline, self.candidate


@dataclass(frozen=True)
class ChannelSpread:
    """SQNR in dB of the channels of one axis, each by itself: the least, the 5th percentile and the
    median; None: no error. `count`: of the channels with a signal."""

    axis: int
    count: int
    least: float | None
    p5: float | None
    median: float | None


@dataclass(frozen=True)
class OutputFidelity:
    """Agreement of one output, or of a part of it whose values have a unit of their own.

    `part`: the channels (`benchmarking.output_parts`); None: the whole output. `equal`: the share
    of equal values, only for integers and bools. `silent`: the reference is zero here; the SQNR is
    that of the error beside the signal of all outputs. `constant`: the compared graph has lost 99 %
    of the variance of the reference.
    """

    output: str
    part: str | None = None
    sqnr_db: float | None = None  # None: bit-equal, or no floats
    cosine: float | None = None
    max_abs_error: float = 0.0
    ci95: Interval | None = None
    equal: float | None = None
    silent: Literal[True] | None = None
    constant: Literal[True] | None = None
    channels: ChannelSpread | None = None


GIVEN_GRAPH = "the given graph"
"""The reference of a fidelity to a graph that another tool has quantized."""


@dataclass(frozen=True)
class Fidelity:
    """Agreement of the outputs with those of a reference graph on the same inputs. SQNR in dB
    (10·log10 of signal power divided by error power, over all outputs and samples) with its 95 %
    interval (None: too few samples); cosine over flattened outputs. `all_zero`: True if both graphs
    return only zeros on these inputs, so nothing was compared. `varying`: the share of the power of
    the reference's outputs that differs between samples (None: not known). `not_finite`: for how
    many samples the compared graph returns NaN or infinities, which count as 0, where the reference
    does not. `outputs`: the same of each output and of its parts; what is judged is the `worst`."""

    evidence: Evidence
    reference: str
    sqnr_db: float | None  # None: bit-equal (infinite)
    cosine: float
    max_abs_error: float
    samples: int
    ci95: Interval | None = None
    all_zero: Literal[True] | None = None
    varying: float | None = None
    not_finite: int | None = None
    outputs: tuple[OutputFidelity, ...] = ()

    @property
    def worst(self) -> OutputFidelity:
        """The output, or the part of one, with the least SQNR; the pooled figures, with an empty
        name, if no output has one."""
        return worst(self.outputs) or OutputFidelity(
            "", None, self.sqnr_db, self.cosine, self.max_abs_error, self.ci95
        )

    @property
    def where(self) -> str:
        """The name of the worst output; empty if there is only one."""
        return where(self.outputs)


@dataclass(frozen=True)
class Difference:
    """A paired difference or ratio (drop, speedup) with its 95 % interval. `basis`: how the
    interval of a drop was made; None for other differences, and if both are the same model."""

    value: float
    ci95: Interval | None
    evidence: Evidence
    basis: Basis | None = None

    def below(self, limit: float) -> bool:
        """Whether the whole interval is below. For a prediction, whose band is too wide for this
        question, the value decides."""
        sure = None if self.evidence is Evidence.PREDICTED else self.ci95
        return (sure.high if sure else self.value) < limit


@dataclass(frozen=True)
class Deviation:
    """`noise`: error power over signal power, 0 for equal outputs. `divergence`: nats, None where
    no output has a last axis of two or more, or one distribution excludes what the other holds."""

    noise: float
    divergence: float | None
    samples: int

    @property
    def sqnr_db(self) -> float | None:
        """None: the outputs are equal."""
        return -10 * log10(self.noise) if self.noise > 0 else None


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes. measured: the peak that loading and running it adds; compiled: what
    its compiler states for weights and activations at their largest, without a run. `marks`: why
    the measurement was no good one, in words.
    """

    evidence: Evidence
    bytes: int
    marks: tuple[str, ...] = ()


Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class GateRow:
    """One gate: its limit, the value, the outcome, and the reason in words."""

    gate: str  # e.g. "max_drop"
    limit: float
    value: float | None
    ci95: Interval | None
    evidence: Evidence | None
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Verdict:
    """All gates together: fail if one fails, otherwise inconclusive if one is, otherwise pass."""

    verdict: Outcome
    rows: tuple[GateRow, ...] = ()
    reasons: tuple[str, ...] = field(default=())
