"""An attention with a cache takes queries, keys and values side by side, and is told angles."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HEADS, GROUPS, SIZE = 4, 2, 16
WIDTHS = (HEADS * SIZE, GROUPS * SIZE, GROUPS * SIZE)
INPUTS = (
    f"float[b, s, {sum(WIDTHS)}] x, float[b, s, {SIZE // 2}] angles, int64[b, t] mask, "
    f"float[b, {GROUPS}, p, {SIZE}] pk, float[b, {GROUPS}, p, {SIZE}] pv"
)
LONGER = f"float[b, {GROUPS}, r, {SIZE}]"
OUTPUTS = f"float[b, s, {WIDTHS[0]}] y, {LONGER} nk, {LONGER} nv"
SPLIT = "q, k, v = Split<axis = -1>(x, sizes)"
TURN = f"""
    q0, k0, v = Split<axis = -1>(x, sizes) cos = Cos(angles) sin = Sin(angles)
    q = RotaryEmbedding<num_heads = {HEADS}>(q0, cos, sin)
    k = RotaryEmbedding<num_heads = {GROUPS}>(k0, cos, sin)
"""
ATTEND = f"""
    length = Shape<start = 1, end = 2>(mask) total = Cast<to = 6>(length) less = Sub(total, one)
    batch = Shape<start = 0, end = 1>(mask) last = Expand(less, batch)
    there = Cast<to = 9>(mask) seen = Unsqueeze(there, axes) keys = Where(seen, zero, low)
    count = Shape<start = 1, end = 2>(x) wide = Concat<axis = 0>(unit, unit, count, unit)
    bias = Expand(keys, wide)
    y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = {HEADS}, kv_num_heads = {GROUPS}>
        (q, k, v, pk, pv, last, total, , , , bias)
"""
CONSTANTS = {
    "sizes": np.array(WIDTHS), "one": np.array([1], np.int32), "unit": np.array([1]),
    "axes": np.array([1, 2]), "zero": np.array(0, np.float32), "low": np.array(-1e9, np.float32),
}  # fmt: skip


def attention(build, body: str) -> ir.Model:
    model = build(INPUTS, OUTPUTS, body, {"": 23, "com.microsoft": 1}, **CONSTANTS)
    for node in model.graph:  # as an exporter leaves them
        for value, width in zip(node.outputs, WIDTHS, strict=False):
            if node.op_type == "Split":
                value.shape = ir.Shape(["b", "s", width])
            if node.op_type in ("Cos", "Sin"):
                value.shape = ir.Shape(["b", "s", SIZE // 2])
    return model


def feed(batch: int, rows: int, past: int, padding: int = 0) -> dict[str, np.ndarray]:
    """The last sample is padded on the left, and its positions count real tokens."""
    random = np.random.default_rng(batch * 1000 + rows * 10 + past)
    mask = np.ones((batch, past + rows), np.int64)
    mask[-1, :padding] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, past:]
    angles = positions[..., None] * 100.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    new = random.standard_normal((batch, rows, sum(WIDTHS)))
    caches = [random.standard_normal((batch, GROUPS, past, SIZE)) for _ in "kv"]
    found = {"x": new, "angles": angles, "pk": caches[0], "pv": caches[1]}
    return {"mask": mask, **{name: each.astype(np.float32) for name, each in found.items()}}


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3), rows=st.integers(1, 5), past=st.integers(0, 6),
    padding=st.integers(0, 4),
)  # fmt: skip
def test_rows_are_taken_side_by_side(
    as_ort, build, batch: int, rows: int, past: int, padding: int
) -> None:
    """A batch, several rows behind a past, padding on the left: what its kernel accepts at all."""
    if past and rows > 1:
        batch = 1
    sizes = (batch, rows, past, min(padding, past + rows - 1))
    after, log = as_ort(attention(build, SPLIT + ATTEND), feed(*sizes))
    assert log.counts["packed"] == 1
    assert "Split" not in [node.op_type for node in after.graph]
    (node,) = (each for each in after.graph if each.op_type == "GroupQueryAttention")
    assert node.inputs[0].name == "x" and node.inputs[1] is node.inputs[2] is None


def test_a_batch_of_padded_prompts_is_turned_by_the_angles_of_each_sample(as_ort, build) -> None:
    """Its kernel's own rotation takes all samples of a prompt to begin at position 0."""
    after, _ = as_ort(attention(build, TURN + ATTEND), feed(2, 4, 0, 2))
    assert [node.op_type for node in after.graph].count("RotaryEmbedding") == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (SPLIT + ATTEND.replace("y, nk, nv =", "y0, nk, nv =") + "y = Add(y0, q)",
            "used elsewhere"),
        (SPLIT.replace("q, k, v", "q, v, k") + ATTEND, "side by side"),
    ],
    ids=["read twice", "order"],
)  # fmt: skip
def test_it_stays_where_that_would_not_be_the_same(as_ort, build, body: str, reason: str) -> None:
    _, log = as_ort(attention(build, body), feed(2, 1, 3))
    assert reason in " ".join(e.reason for e in log.entries if e.outcome == "declined")
