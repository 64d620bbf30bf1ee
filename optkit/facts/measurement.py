"""Measurement: latency, fidelity and task score, each with evidence, sample size and interval.

These frozen records are used by benchmarking, prediction, gates and reports. The mathematics is in
`benchmarking/` and `prediction/`. The names of JSON fields are those of the result object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from operator import not_
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from optkit.facts.codec import to_json
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import (
    BESIDE,
    SELDOM,
    UNCHECKED,
    AtLeastOne,
    Count,
    Number,
    PlainRecord,
    Share,
)

if TYPE_CHECKING:  # a worker does not import pydantic
    from pydantic import JsonValue


class Interval(NamedTuple):
    """A closed interval, low ≤ high."""

    low: Number
    high: Number


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
class Phases(PlainRecord):
    """The phases of one run on a device, in milliseconds, as trtexec reports them: upload of
    inputs, compute and download of outputs, each timed in the stream; and the host's time to
    enqueue."""

    upload_ms: Number
    compute_ms: Number
    download_ms: Number
    enqueue_ms: Number


@dataclass(frozen=True)
class PhaseTimes(Phases):
    """The medians of so many runs."""

    runs: AtLeastOne


@dataclass(frozen=True)
class DevicePhases(PlainRecord):
    """Phases on a device: with single kernel launches, and recorded as a CUDA graph."""

    launched: PhaseTimes
    recorded: PhaseTimes


@dataclass(frozen=True)
class Latency(PlainRecord):
    """Latency of one model at one batch size, milliseconds per call. A latency with marks is
    measured again."""

    evidence: Evidence
    p50_ms: Number
    """Median of the runs; for a prediction, the value of the model."""
    batch: AtLeastOne
    throughput: Number
    """Samples per second."""
    p90_ms: Number | None = None
    """Only from 100 runs on."""
    p95_ms: Number | None = None
    """Only from 200 runs on."""
    p99_ms: Number | None = None
    """Only from 1,000 runs on."""
    min_ms: Number | None = None
    ci95_ms: Interval | None = None
    """95 % interval of the median, if it was measured."""
    band: Interval | None = None
    """Interval of a prediction that contains nine of ten measurements, in ms."""
    at_least_ms: Number | None = field(default=None, metadata=SELDOM)
    """A bound at peak rates that no kernels can beat, where predicted. Milliseconds."""
    runs: Count | None = None
    rounds: int | None = field(
        default=None, metadata=BESIDE
    )  # equally long bursts of runs, in order
    samples_ms: Annotated[tuple[float, ...], UNCHECKED] = field(default=(), metadata=BESIDE)
    outliers: Count | None = None
    """Runs above the upper quartile plus three interquartile ranges; they count."""
    drift: Number | None = None
    """Difference of the highest and the lowest lasting level of the rounds, as a share."""
    warmup_runs: Count | None = None
    steady: bool | None = None
    """Whether the warm-up became steady; null: too few runs, or not measured."""
    phases: DevicePhases | None = None
    marks: tuple[str, ...] = ()  # the first artifacts do not have this key
    """The reasons why the run is not reliable; empty for a good run."""
    note: str | None = None
    measured_at: str | None = None
    """When timing began, in UTC: 2026-11-20T14:03:12Z; null if not measured."""
    machine: str | None = None
    """The name of the CPU or GPU on which it was measured."""
    from_store: bool | None = None
    """Whether it is older than this command; null if nothing was measured."""


@dataclass(frozen=True)
class Latencies:
    """The latencies of candidate and baseline, one per batch size; empty if none is known."""

    engine: Sequence[Latency] = ()
    baseline: Sequence[Latency] = ()


@dataclass(frozen=True)
class Basis(PlainRecord):
    """How the interval of a score or of a drop was made, and what it counts as independent."""

    method: str
    """"score" (Wilson), "paired score" (Tango) or "bootstrap"."""
    units: Count
    """The number of samples, of groups, or of samples that alike ones are worth."""
    kind: Literal["samples", "groups", "alike samples"]


@dataclass(frozen=True)
class Score(PlainRecord):
    """A task metric over N samples. For a paired comparison it has `per_sample`, whose mean is the
    value. A metric that is defined only for a whole set has `replicates` instead: its values on the
    bootstrap resamples; its `slices`, if they were computed, are the same metric of parts of what
    is scored, such as the boxes of one class. `groups`: the number of each sample's group, if
    samples belong together (empty: each stands for itself)."""

    evidence: Evidence
    metric: str
    value: Number
    ci95: Interval
    samples: Count
    proportion: bool
    """Every per-sample score is 0 or 1."""
    per_sample: Annotated[tuple[float, ...], UNCHECKED] = field(default=(), metadata=BESIDE)
    replicates: Annotated[tuple[float, ...], UNCHECKED] = field(default=(), metadata=BESIDE)
    lower_is_better: bool = False  # the first artifacts do not have this key
    slices: Annotated[Mapping[str, Score], UNCHECKED] = field(default_factory=dict, metadata=BESIDE)
    groups: Annotated[tuple[int, ...], UNCHECKED] = field(default=(), metadata=BESIDE)
    basis: Basis | None = field(default=None, metadata=SELDOM)
    """How `ci95` was made; absent in older artifacts."""


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
class ChannelSpread(PlainRecord):
    """SQNR in dB of the channels of one axis, each by itself. Null if there is no error."""

    axis: AtLeastOne
    """The number of the axis."""
    count: Count
    """Of the channels with a signal."""
    least: Number | None
    p5: Number | None
    """5th percentile."""
    median: Number | None


@dataclass(frozen=True)
class OutputFidelity(PlainRecord):
    """Agreement of one output, or of a part of it whose values have a unit of their own, such as
    boxes beside scores (`benchmarking.output_parts`)."""

    output: str
    """Empty: all outputs together."""
    part: str | None = None
    """The channels; null for the whole output."""
    sqnr_db: Number | None = None
    """Null if bit-equal, and for integers beside floats."""
    cosine: Number | None = None
    max_abs_error: Number = 0.0
    ci95: Interval | None = None
    equal: Share | None = None
    """Share of equal values, only for integers."""
    silent: Literal[True] | None = None
    """True: the reference is zero here; the SQNR is relative to all outputs' signal."""
    constant: Literal[True] | None = None
    """True: 99 % of the variance of the reference is lost in this graph."""
    channels: ChannelSpread | None = None
    """Null for a part, and without an axis of fixed size."""

    @property
    def called(self) -> str:
        """`output 'pred', channels 4 to 8`."""
        return ", ".join(filter(None, (f"output {self.output!r}", self.part)))


