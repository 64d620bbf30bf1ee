"""The report document: the result of a build with its details (`report.json`,
`optkit.report/v1`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import Field, RootModel

from optkit.craft.prediction.cost import per_million, price_of
from optkit.facts.assignment import Assignment
from optkit.facts.documents.pictures import WorstPictures
from optkit.facts.documents.record import Number, Object, Record, Rows
from optkit.facts.documents.report import (
    REPORT,
    BothSides,
    ExportComparison,
    LayerFidelity,
    MillionCost,
    NodeDecision,
    Provenance,
    Report,
    ServingCost,
    Simulation,
)
from optkit.facts.documents.result import Result
from optkit.facts.engines import FusedLayer, LandingRow
from optkit.facts.measurement import GateRow, Latencies, Latency
from optkit.ground.devices import target
from optkit.show.report.build_result import Findings, PrecisionResult

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Rewrites:
    """How the steps changed the graph: the JSON of their logs."""

    fusion: Mapping[str, object] = field(default_factory=dict)
    cast: Mapping[str, object] = field(default_factory=dict)
    preparation: Mapping[str, object] = field(default_factory=dict)
    quantization: Mapping[str, object] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=Assignment)


class _Rules(Record):
    """What is read of the log of fusion or preparation."""

    entries: list[Object] = Field(default_factory=list)


class _Cast(RootModel[Object]):
    """The log of the cast."""


class _Node(Record):
    activation: str | None = None


class _Range(Record):
    low: Number | None = None
    high: Number | None = None
    clipped: Number | None = None
    method: str | None = None


class _Quantization(Record):
    """What is read of the log of quantization."""

    nodes: dict[str, _Node] = Field(default_factory=dict)
    activations: dict[str, _Range] = Field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredParts:
    """The parts of a report that come from a run on the device, or replace it; its fields are those
    of the report."""

    gates: Rows[GateRow]
    latencies: BothSides[Rows[Latency]]
    latency_samples: BothSides[Rows[Number]]
    latency_rounds: BothSides[int]
    layers: BothSides[Rows[FusedLayer]]
    landing: Rows[LandingRow]
    landing_activations: Rows[LandingRow]
    cost: ServingCost | None
    conditions: Object


def compose(
    result: Result,
    measured: MeasuredParts,
    *,
    rewrites: Rewrites,
    provenance: Provenance,
    layer_fidelity: LayerFidelity | None = None,
    export: ExportComparison | None = None,
    worst: WorstPictures | None = None,
    simulation: Simulation | None = None,
) -> Report:
    return Report(
        schema=REPORT,
        result=result,
        **vars(measured),
        quantization=tuple(_decisions(rewrites)),
        fusion=tuple(_Rules.model_validate({**rewrites.fusion}).entries),
        cast=_Cast.model_validate(rewrites.cast).root,
        simulation=simulation,
        preparation=tuple(_Rules.model_validate({**rewrites.preparation}).entries),
        layer_fidelity=layer_fidelity,
        export=export,
        worst=worst,
        provenance=provenance,
    )


def finished(
    report: Report,
    result: Result,
    measured: MeasuredParts,
    provenance: Mapping[str, object],
    worst: WorstPictures | None,
) -> Report:
    """The report of a build that another machine has finished. `provenance`: the changed
    entries."""
    changed = report.provenance.model_copy(update=provenance)
    return report.model_copy(
        update={"result": result, **vars(measured), "worst": worst, "provenance": changed}
    )


def measured(
    result: Result,
    candidate: PrecisionResult,
    baseline: PrecisionResult | None,
    findings: Findings,
    latencies: Latencies,
    conditions: Object,
) -> MeasuredParts:
    landing = candidate.engine.landing if candidate.engine else None
    batch = result.latency.batch if result.latency else None
    times = (latencies.engine, latencies.baseline)
    shown = [[latency for latency in side if latency.batch == batch] for side in times]
    return MeasuredParts(
        gates=findings.verdict.rows if findings.verdict else (),
        latencies=_both(tuple, *times),
        latency_samples=_both(
            lambda side: tuple(ms for row in side for ms in row.samples_ms), *shown
        ),
        latency_rounds=_both(lambda side: sum(row.rounds or 0 for row in side), *shown),
        layers=_both(_layers, candidate, baseline),
        landing=landing.rows if landing else (),
        landing_activations=landing.activations if landing else (),
        cost=_cost(result),
        conditions=conditions,
    )


def _both(facts: Callable[[S], T], engine: S, baseline: S) -> BothSides[T]:
    return BothSides(engine=facts(engine), baseline=facts(baseline))


def _cost(result: Result) -> ServingCost | None:
    """Dollars for a million samples at the result's latency, of both models."""
    latency = result.latency
    if latency is None or result.target is None:
        return None
    price = price_of(target(result.target), {})
    if price is None:
        return None
    base = result.baseline.latency if result.baseline else None
    return ServingCost(
        evidence=latency.evidence,
        price=price,
        usd_per_million=MillionCost(
            engine=per_million(price.usd_per_hour, latency.throughput),
            baseline=per_million(price.usd_per_hour, base.throughput) if base else None,
        ),
    )


def _layers(side: PrecisionResult | None) -> tuple[FusedLayer, ...]:
    """The layer list with sizes where there is one (a dynamic engine's own has none)."""
    if side is None or side.engine is None:
        return ()
    return side.engine.static_layers or side.engine.layers


def _decisions(rewrites: Rewrites) -> Iterator[NodeDecision]:
    """Each considered node: its precision, and the range it was given or why it stayed float."""
    log = _Quantization.model_validate({**rewrites.quantization})
    for node, precision in rewrites.assignment.nodes.items():
        activation = log.nodes.get(node, _Node()).activation
        value = log.activations.get(activation or "", _Range())
        yield NodeDecision(
            node=node,
            precision=str(precision),
            reason=rewrites.assignment.reasons.get(node),
            activation=activation,
            low=value.low,
            high=value.high,
            clipped=value.clipped,
            method=value.method,
        )
