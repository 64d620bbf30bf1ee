"""Steps that say how good and how fast a graph is: scored, timed, predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    engine,
    recording,
    simulated,
)

if TYPE_CHECKING:
    from optkit.benchmarking.partial_results import Kept
    from optkit.data.spool import Spool
    from optkit.engines import FusedLayer
    from optkit.runtimes import Session

_TASK = ("run", "score", "agreement", "combine", "aggregate")  # the hooks that are run here
_ROWS = "rows"  # of the baseline, in the file of its scores


def evaluate(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Score a graph on the spooled evaluation samples by the task's own functions.

    params: file, batch, evidence; path, metric and args of the task; checkpoint: a folder outside
    the step's own, in which a killed run finds its scores; shard [i, n]: only the i-th of n parts
    of the batches, which may be none; backend and engines, where an engine runs instead of the
    graph. inputs shard-0, shard-1, …: what that left of each part; then they are put together, to
    the bits of one run. input baseline_score: what this step made of the baseline, for a task of
    agreement; without it the graph is the baseline, and its rows are kept beside its scores. roots
    and store: see `recording`.
    """
    from optkit.data import reads

    with reads.record(**recording(inputs, params, out)) as record:
        meta = _scored(inputs, params, out, progress)
    return {**meta, "reads": record.to_json()}


