"""The table of steps: all that a worker may run, each from files and parameters to files.

    step(inputs: name → path, params, out folder, progress) -> meta (JSON)

A step opens foreign code and native libraries only here, in the child. Each imports its stage when
it runs, so that the parent can read the table (names, versions, tools) in a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from optkit.errors import InputRefused, OptkitError, located
from optkit.execute.runner import StepKind

if TYPE_CHECKING:
    import numpy as np

    from optkit.data.spool import Spool
    from optkit.runtime import Feed, Session

Inputs = Mapping[str, Path]
Params = dict[str, Any]
Progress = Callable[[str, float], None]

GRAPH = "model.onnx"
SIMULATION = "simulation.onnx"
STATISTICS = "statistics.safetensors"
SCORES = "scores.safetensors"
TIMES = "times.safetensors"

_GUESSES = (2, 16, 64, 256)  # sizes of an axis that nobody gave a range
_FUSION_TOLERANCE = 1e-4  # float32 rounding through a deep network, relative to the largest output


@dataclass(frozen=True)
class Step:
    """A step's identity and the function that performs it."""

    kind: StepKind
    run: Callable[[Inputs, Params, Path, Progress], dict[str, Any]]


def export(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A Python factory, a `.pt2` or an `.onnx` → one graph of opset ≥ 21, compared with its source.

    params: kind, inputs, axes, args; where the code lies: file or module, attribute, code; what
    the user calls the weights.
    """
    from optkit import sources
    from optkit.data import reads
    from optkit.recipe import axes_from_json, inputs_from_json

    place = params.get("file") or params.get("module")
    with (
        _named(inputs.get("weights"), params.get("weights")),
        reads.record(params.get("code")) as record,
    ):
        log = sources.export(
            params["kind"],
            inputs,
            factory=f"{place}:{params['attribute']}" if place else None,
            args=params.get("args"),
            specs=inputs_from_json(params["inputs"]),
            axes=axes_from_json(params.get("axes", {})),
            out=out / GRAPH,
            session=_cpu,
            progress=progress,
        )
    return {
        "log": log.to_json(),
        "reads": _outside(record.to_json(), out),
        **_signature(out / GRAPH),
    }


def adopt(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A graph that was exported in the caller's process enters the chain."""
    from optkit import graph

    model = graph.load(inputs["model"] / GRAPH)
    graph.check_finite(model)
    graph.save(model, out / GRAPH)
    return {"log": {}, **_signature(out / GRAPH)}


def fuse(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """The `standard` form, FP32 inside; its outputs are compared with the unfused graph's.

    params: inputs, axes (name → min/opt/max): what the compared feeds are drawn from; compare:
    False if the two graphs are not run, for the reason `uncompared`.
    """
    import tempfile

    from optkit import fusion, graph

    progress("fusing", 0.1)
    model = graph.load(inputs["graph"] / GRAPH)
    with tempfile.TemporaryDirectory() as folder:
        before = inputs["graph"] / GRAPH
        if widened := fusion.widen(model):
            before = Path(folder) / GRAPH
            graph.save(model, before)
        log = fusion.fuse(model)
        log = replace(log, entries=(*widened, *log.entries))
        graph.save(model, out / GRAPH)
        meta = {"log": log.to_json(), "max_error": None, **_signature(out / GRAPH)}
        if not params.get("compare", True):
            return {**meta, "warnings": [params["uncompared"]]}
        progress("comparing with the unfused graph", 0.6)
        return {**meta, "max_error": _same_outputs(before, out / GRAPH, params, "fusion")}


def cast(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 → FP16 or BF16 carriers; of BF16, which ONNX Runtime lacks, also the simulation.

    params: carrier ("fp16" or "bf16").
    """
    from optkit import graph
    from optkit.quantization.cast import HALVES, to_half
    from optkit.quantization.simulation import simulate_bf16

    carrier = params["carrier"]
    model = graph.load(inputs["graph"] / GRAPH)
    if model.opset_imports[""] < HALVES[carrier].opset:
        model = graph.upgrade(model, HALVES[carrier].opset)
    log = to_half(model, carrier)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    described = _signature(out / GRAPH)
    if carrier == "bf16":
        simulate_bf16(model)
        graph.save(model, out / SIMULATION)
    return {"log": log.to_json(), **described}


def collect(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a sample source or a task and spool what it yields, checked against the inputs.

    params: function, args, limit, inputs, labelled; path, memory.
    """
    from optkit import content
    from optkit.data import reads, spool
    from optkit.recipe import infos_from_json

    path = Path(params["path"])
    with located(str(path)), reads.record() as record:
        module = content.load_module(path)
        function = content.member(module, params["function"], path)
        if params["labelled"]:
            content.member(module, "score", path)
        written = spool.write(
            content.guarded(function, params["args"], path),
            out,
            infos_from_json(params["inputs"]),
            limit_samples=params["limit"],
            memory_bytes=params["memory"],
            progress=progress,
        )
    if params["labelled"] and not written.labelled:
        raise InputRefused(
            "samples() yields no labels", where=str(path), hint="yield pairs: feed, labels"
        )
    metric = content.metric(module, path) if params["labelled"] else None
    return {"info": written.to_json(), "metric": metric, "reads": _outside(record.to_json(), out)}


def random(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Seeded random inputs, for a model that comes with no samples at all.

    params: inputs, axes.
    """
    from optkit.data import spool
    from optkit.recipe import infos_from_json

    infos = infos_from_json(params["inputs"])
    feeds = (_random_feed(params, "opt", seed) for seed in range(8))
    written = spool.write(
        feeds, out, infos, limit_samples=None, memory_bytes=1 << 28, progress=progress
    )
    return {"info": written.to_json(), "metric": None}


def calibrate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 graph and samples → statistics of every value that any backend family would quantize.

    params: batch, families (by backend: precision → placement rules as JSON), moments; memory;
    checkpoint: a folder outside the step's own, in which a killed run finds how far it was.
    """
    import gc
    import os
    import tempfile

    from optkit import calibration, graph
    from optkit.data.spool import Spool
    from optkit.execute.local import resident
    from optkit.quantization import qdq
    from optkit.quantization.assign import assign
    from optkit.statistics import merged_taps, save

    model = graph.load(inputs["graph"] / GRAPH)
    taps = []
    for family in params["families"]:
        rules = _rules(family)
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
        graph.save(graph.expose(model, names), tapped, inline_limit=0)
        del model
        gc.collect()  # now, not after the peak: nodes and values refer to each other
        samples = Spool(inputs["samples"])
        with _cpu(tapped, spinning=False, pooled=False) as session:
            free = params["memory"] - resident(os.getpid())
            statistics = calibration.observe(
                session,
                calibration.SpooledFeeds(samples, params["batch"]),
                taps,
                # half: the runtime holds inner values, too, and the samples are mapped
                memory_bytes=max(free // 2, 0),
                progress=progress,
                fills=fills,
                total=len(samples),
                checkpoint=kept,
            )
    save(statistics, out / STATISTICS)
    return {"values": len(names), "samples": statistics.samples, "warnings": statistics.warnings()}


def prepare(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 graph and its statistics → the same function in a form that quantizes better, and the
    statistics of that form.

    params: precision, carrier, rules (precision → placement rules as JSON), settings; inputs, axes,
    compare and uncompared: as of `fuse`.
    """
    from optkit import graph
    from optkit.quantization import prepare as prepares
    from optkit.quantization.assign import assign
    from optkit.recipe import Quantization
    from optkit.statistics import load, save

    progress("smoothing and equalizing", 0.1)
    model = graph.load(inputs["graph"] / GRAPH)
    statistics = load(inputs["statistics"] / STATISTICS)
    rules, settings = _rules(params["rules"]), Quantization.model_validate(params["settings"])
    unbounded = {n: v.unbounded for n, v in statistics.values.items() if v.unbounded}
    assignment = assign(
        model, params["precision"], rules, "fp32", overrides=settings.nodes, unbounded=unbounded
    )
    alpha: Any = {"auto": "search"}.get(str(settings.smooth), settings.smooth)
    wishes = prepares.PrepareSettings(
        alpha=alpha,
        salient=settings.weights == "awq",
        block_size=settings.block_size,
        equalize=settings.equalize,
        carrier=_dtype(params["carrier"]),
        leave=frozenset(name for name in assignment.nodes if settings.is_two_term(name)),
    )
    log, statistics = prepares.prepare(model, statistics, assignment, rules, wishes)
    graph.save(model, out / GRAPH)
    save(statistics, out / STATISTICS)
    meta = {"log": log.to_json(), "max_error": None, **_signature(out / GRAPH)}
    if not params.get("compare", True):
        return {**meta, "warnings": [params["uncompared"]]}
    progress("comparing with the graph as it was", 0.8)
    error = _same_outputs(inputs["graph"] / GRAPH, out / GRAPH, params, "preparation")
    return {**meta, "max_error": error}


def quantize(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Assignment and its numbers, then Q/DQ on the carrier graph; where carriers are not FP32, also
    the FP32 simulation of it.

    params: precision, carrier, method, percentile, rules (precision → placement rules as JSON),
    settings (quantization).
    """
    from optkit import graph
    from optkit.quantization import qdq, streamed
    from optkit.quantization.assign import assign
    from optkit.quantization.decide import decide
    from optkit.recipe import Quantization
    from optkit.statistics import load

    rules, settings = _rules(params["rules"]), Quantization.model_validate(params["settings"])
    statistics = load(inputs["statistics"] / STATISTICS) if "statistics" in inputs else None
    values = statistics.values if statistics is not None else {}
    unbounded = {name: value.unbounded for name, value in values.items() if value.unbounded}
    dtype = _dtype(params["carrier"])
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
        return {**meta, "warnings": list(told.warnings), **_signature(out / GRAPH)}
    progress("finding scales and codes", 0.1)
    decisions = decide(
        fused, assignment, statistics, rules, settings,
        method=params["method"], percentile=params["percentile"], carrier=dtype,
    )  # fmt: skip
    progress("writing Q/DQ", 0.8)
    carrier = graph.load(inputs["carrier"] / GRAPH)
    if any(own.weight.dtype == "float4e2m1" for own in rules.values()):
        carrier = graph.upgrade(carrier, 23)  # the first that knows E2M1
    tables = settings.embeddings and any(own.embeddings for own in rules.values())
    log = qdq.apply(
        carrier, decisions, assignment, rules, statistics, scale_dtype=dtype, embeddings=tables
    )
    graph.save(carrier, out / GRAPH)
    graph.check(out / GRAPH)
    if params["carrier"] != "fp32":
        qdq.apply(
            fused, decisions, assignment, rules, statistics, scale_dtype=dtype, simulated=True
        )
        graph.save(fused, out / SIMULATION)
    return {
        "log": log.to_json(),
        "assignment": assignment.to_json(),
        **_signature(out / GRAPH),
    }


def ort(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A quantized graph in the operators that ONNX Runtime's CPU kernels run fastest. It is not
    compared: a sum in another order turns codes, here and there."""
    from optkit import graph
    from optkit.fusion.ort import to_ort

    model = graph.load(inputs["graph"] / GRAPH)
    log = to_ort(model)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return {"log": log.to_json(), **_signature(out / GRAPH)}


def compile_(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """graph → engine file, with fused layers and landing from the compiler itself.

    params: backend, spec, planned (node → precision).
    """
    from optkit.runtime import BuildSpec, backend

    chosen = backend(params["backend"])
    chosen.check()
    spec = BuildSpec.from_json(params["spec"])
    engine = chosen.compile(inputs["graph"] / GRAPH, spec, params["planned"], out, progress)
    return {"engine": engine.to_json()}


def evaluate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Score a graph on the spooled evaluation samples with the task's own `score`.

    params: file, batch, evidence, path and metric of the task.
    """
    import numpy as np
    from safetensors.numpy import save_file

    from optkit import content
    from optkit.benchmarking import accuracy
    from optkit.runtime import Evidence

    path = Path(params["path"])
    score = content.member(content.load_module(path), "score", path)
    samples = _Counted(inputs["samples"], params["batch"], progress)
    with (
        located(str(path)),
        _simulator(inputs["graph"] / params["file"], params["evidence"]) as session,
    ):
        found = accuracy.score(
            session, samples, score, metric=params["metric"], evidence=Evidence(params["evidence"])
        )
    save_file({"per_sample": np.asarray(found.per_sample)}, out / SCORES)
    return {"score": {**found.to_json(), "per_sample": []}}


def compare(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Fidelity of a graph's outputs to the FP32 fused graph's. params: file, batch, evidence."""
    from optkit.benchmarking.fidelity import fidelity
    from optkit.runtime import Evidence

    samples = _Counted(inputs["samples"], params["batch"], progress)
    with (
        _cpu(inputs["reference"] / GRAPH) as reference,
        _simulator(inputs["graph"] / params["file"], params["evidence"]) as candidate,
    ):
        found = fidelity(
            reference,
            candidate,
            (feed for feed, _ in samples),
            name="fp32",
            evidence=Evidence(params["evidence"]),
        )
    return {"fidelity": found.to_json()}


def bench(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Latency of candidate and baseline, interleaved, in this process of their own.

    params: batches, seconds, warmup_seconds, threads, host (fingerprint, for the key).
    """
    import numpy as np
    from safetensors.numpy import save_file

    from optkit.benchmarking import latency, machine
    from optkit.data.spool import Spool

    samples = Spool(inputs["samples"])
    graphs = {"engine": inputs["graph"] / GRAPH, "baseline": inputs["baseline"] / GRAPH}
    with machine.watched() as conditions:
        times = latency.measure(
            {
                name: partial(_cpu, path, threads=params["threads"], spinning=False)
                for name, path in graphs.items()
            },
            samples.feed,
            params["batches"],
            seconds=params["seconds"],
            warmup_seconds=params["warmup_seconds"],
            progress=progress,
        )
    rows = []
    for batch in params["batches"]:
        pair = {name: times[name, batch] for name in graphs}
        speedup = latency.ratio(pair["baseline"], pair["engine"])
        rows.append(
            {
                **{n: {**t.to_json(), "samples_ms": []} for n, t in pair.items()},
                "speedup": speedup.to_json(),
            }
        )
    save_file(
        {f"{name}/{batch}": np.asarray(t.samples_ms) for (name, batch), t in times.items()},
        out / TIMES,
    )
    return {"rows": rows, "conditions": conditions}


def predict(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Roofline bound of an engine's fused layers, or of the unfused graph while there is no engine.

    params: target (fingerprint, for the key), name, axes, batch; engine (JSON), or None and then
    planned (node → precision) and carrier.
    """
    from optkit import graph
    from optkit.prediction import roofline
    from optkit.runtime import Engine
    from optkit.target import target

    costs = graph.costs(graph.load(inputs["graph"] / GRAPH), params["axes"])
    device = target(params["name"])
    if params["engine"] is None:
        found = roofline.for_graph(
            costs, device, params["batch"], params["planned"], params["carrier"]
        )
    else:
        engine = Engine.from_json(params["engine"])
        found = roofline.predict(engine.static_layers, costs, device, params["batch"])
    return {"latency": found.to_json()}


def summary(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """What `optkit inspect` prints of a graph. params: axes (name → size)."""
    from optkit import graph

    folder_or_file = inputs["model"]
    file = folder_or_file / GRAPH if folder_or_file.is_dir() else folder_or_file
    return {"summary": graph.summary(graph.load(file), params["axes"])}


def survey(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """The layers that each precision could quantize, what they read and weigh, for a search.

    params: rules (precision → placement rules as JSON), carrier, axes.
    """
    from dataclasses import asdict

    from optkit import graph
    from optkit.quantization.assign import assign
    from optkit.quantization.operands import uncast
    from optkit.statistics import load

    rules = _rules(params["rules"])
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
    from optkit.quantization import qdq
    from optkit.quantization.decide import decide
    from optkit.recipe import Quantization
    from optkit.statistics import load

    path, groups, precision = inputs["graph"] / GRAPH, params["groups"], params["precision"]
    rules, settings = _rules(params["rules"]), Quantization.model_validate(params["settings"])
    statistics = load(inputs["statistics"] / STATISTICS) if "statistics" in inputs else None
    dtype = _dtype(params["carrier"])
    progress("finding scales and codes", 0.0)
    decisions = decide(
        graph.load(path), Assignment({str(n): precision for group in groups for n in group}),
        statistics, rules, settings,
        method=params["method"], percentile=params["percentile"], carrier=dtype,
    )  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder, _cpu(path, level="basic") as reference:
        feeds = (feed for feed, _ in Spool(inputs["samples"]).batches(params["batch"]))
        recorded = record(reference, feeds, samples=params["samples"])
        for index, group in enumerate(groups):
            progress(f"layer {index + 1} of {len(groups)}", index / len(groups))
            variant = graph.load(path)
            alone = Assignment({str(node): precision for node in group})
            qdq.apply(
                variant, decisions, alone, rules, statistics, scale_dtype=dtype, simulated=True
            )
            graph.save(variant, Path(folder) / GRAPH)
            with _cpu(Path(folder) / GRAPH, level="basic") as candidate:
                rows.append(recorded.deviation(candidate).to_json())
    return {"rows": rows}


def deviate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """How far a graph's outputs are from the FP32 fused graph's on the first samples.

    params: file, evidence, samples, batch.
    """
    from optkit.benchmarking.sensitivity import record
    from optkit.data.spool import Spool

    feeds = (feed for feed, _ in Spool(inputs["samples"]).batches(params["batch"]))
    with _cpu(inputs["reference"] / GRAPH, level="basic") as reference:
        recorded = record(reference, feeds, samples=params["samples"])
    with _simulator(inputs["graph"] / params["file"], params["evidence"]) as candidate:
        return {"deviation": recorded.deviation(candidate).to_json()}


@contextmanager
def _named(staged: Path | None, given: str | None) -> Iterator[None]:
    """An error about the store's copy of a file is told about the file that the user named."""
    try:
        yield
    except OptkitError as error:
        if staged is not None and error.where == str(staged):
            error.where = given
        raise


def _outside(reads: dict[str, Any], out: Path) -> dict[str, Any]:
    """Without the files that the step itself wrote and read again."""
    own = f"{out}/"
    files = {path: sha for path, sha in reads["files"].items() if not path.startswith(own)}
    return {**reads, "files": files}


def _dtype(carrier: str) -> Any:
    """The numpy dtype of a carrier."""
    import ml_dtypes
    import numpy as np

    return {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}[carrier]


def _rules(family: Mapping[str, Any]) -> dict[str, Any]:
    from optkit.runtime import PlacementRules

    return {name: PlacementRules.from_json(data) for name, data in family.items()}


def _cpu(model: Path, **options: Any) -> Session:
    from optkit.runtime import backend

    # idle threads that spin take the cores from whoever else works on this machine
    return backend("onnxruntime").session(model, **{"spinning": False, **options})


def _simulator(model: Path, evidence: str) -> Session:
    """A simulation keeps Q/DQ as written; a measurement runs what users run."""
    level = "all" if evidence == "measured" else "basic"
    return _cpu(model, level=level)


def _random_feed(params: Params, bound: str, seed: int, guess: int = 2) -> Feed:
    """A feed at one end of the axis ranges; an axis that no range is known for gets size `guess`,
    or 2 where it counts samples."""
    from optkit.data.spool import random_feed
    from optkit.recipe import inputs_from_json
    from optkit.runtime import batch_axis

    specs = inputs_from_json(params["inputs"])
    names = {size for spec in specs for size in spec.info.shape if isinstance(size, str)}
    batch = batch_axis(spec.info for spec in specs)
    sizes = {
        name: params["axes"].get(name, {}).get(bound, 2 if name == batch else guess)
        for name in names
    }
    return random_feed(specs, sizes, seed)


def _accepted_feed(session: Session, params: Params, bound: str, seed: int) -> tuple[Feed, Feed]:
    """A random feed and its outputs. Not every graph takes small sizes of an axis without a range,
    so larger ones are tried."""
    for guess in _GUESSES:
        feed = _random_feed(params, bound, seed, guess)
        try:
            return feed, session.run(feed)
        except InputRefused as error:
            failure = error
    raise InputRefused(
        f"the graph does not run on random inputs: {failure.message}",
        where=failure.where,
        hint="give the sizes of its axes: --opt-shapes, or `axes:` in the recipe",
    ) from failure


def _same_outputs(before: Path, after: Path, params: Params, what: str) -> float:
    """Largest difference of two graphs' outputs, see `_difference`; `what` made the second of the
    first. One of them is in memory at a time. Raises OptkitError."""
    with _cpu(before, level="basic") as old:
        runs = [_accepted_feed(old, params, bound, n) for n, bound in enumerate(("opt", "min"))]
    worst = 0.0
    with _cpu(after, level="basic") as new:
        for feed, expected in runs:
            found = new.run(feed)
            for name, values in expected.items():
                if values.shape != found[name].shape:
                    raise OptkitError(f"{what} changed a shape", where=f"output {name!r}")
                error = _difference(values, found[name])
                worst = max(worst, error)
                if not error <= _FUSION_TOLERANCE:
                    raise OptkitError(
                        f"{what} changed the result by {error:.2e} of its largest value",
                        where=f"output {name!r}",
                        hint="please report the model; this is a bug",
                    )
    return worst


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Largest difference over the largest value; where both are NaN or the same infinity they
    agree. Of integers and bools, the share that differs: rounding turns the odd class index."""
    import numpy as np

    if expected.dtype.kind != "f":
        return float(np.mean(expected != found)) if expected.size else 0.0
    a, b = expected.astype(np.float64), found.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
    return float(np.abs(a[differs] - b[differs]).max(initial=0.0)) / scale


def _signature(path: Path) -> dict[str, Any]:
    from optkit import graph

    model = graph.load(path)
    return {
        "inputs": [list(spec) for spec in graph.inputs(model)],
        "outputs": [list(spec) for spec in graph.outputs(model)],
        "parameters": graph.parameters(model),
    }


class _Counted:
    """Batches of a spool that report how far they are."""

    def __init__(self, path: Path, batch: int | None, progress: Progress) -> None:
        from optkit.data.spool import Spool

        self.spool: Spool = Spool(path)
        self.batch = batch
        self.progress = progress

    def __iter__(self) -> Iterator[Any]:
        from optkit.runtime import count_samples

        done = 0
        for feed, labels in self.spool.batches(self.batch):
            yield feed, labels
            done += count_samples(feed)
            self.progress(f"{done} of {len(self.spool)} samples", done / len(self.spool))


_RESUMING = ("calibrate",)

STEPS: Mapping[str, Step] = MappingProxyType(
    {
        name: Step(StepKind(name, version, tools, resumes=name in _RESUMING), run)
        for name, version, tools, run in (
            ("export", 1, ("torch", "onnxscript", "onnx", "onnx-ir"), export),
            ("adopt", 1, ("onnx", "onnx-ir"), adopt),
            ("fuse", 2, ("onnx", "onnx-ir", "onnxscript", "onnxruntime"), fuse),
            ("cast", 1, ("onnx", "onnx-ir"), cast),
            ("collect", 1, ("numpy", "safetensors"), collect),
            ("random", 1, ("numpy", "safetensors"), random),
            ("calibrate", 2, ("onnxruntime", "numpy", "onnx-ir"), calibrate),
            ("prepare", 2, ("onnxruntime", "numpy", "onnx-ir"), prepare),
            ("quantize", 3, ("numpy", "onnx", "onnx-ir", "ml-dtypes"), quantize),
            ("ort", 1, ("onnx", "onnx-ir"), ort),
            ("compile", 1, (), compile_),
            ("evaluate", 1, ("onnxruntime", "numpy"), evaluate),
            ("compare", 1, ("onnxruntime", "numpy"), compare),
            ("bench", 1, ("onnxruntime", "numpy"), bench),
            ("predict", 1, ("onnx", "onnx-ir"), predict),
            ("summary", 1, ("onnx", "onnx-ir"), summary),
            ("survey", 1, ("onnx", "onnx-ir"), survey),
            ("sensitivity", 2, ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes"), sensitivity),
            ("deviate", 1, ("onnxruntime", "numpy"), deviate),
        )
    }
)
