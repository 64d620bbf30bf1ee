"""Steps of the precision search: which layers there are, and what each costs in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit.steps.files import (
    GRAPH,
    STATISTICS,
    Inputs,
    Params,
    Progress,
    cpu,
    dtype_of,
    rules_of,
    simulated,
)


def survey(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """The layers that each precision could quantize, what they read and weigh, for a search.

    params: rules (precision → placement rules as JSON), carrier, axes.
    """
    from dataclasses import asdict

    from optkit import graph
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.placement.weighted_nodes import uncast
    from optkit.statistics import load

    rules = rules_of(params["rules"])
    values = load(inputs["statistics"] / STATISTICS).values if "statistics" in inputs else {}
    unbounded = {name: value.unbounded for name, value in values.items() if value.unbounded}
    model = graph.load(inputs["graph"] / GRAPH)
    found = {
        name: assign(model, name, {name: own}, params["carrier"], unbounded=unbounded)
        for name, own in rules.items()
    }
    costs = graph.costs(model, params["axes"])
    layers = []
    for node in model.graph:
        able = [name for name, own in found.items() if node.name in own.quantized()]
        if able and node.inputs[0] is not None:
            reads = str(uncast(node.inputs[0]).name)
            cost = asdict(costs[str(node.name)])
            layers.append({"node": node.name, "reads": reads, "cost": cost, "precisions": able})
    reasons = {node: why for own in found.values() for node, why in own.reasons.items()}
    named = {row["node"] for row in layers}
    return {"layers": layers, "reasons": {n: r for n, r in reasons.items() if n not in named}}


def sensitivity(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """How far the outputs move when one group of layers alone is quantized, for each group.

    params: precision, rules, carrier, groups (node names), method, percentile, settings
    (quantization), samples, batch.
    """
    import tempfile

    from optkit import graph
    from optkit.assignment import Assignment
    from optkit.benchmarking.sensitivity import record
    from optkit.data.spool import Spool
    from optkit.quantization.choose_qparams import choose_qparams
    from optkit.quantization.qdq import apply as qdq
    from optkit.recipe import Quantization
    from optkit.statistics import load

    path, groups, precision = inputs["graph"] / GRAPH, params["groups"], params["precision"]
    rules, settings = rules_of(params["rules"]), Quantization.model_validate(params["settings"])
    statistics = load(inputs["statistics"] / STATISTICS) if "statistics" in inputs else None
    dtype = dtype_of(params["carrier"])
    progress("finding scales and codes", 0.0)
    qparams = choose_qparams(
        graph.load(path), Assignment({str(n): precision for group in groups for n in group}),
        statistics, rules, settings,
        method=params["method"], percentile=params["percentile"], carrier=dtype,
    )  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder, cpu(path, level="basic") as reference:
        feeds = (feed for feed, _ in Spool(inputs["samples"]).batches(params["batch"]))
        recorded = record(reference, feeds, samples=params["samples"])
        for index, group in enumerate(groups):
            progress(f"layer {index + 1} of {len(groups)}", index / len(groups))
            variant = graph.load(path)
            alone = Assignment({str(node): precision for node in group})
            qdq.apply(variant, qparams, alone, rules, statistics, scale_dtype=dtype, simulated=True)
            graph.save(variant, Path(folder) / GRAPH)
            with cpu(Path(folder) / GRAPH, level="basic") as candidate:
                rows.append(recorded.deviation(candidate).to_json())
    return {"rows": rows}


def deviate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """How far a graph's outputs are from the FP32 fused graph's on the first samples.

    params: file, evidence, samples, batch.
    """
    from optkit.benchmarking.sensitivity import record
    from optkit.data.spool import Spool

    feeds = (feed for feed, _ in Spool(inputs["samples"]).batches(params["batch"]))
    with cpu(inputs["reference"] / GRAPH, level="basic") as reference:
        recorded = record(reference, feeds, samples=params["samples"])
    with simulated(inputs["graph"] / params["file"], params["evidence"]) as candidate:
        return {"deviation": recorded.deviation(candidate).to_json()}
