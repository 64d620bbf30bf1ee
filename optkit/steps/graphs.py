"""Steps from a model to its graphs: export, fusion, cast, the form of ONNX Runtime."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit import intake as stage
from optkit.artifact import VNNI
from optkit.decoder import IN_PLACE
from optkit.errors import InputRefused
from optkit.steps.comparing import difference, same_outputs
from optkit.steps.files import (
    ASSETS,
    GRAPH,
    SIMULATION,
    Inputs,
    Params,
    Progress,
    cpu,
    named,
    recording,
    signature,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from optkit.precision_cast.magnitude import Measured

_SAMPLES = 32  # on which a cast measures values


def export(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A Python factory, a `.pt2`, a Hugging Face folder or an `.onnx` → one graph of opset ≥ 21,
    compared with its source. What a Hugging Face model's users need beside it is kept in `assets/`.

    params: kind, inputs, axes, args; task, part, trusted; where the code lies: file or module,
    attribute, code; what the user calls the weights; roots and store: see `recording`.
    """
    from optkit import graph, sources
    from optkit.data import reads
    from optkit.recipe import axes_from_json, inputs_from_json

    place = params.get("file") or params.get("module")
    runs_code = params["kind"] == "python"
    with ExitStack() as stack:
        stack.enter_context(named(inputs.get("weights"), params.get("weights")))
        told = reads.record(params.get("code"), **recording(inputs, params, out))
        record = stack.enter_context(told) if runs_code else None
        log = sources.export(
            params["kind"],
            inputs,
            factory=f"{place}:{params['attribute']}" if place else None,
            args=params.get("args"),
            task=params.get("task"),
            part=params.get("part"),
            trusted=params.get("trusted", False),
            specs=inputs_from_json(params["inputs"]),
            axes=axes_from_json(params.get("axes", {})),
            out=out / GRAPH,
            session=cpu,
            progress=progress,
        )
    if params["kind"] == "hf":
        _keep_companions(inputs["model"], out)
    return {
        "log": log.to_json(),
        "warnings": list(log.warnings),
        "reads": record.to_json() if record is not None else {},
        **signature(graph.load(out / GRAPH)),
    }


def _keep_companions(folder: Path, out: Path) -> None:
    """Configuration, tokenizer and processor of a staged folder."""
    (out / ASSETS).mkdir()
    for name in stage.COMPANIONS:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / ASSETS / name)


def adopt(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A graph that was exported in the caller's process enters the chain."""
    from optkit import graph

    model = graph.load(inputs["model"] / GRAPH)
    graph.check_finite(model)
    graph.save(model, out / GRAPH)
    return {"log": {}, **signature(model)}


def fuse(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """The `standard` form, FP32 inside; its outputs are compared with the unfused graph's, and
    those of a half-precision model told to differ where they do.

    With `samples` they are run on some of these.

    params: inputs, axes (name → min/opt/max), arguments (inputs that are shapes, axes or indices,
    and their numbers where the graph says them): what the compared feeds are drawn from; compare:
    False if the two graphs are not run, for the reason `uncompared`.
    """
    import tempfile

    from optkit import fusion, graph

    if "samples" in inputs:
        params = {**params, "samples": str(inputs["samples"])}
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
        meta = {"log": log.to_json(), "max_error": None, **signature(model)}
        if not params.get("compare", True):
            return {**meta, "warnings": [params["uncompared"]]}
        progress("comparing with the unfused graph", 0.6)
        meta["max_error"] = same_outputs(before, out / GRAPH, params, "fusion")
        if not widened:
            return meta
        return {**meta, "warnings": _in_half(inputs["graph"] / GRAPH, out / GRAPH, params)}


_SURE = 0.05  # half precision as such rarely moves an output by more of its largest value


def _in_half(given: Path, fused: Path, params: Params) -> list[str]:
    """How far a half-precision model is from the same in FP32, where that is much. Rounding and
    overflow of what it computes in half are what the two differ by."""
    try:
        # optimized, ONNX Runtime would leave out the roundings between operators
        name, error = difference(given, fused, params, level="none")
    except InputRefused:  # ONNX Runtime has no kernel of it in half
        return []
    if error <= _SURE:
        return []
    much = f"by {error:.0%} of its largest value" if isfinite(error) else "in what is finite"
    message = f"output {name!r} differs {much} from the model as given, which computes in half"
    return [f"{message} precision; what is called FP32 here computes in float32"]


def cast(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """FP32 → FP16 or BF16 carriers; of BF16, which ONNX Runtime lacks, also the simulation. Where
    there are samples, the reach of values is measured on some of them.

    params: carrier ("fp16" or "bf16"); batch and what of the samples; unmeasured: why there are
    none.
    """
    from functools import partial

    from optkit import graph
    from optkit.precision_cast.bf16_simulation import simulate_bf16
    from optkit.precision_cast.cast import HALVES, to_half

    carrier = params["carrier"]
    model = graph.load(inputs["graph"] / GRAPH)
    if model.opset_imports[""] < HALVES[carrier].opset:
        model = graph.upgrade(model, HALVES[carrier].opset)
    measure = partial(_measured, inputs["samples"], params) if "samples" in inputs else None
    progress("measuring values", 0.1)
    log = to_half(model, carrier, measure)
    progress("writing", 0.8)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    described = signature(model)
    if carrier == "bf16":
        simulate_bf16(model)
        graph.save(model, out / SIMULATION)
    warnings = [params["unmeasured"]] if "unmeasured" in params else []
    return {"log": log.to_json(), "warnings": warnings, **described}


def _measured(samples: Path, params: Params, model: ir.Model) -> Measured:
    """How far the values of a graph reach on spooled samples."""
    import tempfile

    from optkit import graph
    from optkit.data.spool import Spool
    from optkit.precision_cast import magnitude
    from optkit.precision_cast.kept_in_fp32 import dividends

    measuring, outputs = magnitude.magnitude_graph(model, dividends(model))
    if not outputs:  # a model of integers alone
        return magnitude.Measured({}, params["what"])
    with tempfile.TemporaryDirectory() as folder:
        graph.save(
            measuring, Path(folder) / GRAPH, inline_limit=0
        )  # weights are mapped, not copied
        feeds = (feed for feed, _ in Spool(samples).batches(params["batch"]))
        with cpu(Path(folder) / GRAPH, pooled=False) as session:
            return magnitude.measure(session, feeds, outputs, samples=_SAMPLES, what=params["what"])


def ort(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """A quantized graph in the operators that ONNX Runtime's CPU kernels run fastest. It is not
    compared: a sum in another order turns codes, here and there."""
    from optkit import graph
    from optkit.fusion.ort import to_ort

    model = graph.load(inputs["graph"] / GRAPH)
    log = to_ort(model)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    in_place = json.loads(model.metadata_props.get(IN_PLACE, "[]"))
    assumed = VNNI if graph.assumes_vnni(model) else None
    return {
        "log": log.to_json(), "in_place": in_place, "instruction_set": assumed, **signature(model)
    }  # fmt: skip


def summary(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """What `optkit inspect` prints of a graph. params: axes (name → size)."""
    from optkit import graph

    folder_or_file = inputs["model"]
    file = folder_or_file / GRAPH if folder_or_file.is_dir() else folder_or_file
    return {"summary": graph.summary(graph.load(file), params["axes"])}
