"""Figures with their evidence, in results, reports, plans and searches."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.documents.record import (
    AtLeastOne,
    Count,
    Interval,
    Number,
    Record,
    Rows,
    Share,
    absent,
    said,
)
from optkit.evidence import Evidence
from optkit.sqnr import where, worst

Outcome = Literal["pass", "fail", "inconclusive"]


class PhaseTimes(Record):
    """Medians in milliseconds: upload, compute and download, and the host's time to enqueue."""

    upload_ms: Number
    compute_ms: Number
    download_ms: Number
    enqueue_ms: Number
    runs: AtLeastOne


class DevicePhases(Record):
    """Phases on a device: with single kernel launches, and recorded as a CUDA graph."""

    launched: PhaseTimes
    recorded: PhaseTimes


class LatencyFigures(Record):
    """Latency of one model at one batch size, without the single runs."""

    evidence: Evidence
    p50_ms: Annotated[
        Number,
        said("Median of the runs; for a prediction, the value of the model."),
    ]
    batch: AtLeastOne
    throughput: Annotated[Number, said("Samples per second.")]
    p90_ms: Annotated[Number | None, said("Only from 100 runs on.")] = None
    p95_ms: Annotated[Number | None, said("Only from 200 runs on.")] = None
    p99_ms: Annotated[Number | None, said("Only from 1,000 runs on.")] = None
    min_ms: Number | None = None
    ci95_ms: Annotated[
        Interval | None, said("95 % interval of the median, if it was measured.")
    ] = None
    band: Annotated[
        Interval | None,
        said("Interval of a prediction that contains nine of ten measurements, in ms."),
    ] = None
    at_least_ms: Annotated[
        Number | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="A bound at peak rates that no kernels can beat, where predicted. "
            "Milliseconds.",
        ),
    ] = None
    runs: Count | None = None
    outliers: Annotated[
        Count | None,
        said("Runs above the upper quartile plus three interquartile ranges; they count."),
    ] = None
    drift: Annotated[
        Number | None,
        said("Difference of the highest and the lowest lasting level, as a share."),
    ] = None
    warmup_runs: Count | None = None
    steady: Annotated[
        bool | None,
        said("Whether the warm-up became steady; null: too few runs, or not measured."),
    ] = None
    phases: DevicePhases | None = None
    marks: Annotated[
        Rows[str],
        said("The reasons why the run is not reliable; empty for a good run."),
    ] = ()  # the first artifacts do not have this key
    note: str | None = None
    measured_at: Annotated[
        str | None,
        said("When timing began, in UTC: 2026-11-20T14:03:12Z; null if not measured."),
    ] = None
    machine: Annotated[str | None, said("The name of the CPU or GPU on which it was measured.")] = (
        None
    )
    from_store: Annotated[
        bool | None,
        said("Whether it is older than this command; null if nothing was measured."),
    ] = None


class IntervalBasis(Record):
    """How the interval of a score or of a drop was made, and what it counts as independent."""

    method: Annotated[str, said('"score" (Wilson), "paired score" (Tango) or "bootstrap".')]
    units: Annotated[
        Count, said("The number of samples, of groups, or of samples that alike ones are worth.")
    ]
    kind: Literal["samples", "groups", "alike samples"]


class ScoreFigures(Record):
    """A task metric, without the scores of single samples."""

    evidence: Evidence
    metric: str
    value: Number
    ci95: Interval
    samples: Count
    proportion: Annotated[bool, said("Every per-sample score is 0 or 1.")]
    lower_is_better: bool = False  # the first artifacts do not have this key
    basis: Annotated[
        IntervalBasis | SkipJsonSchema[None],
        Field(exclude_if=absent, description="How `ci95` was made; absent in older artifacts."),
    ] = None


class ChannelSpreadFigures(Record):
    """SQNR in dB of the channels of one axis, each by itself. Null if there is no error."""

    axis: AtLeastOne
    count: Annotated[Count, said("Of the channels with a signal.")]
    least: Number | None = None
    p5: Annotated[Number | None, said("5th percentile.")] = None
    median: Number | None = None


class OutputFidelityFigures(Record):
    """Agreement of one output, or of a part of it whose values have a unit of their own, such as
    boxes beside scores."""

    output: Annotated[str, said("Empty: all outputs together.")]
    part: Annotated[str | None, said("The channels; null for the whole output.")] = None
    sqnr_db: Annotated[
        Number | None, said("Null if bit-equal, and for integers beside floats.")
    ] = None
    cosine: Number | None = None
    max_abs_error: Number
    ci95: Interval | None = None
    equal: Annotated[Share | None, said("Share of equal values, only for integers.")] = None
    silent: Annotated[
        bool | None,
        said("True: the reference is zero here; the SQNR is relative to all outputs' signal."),
    ] = None
    constant: Annotated[
        bool | None, said("True: the variance of the reference is lost in this graph.")
    ] = None
    channels: Annotated[
        ChannelSpreadFigures | None, said("Null for a part, and without an axis of fixed size.")
    ] = None


class FidelityFigures(Record):
    """Agreement of the outputs with a reference graph on the same inputs. The figures are pooled
    over all outputs; what is judged is the worst of `outputs`."""

    evidence: Evidence
    reference: str
    sqnr_db: Annotated[Number | None, said("Null if the outputs are bit-equal.")] = None
    cosine: Number
    max_abs_error: Number
    samples: Count
    ci95: Interval | None = None
    all_zero: Annotated[
        Literal[True] | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Both graphs return only zeros on these inputs, so nothing was compared.",
        ),
    ] = None
    varying: Annotated[
        Number | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="The share of the power of the reference's outputs that differs between "
            "samples, 0 to 1. Near 0 the outputs hardly depend on the input, and the SQNR says "
            "little.",
        ),
    ] = None
    not_finite: Annotated[
        Count | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Samples for which this graph returns NaN or an infinity, and the "
            "reference does not. These values count as 0.",
        ),
    ] = None
    outputs: Annotated[
        Rows[OutputFidelityFigures],
        Field(
            exclude_if=not_,  # older artifacts have none
            description="Each output, and the parts of an output whose values have other units.",
        ),
    ] = ()

    @property
    def worst(self) -> OutputFidelityFigures:
        """As `measurement.Fidelity.worst`."""
        return worst(self.outputs) or OutputFidelityFigures(
            output="", sqnr_db=self.sqnr_db, cosine=self.cosine, max_abs_error=self.max_abs_error,
            ci95=self.ci95,
        )  # fmt: skip

    @property
    def where(self) -> str:
        """As `measurement.Fidelity.where`."""
        return where(self.outputs)


class DifferenceFigures(Record):
    """A paired difference or ratio with its 95 % interval. For a prediction it is the interval that
    contains nine of ten measurements."""

    value: Number
    ci95: Interval | None = None
    evidence: Evidence
    basis: Annotated[
        IntervalBasis | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="How the interval of a drop was made; absent for a speedup, and in older "
            "artifacts.",
        ),
    ] = None


class SampleSet(Record):
    """The samples of a calibration or an evaluation."""

    samples: Count
    source: str | None = None


class BuildFacts(Record):
    """The size of the engine of a build, its data, and when and where its latency was measured."""

    engine_bytes: Count | None = None
    calibration: SampleSet | None = None
    evaluation: SampleSet | None = None
    measured_at: Annotated[str | None, said("In UTC; null if not measured.")] = None
    machine: str | None = None
    from_store: bool | None = None


class GateVerdict(Record):
    """All gates together."""

    verdict: Outcome
    reasons: Rows[str]