def _scored(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from optkit import user_code
    from optkit.benchmarking import accuracy
    from optkit.evidence import Evidence

    path, evidence = Path(params["path"]), Evidence(params["evidence"])
    module = user_code.load_module(path)
    user_code.member(module, "score", path)
    hooks: Any = {name: user_code.hook(module, name, params["args"]) for name in _TASK}
    lower_is_better = bool(getattr(module, "LOWER_IS_BETTER", False))
    task = accuracy.Task(params["metric"], lower_is_better=lower_is_better, **hooks)
    baseline = inputs.get("baseline_score")
    rows = None if baseline is None else load_file(baseline / SCORES)[_ROWS]
    with located(str(path)):
        if (kept := _joined(inputs)) is None:
            batches, kept = _begun(inputs, params, progress)
            with _opened(inputs, params) as session:
                accuracy.run(session, batches, task, kept)
            if "shard" in params:
                kept.save(out)
                return {}
        found = accuracy.pool(kept, task, evidence=evidence, baseline=rows)
    raw = {name: np.asarray(getattr(found, name)) for name in RAW_SCORES}
    if task.agreement is not None and rows is None:
        raw[_ROWS] = np.concatenate(kept.scores)
    save_file(raw, out / SCORES)
    return {"score": {**found.to_json(), **dict.fromkeys(RAW_SCORES, ())}}


def _begun(inputs: Inputs, params: Params, progress: Progress) -> tuple[Iterator[Any], Kept]:
    """What of the samples, or of a part of them, is still to be run; and what a killed run of it
    has left."""
    from optkit.benchmarking.partial_results import Kept

    index, count = params.get("shard", (0, 1))
    samples = Counted(inputs["samples"], params["batch"], progress, (index, count))
    folder = Path(params["checkpoint"]) if params.get("checkpoint") else None
    kept = Kept(folder, samples.first)
    return samples.rest(len(kept.scores)), kept


def _joined(inputs: Inputs) -> Kept | None:
    """What all parts found, where they are done; None: there are none."""
    from optkit.benchmarking.partial_results import Kept

    parts = [path for name, path in inputs.items() if name.startswith("shard-")]
    return Kept.joined(parts) if parts else None


def _opened(inputs: Inputs, params: Params) -> Session:
    """The engine, where its device is here; else the graph in ONNX Runtime."""
    for name in params.get("engines", {}):
        return engine(inputs, params, name)
    return simulated(inputs["graph"] / params["file"], params["evidence"])


def compare(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Fidelity of a graph's outputs to the FP32 fused graph's.

    params: file, batch, evidence; checkpoint and shard, and the inputs shard-…, as for `evaluate`.
    """
    from optkit.benchmarking import fidelity
    from optkit.evidence import Evidence

    if (kept := _joined(inputs)) is None:
        batches, kept = _begun(inputs, params, progress)
        with (
            cpu(inputs["reference"] / GRAPH) as reference,
            simulated(inputs["graph"] / params["file"], params["evidence"]) as candidate,
        ):
            fidelity.run(reference, candidate, batches, kept)
        if "shard" in params:
            kept.save(out)
            return {}
    found = fidelity.pool(kept, name="fp32", evidence=Evidence(params["evidence"]))
    return {"fidelity": found.to_json()}


def bench(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Latency of candidate and baseline, interleaved, in this process of their own.

    params: batches, seconds, warmup_seconds; sides: "engine" and "baseline" → input, file, backend
    and session (its options); gpu: they run on one; host (what the device is, for the key and for
    its name). here: kept.
    """
    from dataclasses import replace
    from datetime import UTC, datetime

    import numpy as np
    from safetensors.numpy import save_file

    from optkit.benchmarking import latency, machine
    from optkit.data.spool import Spool
    from optkit.devices import cpu

    samples, batches = Spool(inputs["samples"]), params["batches"]
    sides = {name: partial(_side, inputs, params, name) for name in params["sides"]}
    measured: dict[str, Any] = {
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": params["host"]["gpus"][0]["name"] if params["gpu"] else cpu().name,
        "from_store": False,
    }
    with machine.watched(gpu=params["gpu"]) as watch:
        times = latency.measure(
            sides,
            samples.feed,
            batches,
            seconds=params["seconds"],
            warmup_seconds=params["warmup_seconds"],
            progress=progress,
            between=watch.look,
        )
    marks = tuple(machine.judge(watch.conditions))
    apart = (
        {name: _phases(make, samples, batches) for name, make in sides.items()}
        if params["gpu"]
        else {}
    )
    found = {
        (name, batch): replace(
            one,
            marks=(*marks, *one.marks),
            phases=apart.get(name, {}).get(batch),
            **measured,
        )
        for (name, batch), one in times.items()
    }
    save_file(
        {f"{name}/{batch}": np.asarray(one.samples_ms) for (name, batch), one in found.items()},
        out / TIMES,
    )
    rows = [
        {
            **{name: {**found[name, batch].to_json(), "samples_ms": []} for name in sides},
            "speedup": latency.ratio(found["baseline", batch], found["engine", batch]).to_json(),
        }
        for batch in batches
    ]
    return {"rows": rows, "conditions": watch.conditions}


def _phases(
    make: Callable[..., Session], samples: Spool, batches: list[int]
) -> dict[int, dict[str, dict[str, float]]]:
    """The phases of a run on a device by batch size, with launches one by one and recorded; empty
    where they cannot be told apart."""
    from optkit.benchmarking import latency

    launched = latency.phases(partial(make, cuda_graph=False), samples.feed, batches)
    if not launched:
        return {}
    recorded = latency.phases(partial(make, cuda_graph=True), samples.feed, batches)
    return {n: {"launched": launched[n], "recorded": recorded[n]} for n in batches}


def _side(inputs: Inputs, params: Params, name: str, **options: Any) -> Session:
    """A session of one side as it is told in `params`. `options`: of the session, instead."""
    from optkit.runtimes import SessionOptions, backend

    side = params["sides"][name]
    kept = {"kept": Path(params["kept"])} if params.get("kept") else {}
    asked = SessionOptions(**{**side["session"], **kept, **options})
    return backend(side["backend"]).session(inputs[side["input"]] / side["file"], asked)


def predict(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Roofline bound of an engine's fused layers, or of the unfused graph while there is no engine.

    params: target (fingerprint, for the key), name, axes, batch; engine (JSON); planned (node →
    precision) and carrier, for where it is None or does not tell its layers' sizes.
    """
    from optkit import graph
    from optkit.devices import target
    from optkit.engines import Engine
    from optkit.prediction import roofline

    model = graph.load(inputs["graph"] / GRAPH)
    costs, device = graph.costs(model, params["axes"]), target(params["name"])
    layers = Engine.from_json(params["engine"]).static_layers if params["engine"] else ()
    if not layers or any(layer.bytes_moved is None or _hidden(layer) for layer in layers):
        found = roofline.for_graph(
            costs, device, params["batch"], params["planned"], params["carrier"],
            border=graph.border_bytes(model, params["axes"]),
        )  # fmt: skip
    else:
        found = roofline.predict(layers, costs, device, params["batch"])
    return {"latency": found.to_json()}


def _hidden(layer: FusedLayer) -> bool:
    """Whether it multiplies in what the compiler does not tell."""
    return bool(layer.products) and layer.dtype is None
