"""Steps that say how good and how fast a graph is: compiled, scored, timed, predicted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.errors import located
from optkit.steps.files import (
    GRAPH,
    RAW_SCORES,
    SCORES,
    TIMES,
    Counted,
    Inputs,
    Params,
    Progress,
    cpu,
    simulator,
)

if TYPE_CHECKING:
    from optkit.runtime import Session


def compile_(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """graph → engine file, with fused layers and landing from the compiler itself.

    params: backend, spec, planned (node → precision); kept: a folder outside the step's own.
    """
    from optkit.runtime import BuildSpec, backend

    chosen = backend(params["backend"])
    chosen.check()
    spec = BuildSpec.from_json(params["spec"])
    kept = Path(params["kept"]) if params.get("kept") else None
    engine = chosen.compile(inputs["graph"] / GRAPH, spec, params["planned"], out, progress, kept)
    return {"engine": engine.to_json()}


def evaluate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Score a graph on the spooled evaluation samples by the task's own functions.

    params: file, batch, evidence; path, metric and args of the task; checkpoint: a folder outside
    the step's own, in which a killed run finds its scores; backend and engines, where an engine
    runs instead of the graph.
    """
    import numpy as np
    from safetensors.numpy import save_file

    from optkit import content
    from optkit.benchmarking import accuracy
    from optkit.benchmarking.resuming import Kept
    from optkit.runtime import Evidence

    path = Path(params["path"])
    module = content.load_module(path)
    content.member(module, "score", path)
    score, combine, aggregate = (
        content.hook(module, name, params["args"]) for name in ("score", "combine", "aggregate")
    )
    assert score is not None
    lower_is_better = bool(getattr(module, "LOWER_IS_BETTER", False))
    task = accuracy.Task(params["metric"], score, combine, aggregate, lower_is_better)
    kept = Kept(Path(params["checkpoint"]) if params.get("checkpoint") else None)
    samples = Counted(inputs["samples"], params["batch"], progress, done=len(kept.scores))
    with (
        located(str(path)),
        _opened(inputs, params) as session,
    ):
        found = accuracy.score(
            session, samples, task, evidence=Evidence(params["evidence"]), kept=kept
        )
    raw = {name: np.asarray(getattr(found, name)) for name in RAW_SCORES}
    save_file(raw, out / SCORES)
    return {"score": {**found.to_json(), **dict.fromkeys(raw, ())}}


def _opened(inputs: Inputs, params: Params) -> Session:
    """The engine, where its device is here; else the graph in ONNX Runtime."""
    for name in params.get("engines", {}):
        return _engine(inputs, params, name)
    return simulator(inputs["graph"] / params["file"], params["evidence"])


def compare(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Fidelity of a graph's outputs to the FP32 fused graph's.

    params: file, batch, evidence; checkpoint as for `evaluate`.
    """
    from optkit.benchmarking.fidelity import fidelity
    from optkit.benchmarking.resuming import Kept
    from optkit.runtime import Evidence

    kept = Kept(Path(params["checkpoint"]) if params.get("checkpoint") else None)
    samples = Counted(inputs["samples"], params["batch"], progress, done=len(kept.scores))
    with (
        cpu(inputs["reference"] / GRAPH) as reference,
        simulator(inputs["graph"] / params["file"], params["evidence"]) as candidate,
    ):
        found = fidelity(
            reference,
            candidate,
            samples,
            name="fp32",
            evidence=Evidence(params["evidence"]),
            kept=kept,
        )
    return {"fidelity": found.to_json()}


def bench(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Latency of candidate and baseline, interleaved, in this process of their own.

    params: batches, seconds, warmup_seconds, threads, host (fingerprint, for the key); backend and
    engines, where engines run instead of the graphs.
    """
    import numpy as np
    from safetensors.numpy import save_file

    from optkit.benchmarking import latency, machine
    from optkit.data.spool import Spool

    samples = Spool(inputs["samples"])
    sides = _sides(inputs, params)
    with machine.watched() as conditions:
        times = latency.measure(
            sides,
            samples.feed,
            params["batches"],
            seconds=params["seconds"],
            warmup_seconds=params["warmup_seconds"],
            progress=progress,
        )
    rows = []
    for batch in params["batches"]:
        pair = {name: times[name, batch] for name in sides}
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


def _sides(inputs: Inputs, params: Params) -> dict[str, Callable[[], Session]]:
    """How candidate and baseline are opened."""
    if "engines" in params:
        names = {"engine": "engine", "baseline": "baseline_engine"}
        return {side: partial(_engine, inputs, params, name) for side, name in names.items()}
    graphs = {"engine": inputs["graph"] / GRAPH, "baseline": inputs["baseline"] / GRAPH}
    return {
        side: partial(cpu, path, threads=params["threads"], spinning=False)
        for side, path in graphs.items()
    }


def _engine(inputs: Inputs, params: Params, name: str) -> Session:
    """An engine on its device. params: backend, engines, session (its options), kept."""
    from optkit.runtime import backend

    kept = Path(params["kept"]) if params.get("kept") else None
    file = inputs[name] / params["engines"][name]
    return backend(params["backend"]).session(file, kept=kept, **params["session"])


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
