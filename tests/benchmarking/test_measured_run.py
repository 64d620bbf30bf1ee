"""A model in ONNX Runtime, through latency, score, drop, fidelity and gate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.benchmarking import accuracy, gates, latency, paired_drop
from optkit.craft.benchmarking.fidelity import fidelity
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed
from optkit.ground.recipe.sections import Limits
from optkit.ground.runtimes import Session, SessionOptions, backend
from tests.scoring import score

pytest.importorskip("onnxruntime")

CENTRES = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)


LIMITS = Limits(max_drop=0.02, min_sqnr=20.0, max_latency_ms=5_000.0)


def classifier(path: Path, weights: np.ndarray) -> Path:
    """logits = x · weightsᵀ, the nearest of four centres wins."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["logits"], name="head")],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 256])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.ascontiguousarray(weights.T), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return path


@pytest.mark.slow
def test_a_slightly_noisy_copy_is_measured_and_passes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    exact = classifier(tmp_path / "exact.onnx", CENTRES)
    noise = rng.normal(0, 1e-3, CENTRES.shape).astype(np.float32)
    rough = classifier(tmp_path / "rough.onnx", CENTRES + noise)

    def opened(path: Path) -> Session:
        return backend("onnxruntime").session(path, SessionOptions(threads=1, spinning=False))

    labels = rng.integers(0, 4, 600)
    inputs = CENTRES[labels] + rng.normal(0, 2.0, (600, 256)).astype(np.float32)
    batches = [({"x": inputs[i : i + 64]}, labels[i : i + 64]) for i in range(0, 600, 64)]

    def top1(outputs: Feed, truth: np.ndarray) -> np.ndarray:
        return outputs["logits"].argmax(1) == truth

    task = accuracy.EvaluationTask("top1", top1)
    with opened(exact) as reference, opened(rough) as candidate:
        scores = tuple(
            score(session, batches, task, evidence=Evidence.MEASURED)
            for session in (reference, candidate)
        )
        likeness = fidelity(
            reference, candidate, batches, name="fp32", evidence=Evidence.MEASURED,
        )  # fmt: skip
    times = latency.measure(
        {"engine": lambda: opened(rough), "baseline": lambda: opened(exact)},
        lambda batch: {"x": inputs[:batch]},
        (1, 8),
        seconds=0.1,
        warmup_seconds=0.01,
        progress=lambda what, fraction: None,
    )

    assert scores[0].value > 0.9
    drop = paired_drop.drop(*scores)
    assert drop.ci95 is not None
    signal, error = inputs @ CENTRES.T, inputs @ noise.T
    expected = 10 * np.log10((signal**2).sum() / (error**2).sum())
    assert likeness.sqnr_db == pytest.approx(expected, abs=0.2)
    assert likeness.samples == 600
    speedup = latency.ratio(times["baseline", 8], times["engine", 8])
    assert speedup.evidence is Evidence.MEASURED
    assert speedup.ci95 is not None
    assert speedup.ci95.low <= speedup.value <= speedup.ci95.high
    verdict = gates.judge(
        LIMITS, drop=drop, scores=(scores[0], scores[1]), fidelity=likeness,
        latency=times["engine", 8], speedup=speedup,
    )  # fmt: skip
    assert verdict.verdict == "pass"
    assert [row.gate for row in verdict.rows] == ["max_drop", "min_sqnr", "max_latency_ms"]
