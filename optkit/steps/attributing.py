"""The step that says how long each layer takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.errors import ToolchainMissing
from optkit.steps.files import GRAPH, Inputs, Params, Progress, engine

if TYPE_CHECKING:
    import onnx_ir as ir

    from optkit.engines import FusedLayer
    from optkit.graph import NodeCost


def attribute(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Milliseconds of every layer of candidate and baseline, and what the candidate's nodes are.

    inputs: candidate and baseline, graphs. params: axes (name → size); layers (side → the
    compiler's, as JSON), name and target (fingerprint, for the key) of the device whose roofline
    bounds them; or shapes (of the inputs), seconds and host: ONNX Runtime is profiled here with
    threads, or, with backend, session and engines, the inputs candidate_engine and baseline_engine.
    here: kept.
    """
    from dataclasses import asdict

    from optkit import graph

    sides: dict[str, list[dict[str, Any]]] = {}
    nodes: dict[str, Any] = {}
    for side in ("candidate", "baseline"):
        progress(f"timing the layers of the {side}", 0.5 * (side == "baseline"))
        model = graph.load(inputs[side] / GRAPH)
        costs = graph.costs(model, params["axes"])
        rows = _profiled(inputs, side, model, params) or _bounded(costs, side, params)
        sides[side] = [{"layer": asdict(layer), **times} for layer, times in rows]
        if side == "candidate":
            nodes = _nodes(model, costs)
    return {"times": {**sides, "nodes": nodes}}


Rows = list[tuple["FusedLayer", dict[str, float | None]]]


def _profiled(inputs: Inputs, side: str, model: ir.Model, params: Params) -> Rows | None:
    if "shapes" not in params:
        return None
    shapes = {name: tuple(shape) for name, shape in params["shapes"].items()}
    if "engines" in params:
        found = _engine_times(inputs, side, model, shapes, params)
    else:
        from optkit.backends.onnxruntime import kernel_times

        found = kernel_times(inputs[side] / GRAPH, shapes, params["seconds"], params["threads"])
    return [(layer, {"ms": ms, "compute_ms": None, "memory_ms": None}) for layer, ms in found]


def _engine_times(
    inputs: Inputs, side: str, model: ir.Model, shapes: dict[str, tuple[int, ...]], params: Params
) -> list[tuple[FusedLayer, float]]:
    """On zeros, as ONNX Runtime's kernels."""
    import numpy as np

    from optkit.backends.landing import products
    from optkit.runtimes import Profiled

    with engine(inputs, params, f"{side}_engine") as session:
        if not isinstance(session, Profiled):
            raise ToolchainMissing(f"{params['backend']} does not tell the time of layers")
        feed = {t.name: np.zeros(shapes[t.name], t.dtype) for t in session.inputs}
        return session.layer_times(feed, products(model), params["seconds"])


def _bounded(costs: dict[str, NodeCost], side: str, params: Params) -> Rows:
    from optkit.devices import target
    from optkit.engines import layers_from_json
    from optkit.prediction import roofline

    layers = layers_from_json(params["layers"][side])
    found = roofline.bounds(layers, costs, target(params["name"]))
    return [
        (layer, {"ms": max(bound) * 1e3, "compute_ms": bound.compute * 1e3,
                 "memory_ms": bound.memory * 1e3})
        for layer, bound in zip(layers, found, strict=True)
    ]  # fmt: skip


def _nodes(model: ir.Model, costs: dict[str, NodeCost]) -> dict[str, Any]:
    """Node → operator, multiply-accumulates, bytes of constants, who makes what it reads, and the
    size of the axis that a product of matrices sums over."""
    from optkit import graph

    found: dict[str, Any] = {}
    for node in model.graph:
        makers = [value.producer() for value in node.inputs if value is not None]
        reads = [n for maker in makers if maker for n in graph.names_in(str(maker.name))]
        cost = costs[str(node.name)]
        fact = {"op": node.op_type, "macs": cost.macs, "weight_bytes": cost.weight_bytes,
                "reads": list(dict.fromkeys(reads)), "summed": _summed(node)}  # fmt: skip
        found |= dict.fromkeys(graph.names_in(str(node.name)), fact)
    return found


def _summed(node: ir.Node) -> int | None:
    """K of [M, K] × [K, N]; None of another operator, or where it is not fixed."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[1] is None:
        return None
    shape, turned = node.inputs[1].shape, node.attributes.get_int("transB", 0)
    if shape is None or len(shape) < 2:
        return None
    size = shape[-1 if turned else -2]
    return size if isinstance(size, int) else None
