"""Figures of a model without an artifact: the results of `bench` and `eval`."""

from __future__ import annotations

from optkit.documents.measured import (
    DifferenceFigures,
    FidelityFigures,
    LatencyFigures,
    Outcome,
    ScoreFigures,
)
from optkit.documents.record import AtLeastOne, Interval, Number, Object, Record, Rows
from optkit.documents.report import GateOutcome
from optkit.documents.result import CalibrationCheck
from optkit.documents.sizes import DeclaredSizes
from optkit.evidence import Evidence


class BatchSpeedup(Record):
    """Baseline latency / latency at one batch size."""

    batch: AtLeastOne
    value: Number
    ci95: Interval | None = None
    evidence: Evidence


class Sweep(Record):
    """The batch size at the knee (null for fewer than three sizes), and the best one within the
    limit."""

    knee: AtLeastOne | None = None
    limit_ms: Number | None = None
    best_under_limit: AtLeastOne | None = None


class BenchFigures(Record):
    """The figures of `bench`."""

    model: str
    target: str
    precision: str
    baseline: str
    latency: Rows[LatencyFigures]
    baseline_latency: Rows[LatencyFigures]
    speedup: Rows[BatchSpeedup]
    sweep: Sweep
    conditions: Object


class JudgedGates(Record):
    """The verdict of all gates that could be judged, and each of these gates."""

    verdict: Outcome
    rows: Rows[GateOutcome]
    reasons: Rows[str]


class EvalFigures(Record):
    """The figures of `eval`."""

    model: str
    target: str
    precision: str
    baseline: str
    accuracy: ScoreFigures | None = None
    baseline_accuracy: ScoreFigures | None = None
    drop: DifferenceFigures | None = None
    fidelity: FidelityFigures
    gate: JudgedGates
    calibration: CalibrationCheck | None = None
    sizes: DeclaredSizes | None = None
