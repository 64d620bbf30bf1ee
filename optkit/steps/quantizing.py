"""Steps from a graph and its data to a quantized graph."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.steps.comparing import TOLERANCE, difference
from optkit.steps.files import (
    GRAPH,
    SIMULATION,
    STATISTICS,
    Inputs,
    Params,
    Progress,
    cpu,
    dtype_of,
    rules_of,
    signature,
)

if TYPE_CHECKING:
    from optkit.statistics import Statistics


def calibrate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 graph and samples → statistics of every value that any backend family would quantize.

    params: batch, families (by backend: precision → placement rules as JSON), moments; memory;
    checkpoint: a folder outside the step's own, in which a killed run finds how far it was; shard
    [i, n]: only the i-th of n parts of the samples, which may be none. inputs shard-0, shard-1, …:
    what that made of each; then they are merged, to the bits of one run.
    """
    import os
    import tempfile

    from optkit import calibration, graph
    from optkit.data.spool import Spool
    from optkit.execute.local import resident, trim
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.qdq import apply as qdq
    from optkit.statistics import load, merge, merged_taps, save

    made = [path / STATISTICS for name, path in inputs.items() if name.startswith("shard-")]
    if made:
        statistics = reduce(merge, [load(file) for file in made if file.exists()])
        save(statistics, out / STATISTICS)
        return _calibrated(statistics)
    samples = Spool(inputs["samples"])
    index, count = params.get("shard", (0, 1))
    feeds = calibration.SpooledFeeds(samples, params["batch"], (index, count))
    if not feeds.samples and len(samples):
        return {}
    model = graph.load(inputs["graph"] / GRAPH)
    taps = []
    for family in params["families"]:
        rules = rules_of(family)
        for precision in rules:
            assignment = assign(model, precision, rules, "fp32")
            taps += qdq.taps(model, assignment, rules, moments=params["moments"])
    taps = merged_taps(taps)
    names = [tap.name for tap in taps]
    fills = calibration.fills(model, names)
    kept = Path(params["checkpoint"]) if params.get("checkpoint") else None
    with tempfile.TemporaryDirectory() as folder:
        tapped = Path(folder) / GRAPH
        # beside the graph: the runtime maps them, and no copy of them is made on the way
        graph.save(graph.expose(model, names, alone=True), tapped, inline_limit=0)
        del model
        trim()  # now, not after the peak: nodes and values refer to each other
        with cpu(tapped, pooled=False) as session:
            free = params["memory"] - resident(os.getpid())
            statistics = calibration.observe(
                session,
                feeds,
                taps,
                # half: the runtime holds inner values, too, and the samples are mapped
                memory_bytes=max(free // 2, 0),
                progress=progress,
                fills=fills,
                first=feeds.first,
                total=feeds.samples,
                checkpoint=kept,
            )
    save(statistics, out / STATISTICS)
    return _calibrated(statistics)


def _calibrated(statistics: Statistics) -> dict[str, Any]:
    return {
        "values": len(statistics.values),
        "samples": statistics.samples,
        "warnings": statistics.warnings(),
    }


def prepare(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 graph and its statistics → the same function in a form that quantizes better, and the
    statistics of that form.

    params: precision, carrier, rules (precision → placement rules as JSON), settings; inputs, axes,
    compare and uncompared: as of `fuse`.
    """
    from optkit import graph
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.rescaling import rescale as rescaling
    from optkit.recipe import Quantization
    from optkit.statistics import load, save

    progress("smoothing and equalizing", 0.1)
    model = graph.load(inputs["graph"] / GRAPH)
    statistics = load(inputs["statistics"] / STATISTICS)
    rules, settings = rules_of(params["rules"]), Quantization.model_validate(params["settings"])
    unbounded = {n: v.unbounded for n, v in statistics.values.items() if v.unbounded}
    assignment = assign(
        model, params["precision"], rules, "fp32", overrides=settings.nodes, unbounded=unbounded
    )
    alpha: Any = {"auto": "search"}.get(str(settings.smooth), settings.smooth)
    wishes = rescaling.RescaleSettings(
        alpha=alpha,
        salient=settings.weights == "awq",
        block_size=settings.block_size,
        equalize=settings.equalize,
        carrier=dtype_of(params["carrier"]),
        leave=frozenset(name for name in assignment.nodes if settings.is_two_term(name)),
    )
    log, statistics = rescaling.rescale(model, statistics, assignment, rules, wishes)
    graph.save(model, out / GRAPH)
    save(statistics, out / STATISTICS)
    meta = {"log": log.to_json(), "max_error": None, **signature(model)}
    if not params.get("compare", True):
        return {**meta, "warnings": [params["uncompared"]]}
    progress("comparing with the graph as it was", 0.8)
    name, error = difference(inputs["graph"] / GRAPH, out / GRAPH, params)
    if error <= TOLERANCE:
        return {**meta, "max_error": error}
    # exact but for rounding, which this graph makes much of: it is quantized as it was
    plain = graph.load(inputs["graph"] / GRAPH)
    graph.save(plain, out / GRAPH)
    save(load(inputs["statistics"] / STATISTICS), out / STATISTICS)
    told = f"output {name!r} moved by {error:.2e} of its largest value: not smoothed or equalized"
    log = rescaling.RescaleLog(())
    return {"log": log.to_json(), "max_error": 0.0, **signature(plain), "warnings": [told]}


def quantize(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Assignment and its numbers, then Q/DQ on the carrier graph; where carriers are not FP32, also
    the FP32 simulation of it.

    params: precision, carrier, method, percentile, rules (precision → placement rules as JSON),
    settings (quantization).
    """
    from optkit import graph
    from optkit.quantization.choose_qparams import choose_qparams
    from optkit.quantization.out_of_core import streamed
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.qdq import apply as qdq
    from optkit.recipe import Quantization
    from optkit.statistics import load

    rules, settings = rules_of(params["rules"]), Quantization.model_validate(params["settings"])
    statistics = load(inputs["statistics"] / STATISTICS) if "statistics" in inputs else None
    values = statistics.values if statistics is not None else {}
    unbounded = {name: value.unbounded for name, value in values.items() if value.unbounded}
    dtype = dtype_of(params["carrier"])
    fused = graph.load(inputs["fused"] / GRAPH)
    assignment = assign(
        fused, params["precision"], rules, params["carrier"],
        overrides=settings.nodes, unbounded=unbounded,
    )  # fmt: skip
    learned = any(value.moments is not None for value in values.values())
    if streamed.is_for(fused, assignment, rules, settings, learned=learned):
        place = inputs["carrier"] / GRAPH
        told = streamed.quantize(place, out / GRAPH, assignment, rules, settings, carrier=dtype)
        meta = {"log": told.to_json(), "assignment": assignment.to_json()}
        return {**meta, "warnings": list(told.warnings), **signature(graph.load(out / GRAPH))}
    progress("finding scales and codes", 0.1)
    qparams = choose_qparams(
        fused, assignment, statistics, rules, settings,
        method=params["method"], percentile=params["percentile"], carrier=dtype,
    )  # fmt: skip
    progress("writing Q/DQ", 0.8)
    carrier = graph.load(inputs["carrier"] / GRAPH)
    if any(own.weight.dtype == "float4e2m1" for own in rules.values()):
        carrier = graph.upgrade(carrier, 23)  # the first that knows E2M1
    tables = settings.embeddings and any(own.embeddings for own in rules.values())
    log = qdq.apply(
        carrier, qparams, assignment, rules, statistics, scale_dtype=dtype, embeddings=tables
    )
    graph.save(carrier, out / GRAPH)
    graph.check(out / GRAPH)
    if params["carrier"] != "fp32":
        qdq.apply(fused, qparams, assignment, rules, statistics, scale_dtype=dtype, simulated=True)
        graph.save(fused, out / SIMULATION)
    return {
        "log": log.to_json(),
        "assignment": assignment.to_json(),
        **signature(carrier),
    }
