"""The report document: the result and everything behind it, as one plain dict (`report.json`).

`optkit.report/v1` (documents/report.py):

    result               the result object
    gates                one row per gate: limit, value, interval, evidence, outcome, reason
    latencies            {"engine", "baseline"}: every batch size, quantiles without samples
    latency_samples      {"engine", "baseline"}: milliseconds of each run at the result's batch size
    latency_rounds       {"engine", "baseline"}: how many equally long rounds those are, in order
    layers               {"engine", "baseline"}: fused layers as the compiler lists them
    landing              one row per planned node; landing_activations: MatMuls of two activations
    quantization         one row per considered node: its precision, and the range or the reason
    fusion, cast         what was rewritten or declined; what became FP16
    preparation          values smoothed or equalized before quantization, or why not
    layer_fidelity       every quantized layer beside the FP32 graph's, and what each pair clips;
                         null where nothing was quantized
    cost                 dollars for a million samples at the result's latency, and the price; null
                         where one of them is not known
    conditions           the host while latency was measured
    provenance           recipe, digests, versions, steps (key, hit, seconds), build_spec by role;
                         machine: which one measured; finished: machine and versions, where another
                         one has finished it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from optkit.assignment import Assignment
from optkit.devices import target
from optkit.measurement import Latency
from optkit.prediction.cost import per_million, price_of
from optkit.report.result import Findings, Side, plain, without_samples

REPORT = "optkit.report/v1"

_NOTHING: Mapping[str, Any] = MappingProxyType(
    {"recipe": {}, "digests": {}, "versions": {}, "steps": [], "build_spec": {}}
)


@dataclass(frozen=True)
class Rewrites:
    """What was done to the graph, as the stages logged it (their logs' JSON)."""

    fusion: Mapping[str, Any] = field(default_factory=dict)
    cast: Mapping[str, Any] = field(default_factory=dict)
    preparation: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=Assignment)


def compose(
    result: Mapping[str, Any],
    figures: Mapping[str, Any],
    *,
    rewrites: Rewrites,
    provenance: Mapping[str, Any],
    layer_fidelity: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the document. `figures`: as `measured` gives them."""
    return plain(
        {
            "schema": REPORT,
            "result": dict(result),
            **figures,
            "quantization": _decisions(rewrites),
            "fusion": list(rewrites.fusion.get("entries", ())),
            "cast": dict(rewrites.cast),
            "preparation": list(rewrites.preparation.get("entries", ())),
            "layer_fidelity": layer_fidelity and dict(layer_fidelity),
            "provenance": {**_NOTHING, **provenance},
        }
    )


def finished(
    report: Mapping[str, Any],
    result: Mapping[str, Any],
    figures: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The document of a build that another machine has finished. `provenance`: what it adds."""
    told = report["provenance"]
    steps = [*told["steps"], *provenance["steps"]]
    return plain(
        {
            **report,
            "result": dict(result),
            **figures,
            "provenance": {**told, **provenance, "steps": steps},
        }
    )


def measured(
    result: Mapping[str, Any],
    candidate: Side,
    baseline: Side | None,
    findings: Findings,
    latencies: Mapping[str, Sequence[Latency]],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """The parts of the document that a run on the device gives, or stands for: gates, latencies,
    layers, landing, cost, conditions. `latencies`: "engine" and "baseline" → one per batch size."""
    sides = {"engine": candidate, "baseline": baseline}
    landing = candidate.engine.landing if candidate.engine else None
    batch = result["latency"] and result["latency"]["batch"]
    shown = {name: [one for one in latencies.get(name, ()) if one.batch == batch] for name in sides}
    return {
        "gates": [asdict(row) for row in findings.verdict.rows] if findings.verdict else [],
        "latencies": {
            name: [without_samples(one) for one in latencies.get(name, ())] for name in sides
        },
        "latency_samples": {
            name: [ms for one in found for ms in one.samples_ms] for name, found in shown.items()
        },
        "latency_rounds": {
            name: sum(one.rounds or 0 for one in found) for name, found in shown.items()
        },
        "layers": {name: _layers(side) for name, side in sides.items()},
        "landing": [asdict(row) for row in landing.rows] if landing else [],
        "landing_activations": [asdict(row) for row in landing.activations] if landing else [],
        "cost": _cost(result),
        "conditions": dict(conditions),
    }  # fmt: skip


def _cost(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Dollars for a million samples at the result's latency, of both models."""
    latency = result["latency"]
    price = price_of(target(result["target"]), {}) if latency is not None else None
    if price is None:
        return None
    base = (result["baseline"] or {}).get("latency")
    sides = {"engine": latency, "baseline": base}
    return {
        "evidence": latency["evidence"],
        "price": price.to_json(),
        "usd_per_million": {
            name: side and per_million(price, side["throughput"]) for name, side in sides.items()
        },
    }


def _layers(side: Side | None) -> list[dict[str, Any]]:
    """The layer list with sizes where there is one (a dynamic engine's own has none)."""
    if side is None or side.engine is None:
        return []
    return [asdict(layer) for layer in side.engine.static_layers or side.engine.layers]


def _decisions(rewrites: Rewrites) -> list[dict[str, Any]]:
    """Each considered node: its precision, and the range it was given or why it stayed float."""
    quantized = rewrites.quantization.get("nodes", {})
    ranges = rewrites.quantization.get("activations", {})
    rows = []
    for node, precision in rewrites.assignment.nodes.items():
        done = quantized.get(node, {})
        value = ranges.get(done.get("activation"), {})
        rows.append(
            {
                "node": node,
                "precision": precision,
                "reason": rewrites.assignment.reasons.get(node),
                "activation": done.get("activation"),
                "low": value.get("low"),
                "high": value.get("high"),
                "clipped": value.get("clipped"),
                "method": value.get("method"),
            }
        )
    return rows
