"""The method for a model that does not fit in memory; if there is none, the model is refused."""

from __future__ import annotations

import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target
from optkit.ground.runtimes import backend
from optkit.road.pipeline.large import estimate, planned_memory, way

GIB = 1 << 30


def found(
    precision: str, weights: str, *, where: str = "cpu", gib: float = 26, sampled: bool = True
) -> str:
    """Of a model with 7 · 2^30 parameters."""
    chosen = backend("onnxruntime" if where == "cpu" else "tensorrt-rtx")
    rules = {PRECISIONS[precision]: chosen.rules(target(where), PRECISIONS[precision])}
    return way(7 * GIB, int(gib * GIB), rules, weights, sampled=sampled, where="m")


@pytest.mark.parametrize("precision", ["int4", "int2", "nf4", "w4a8", "int8-weight-only"])
def test_weights_in_blocks_go_layer_by_layer_with_samples(precision: str) -> None:
    for weights in ("auto", "gptq", "awq"):
        assert found(precision, weights) == "layers"
    assert found(precision, "auto", sampled=False) == "pieces"
    assert found(precision, "rtn") == found(precision, "mse") == "pieces"
    assert found(precision, "gptq", gib=90) == "whole"


@pytest.mark.parametrize(
    ("precision", "weights", "where"),
    [("int4", "hqq", "cpu"), ("int4", "gptaq", "l4"), ("nf4", "hqq", "cpu")],
)  # fmt: skip
def test_what_needs_the_whole_graph_is_refused(precision: str, weights: str, where: str) -> None:
    with pytest.raises(InputRefused) as caught:
        found(precision, weights, where=where)
    assert "28 GiB as FP32; the limit is 26 GiB" in caught.value.message
    assert "--memory" in (caught.value.hint or "")
    assert found(precision, weights, where=where, gib=30) == "whole"  # it may do


@pytest.mark.parametrize(
    ("precision", "weights", "where"),
    [("int8", "auto", "l4"), ("int8", "gptq", "cpu"), ("fp8", "mse", "l4"),
     ("int8", "gptaq", "cpu"), ("int8-weight-only", "hqq", "l4"), ("nvfp4", "rtn", "rtx5090")],
)  # fmt: skip
def test_quantized_activations_and_scales_per_channel_go_in_parts(
    precision: str, weights: str, where: str
) -> None:
    for sampled in (True, False):
        assert found(precision, weights, where=where, sampled=sampled) == "parts"
    assert found(precision, weights, where=where, gib=55) == "parts"
    assert found(precision, weights, where=where, gib=57) == "whole"  # 8 bytes per parameter


def test_an_estimate_counts_codes_and_the_weights_that_get_factors() -> None:
    """Codes wait on disk while the others are chosen; a weight in pieces is written at once."""
    for found, bits, rescales, disk, memory in (
        ("parts", 8, False, 14, 8), ("parts", 8, True, 42, 8), ("layers", 4, True, 7, 8),
        ("pieces", 4, False, 3.5, 1),
    ):  # fmt: skip
        told = estimate(found, 7 * GIB, 8 * GIB, bits, rescales=rescales)
        wanted = f"{disk} GiB of disk, at most {memory} GiB of memory"
        assert f"Estimate, not measured: {wanted}" in told
        assert ("min (as 1.24 B parameters took" in told) == (found != "layers")
    assert "about 86 min" in estimate("parts", 7 * GIB, 8 * GIB, 8, rescales=False)


def test_the_memory_that_is_planned_with_is_the_same_for_limits_alike() -> None:
    assert planned_memory(4 * GIB) == 4 * GIB
    assert planned_memory(int(4.9 * GIB)) == 4 * GIB and planned_memory(5 * GIB) == 5 * GIB
    for limit in (1, 7, 1000, 123_456_789):
        assert 0.8 * limit <= planned_memory(limit) <= limit
