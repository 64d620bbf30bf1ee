"""How fusion is judged: ONNX Runtime, all of its own optimisations off, before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion import FusionLog, fuse
from optkit.ground import graph

Feed = dict[str, np.ndarray]
Fuse = Callable[..., tuple[ir.Model, FusionLog]]


def run(model: ir.Model, feed: Feed) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[np.ndarray] = session.run(None, feed)
    return found


def random_feed(model: ir.Model, axes: dict[str, int]) -> Feed:
    rng = np.random.default_rng(7)
    feed = {}
    for name, dtype, shape in map(astuple, graph.inputs(model)):
        sizes = [axes[d] if isinstance(d, str) else d for d in shape]
        kind = np.dtype(dtype)
        numbers = rng.standard_normal(sizes) if kind.kind == "f" else rng.integers(0, 9, sizes)
        feed[name] = numbers.astype(kind)
    return feed


@pytest.fixture
def fused() -> Fuse:
    """Fuse a copy (of a model or its text), assert that it computes the same, return it."""

    def check(source: ir.Model | str, tolerance: float = 2e-5, **axes: int) -> tuple:
        given = ir.from_onnx_text(source) if isinstance(source, str) else source
        before = graph.upgrade(given)
        after = before.clone()
        log = fuse(after)
        feed = random_feed(before, axes)
        for old, new in zip(run(before, feed), run(after, feed), strict=True):
            assert old.shape == new.shape and old.dtype == new.dtype
            np.testing.assert_allclose(new, old, rtol=tolerance, atol=tolerance)
        assert graph.inputs(after) == graph.inputs(before)
        assert [o.name for o in graph.outputs(after)] == [o.name for o in graph.outputs(before)]
        counts = [sum(1 for _ in model.graph.all_nodes()) for model in (before, after)]
        assert [log.nodes_before, log.nodes_after] == counts  # with those of subgraphs
        selected = sum(".rows_" in str(node.name) for node in after.graph)  # early, in branches
        assert log.nodes_after <= log.nodes_before + selected
        again = fuse(after)
        assert again.counts == {}  # a fixpoint
        return after, log

    return check
