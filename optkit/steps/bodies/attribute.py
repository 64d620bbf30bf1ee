from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit import codec, graph
from optkit.backends.landing import products
from optkit.backends.onnxruntime import kernel_times
from optkit.devices import target
from optkit.engines import FusedLayer
from optkit.errors import ToolchainMissing
from optkit.execute.step import Input, Progress
from optkit.node_cost import NodeCost
from optkit.prediction.compiled import of_engine
from optkit.prediction.fitted import fitted
from optkit.prediction.latency import of_each
from optkit.runtimes import Profiled
from optkit.steps.attribute import (
    Attribute,
    Attributed,
    EngineProfile,
    Kernels,
    LayerTimes,
    Node,
    TimedLayer,
)
from optkit.steps.bodies.sessions import engine
from optkit.steps.files import GRAPH

Layers = tuple[TimedLayer, ...]


def run(step: Attribute, out: Path, progress: Progress) -> Attributed:
    progress("timing the layers of the candidate", 0.0)
    model = graph.load(step.candidate.path / GRAPH)
    costs = graph.costs(model, step.axes)
    candidate = _timed(step, "candidate", step.candidate, step.candidate_engine, model, costs)
    nodes = _nodes(model, costs)
    progress("timing the layers of the baseline", 0.5)
    model = graph.load(step.baseline.path / GRAPH)
    costs = graph.costs(model, step.axes)
    baseline = _timed(step, "baseline", step.baseline, step.baseline_engine, model, costs)
    return Attributed(times=LayerTimes(candidate, baseline, nodes))


def _timed(
    step: Attribute,
    side: str,
    place: Input,
    built: Input | None,
    model: ir.Model,
    costs: Mapping[str, NodeCost],
) -> Layers:
    way = step.way
    if isinstance(way, Kernels):
        times = kernel_times(place.path / GRAPH, way.shapes, way.seconds, way.threads)
        return tuple(TimedLayer(layer, ms) for layer, ms in times)
    if isinstance(way, EngineProfile):
        times = _engine_times(way, f"{side}_engine", built, step.kept, model)
        return tuple(TimedLayer(layer, ms) for layer, ms in times)
    layers = [codec.from_json(FusedLayer, layer.to_json()) for layer in way.layers[side]]
    works = of_engine(layers, costs)
    predicted = of_each(works, target(way.name), fitted().efficiencies)
    return tuple(
        TimedLayer(layer, time.total * 1e3, time.compute * 1e3, time.memory * 1e3)
        for layer, time in zip(layers, predicted, strict=True)
    )


def _engine_times(
    way: EngineProfile, name: str, built: Input | None, kept: Path | None, model: ir.Model
) -> list[tuple[FusedLayer, float]]:
    """Times of the engine's layers on zeros, as for the kernels of ONNX Runtime."""
    with engine(way, name, built, kept) as session:
        if not isinstance(session, Profiled):
            raise ToolchainMissing(f"{way.backend} does not report the times of layers")
        feed = {t.name: np.zeros(way.shapes[t.name], t.dtype) for t in session.inputs}
        return session.layer_times(feed, products(model), way.seconds)


def _nodes(model: ir.Model, costs: Mapping[str, NodeCost]) -> dict[str, Node]:
    """The nodes by name, and also by the name of each node that was merged into them."""
    nodes: dict[str, Node] = {}
    for node in model.graph:
        makers = [value.producer() for value in node.inputs if value is not None]
        reads = [n for maker in makers if maker for n in graph.names_in(str(maker.name))]
        cost = costs[str(node.name)]
        facts = Node(
            node.op_type, cost.macs, cost.weight_bytes, tuple(dict.fromkeys(reads)), _summed(node)
        )
        nodes |= dict.fromkeys(graph.names_in(str(node.name)), facts)
    return nodes


def _summed(node: ir.Node) -> int | None:
    """K of [M, K] × [K, N]; None for another operator, or if K is dynamic."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[1] is None:
        return None
    shape, turned = node.inputs[1].shape, node.attributes.get_int("transB", 0)
    if shape is None or len(shape) < 2:
        return None
    size = shape[-1 if turned else -2]
    return size if isinstance(size, int) else None
