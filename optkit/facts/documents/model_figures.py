"""Figures of a model without an artifact: the results of `bench` and `eval`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Number, Object, Record, Rows
from optkit.facts.documents.result import CalibrationCheck
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.measurement import Basis, Difference, Fidelity, Latency, Score, Verdict
from optkit.facts.plain_record import AtLeastOne, PlainRecord

BENCH: Final = "optkit.bench/v1"
EVAL: Final = "optkit.eval/v1"


@dataclass(frozen=True)
class OneBatch(PlainRecord):
    """A figure at one batch size."""

    batch: AtLeastOne


@dataclass(frozen=True)
class BatchSpeedup(Difference, OneBatch):  # in this order `batch` comes first
    """Baseline latency / latency at one batch size."""

    basis: Basis | None = None
    """Always null."""


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
    """The precision of the baseline."""
    latency: Rows[Latency]
    baseline_latency: Rows[Latency]
    speedup: Rows[BatchSpeedup]
    sweep: Sweep
    conditions: Object
    """The state of the host during the run."""


class EvalFigures(Record):
    """The figures of `eval`."""

    schema_: Literal["optkit.eval/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed"]
    model: str
    target: str
    precision: str
    baseline: str
    """The precision of the baseline."""
    accuracy: Score | None = None
    baseline_accuracy: Score | None = None
    drop: Difference | None = None
    fidelity: Fidelity
    gate: Verdict
    calibration: CalibrationCheck | None = None
    sizes: DeclaredSizes | None = None
