"""Figures of a model without an artifact: the results of `bench` and `eval`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.documents.measured import (
    DifferenceFigures,
    FidelityFigures,
    IntervalBasis,
    LatencyFigures,
    Outcome,
    ScoreFigures,
)
from optkit.documents.record import AtLeastOne, Number, Object, Record, Rows, said
from optkit.documents.report import GateOutcome
from optkit.documents.result import CalibrationCheck
from optkit.documents.sizes import DeclaredSizes

BENCH: Final = "optkit.bench/v1"
EVAL: Final = "optkit.eval/v1"


class OneBatch(Record):
    """A figure at one batch size."""

    batch: AtLeastOne


class BatchSpeedup(DifferenceFigures, OneBatch):  # in this order `batch` comes first
    """Baseline latency / latency at one batch size."""

    basis: Annotated[IntervalBasis | None, said("Always null.")] = None


class Sweep(Record):
    """The batch size at the knee (null for fewer than three sizes), and the best one within the
    limit."""

    knee: AtLeastOne | None = None
    limit_ms: Number | None = None
    best_under_limit: AtLeastOne | None = None


class BenchFigures(Record):
    """The figures of `bench`."""

    schema_: Literal["optkit.bench/v1"] = Field(alias="schema")
    status: Literal["ok"]
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

    schema_: Literal["optkit.eval/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed"]
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