GIVEN_GRAPH = "the given graph"
"""The reference of a fidelity to a graph that another tool has quantized."""


@dataclass(frozen=True)
class Fidelity(PlainRecord):
    """Agreement of the outputs with a reference graph on the same inputs. The figures are pooled
    over all outputs and samples; what is judged is the worst of `outputs`. SQNR in dB:
    10·log10 of signal power divided by error power."""

    evidence: Evidence
    reference: str
    sqnr_db: Number | None
    """Null if the outputs are bit-equal."""
    cosine: Number
    max_abs_error: Number
    samples: Count
    ci95: Interval | None = None
    all_zero: Literal[True] | None = field(default=None, metadata=SELDOM)
    """Both graphs return only zeros on these inputs, so nothing was compared."""
    varying: Number | None = field(default=None, metadata=SELDOM)
    """The share of the power of the reference's outputs that differs between samples, 0 to 1. Near
    0 the outputs hardly depend on the input, and the SQNR says little."""
    not_finite: Count | None = field(default=None, metadata=SELDOM)
    """Samples for which this graph returns NaN or an infinity, and the reference does not. These
    values count as 0."""
    outputs: tuple[OutputFidelity, ...] = field(default=(), metadata={"exclude_if": not_})
    """Each output, and the parts of an output whose values have other units."""

    @property
    def worst(self) -> OutputFidelity:
        """The output, or the part of one, with the least SQNR; the pooled figures, with an empty
        name, if no output has one."""
        pooled = OutputFidelity("", None, self.sqnr_db, self.cosine, self.max_abs_error, self.ci95)
        return self._worst or pooled

    @property
    def where(self) -> str:
        """The name of the worst output; empty if there is only one."""
        worst = self._worst if len(self.outputs) > 1 else None
        return "" if worst is None else worst.called

    @property
    def _worst(self) -> OutputFidelity | None:
        known = ((one.sqnr_db, one) for one in self.outputs if one.sqnr_db is not None)
        return min(known, key=lambda one: one[0], default=(0.0, None))[1]


@dataclass(frozen=True)
class Difference(PlainRecord):
    """A paired difference or ratio (drop, speedup) with its 95 % interval. For a prediction it is
    the interval that contains nine of ten measurements."""

    value: Number
    ci95: Interval | None
    evidence: Evidence
    basis: Basis | None = field(default=None, metadata=SELDOM)
    """How the interval of a drop was made; absent for a speedup, and in older artifacts."""

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
class GateRow(PlainRecord):
    """One gate: its limit, the value, the outcome, and the reason in words."""

    gate: str  # e.g. "max_drop"
    limit: Number
    value: Number | None
    ci95: Interval | None
    evidence: Evidence | None
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Verdict(PlainRecord):
    """All gates together: fail if one fails, otherwise inconclusive if one is, otherwise pass."""

    verdict: Outcome
    rows: tuple[GateRow, ...] = ()
    reasons: tuple[str, ...] = ()
