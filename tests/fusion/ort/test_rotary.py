"""Rotary embeddings become one operator: constant and computed angles, on rows and on heads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(23)
ROTATE = (
    "m = Mul({x}, {cos}) lo = Slice({x}, zero, half, three, one) "
    "hi = Slice({x}, half, end, three, one) n = Neg(hi) r = Concat<axis = -1>(n, lo) "
    "t = Mul(r, {sin}) {y} = Add(m, t)"
)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def angles(rows: int, size: int) -> np.ndarray:
    """[S, D/2], as in the paper: position times base^(−2i/D)."""
    return np.outer(np.arange(rows), 100.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)


def constants(rows: int, heads: int, size: int) -> dict[str, np.ndarray]:
    twice = np.concatenate([angles(rows, size)] * 2, axis=1)[None, None]
    return {
        "cos": np.cos(twice),
        "sin": np.sin(twice),
        "zero": np.array([0]),
        "half": np.array([size // 2]),
        "end": np.array([np.iinfo(np.int64).max]),
        "three": np.array([3]),
        "one": np.array([1]),
        "split": np.array([-1, rows, heads, size]),
        "frequencies": angles(2, size)[1],
        "i0": np.array(0),
        "i1": np.array(1),
        "axes": np.array([0, 1]),
        "last": np.array([1]),
        "second": np.array([0]),
    }


def rotated(x: np.ndarray) -> np.ndarray:
    """Pairs (a, b) of every head turned as complex numbers. x [B, N, S, D]."""
    turn = np.exp(1j * angles(*x.shape[2:]).astype(np.float64))
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    z = (a + 1j * b) * turn
    return np.concatenate([z.real, z.imag], axis=-1)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 6),
    heads=st.integers(1, 3),
    size=st.sampled_from([2, 4, 8]),
)
def test_on_rows(as_ort, build, batch: int, rows: int, heads: int, size: int) -> None:
    body = "a = Reshape(x3, split) x = Transpose<perm = [0, 2, 1, 3]>(a) "
    body += ROTATE.format(x="x", cos="cos", sin="sin", y="y")
    model = build(
        f"float[b, {rows}, {heads * size}] x3",
        f"float[b, {heads}, {rows}, {size}] y",
        body,
        **constants(rows, heads, size),
    )
    x = random(batch, rows, heads * size)
    after, log = as_ort(model, {"x3": x})
    assert [node.op_type for node in after.graph] == ["RotaryEmbedding", "Reshape", "Transpose"]
    assert log.counts["rotary"] == 1
    split = x.reshape(batch, rows, heads, size).transpose(0, 2, 1, 3)
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    np.testing.assert_allclose(
        session.run(None, {"x3": x})[0], rotated(split), rtol=1e-4, atol=1e-5
    )


def test_on_heads(as_ort, build) -> None:
    body = ROTATE.format(x="x", cos="cos", sin="sin", y="y")
    model = build("float[b, 2, 5, 4] x", "float[b, 2, 5, 4] y", body, **constants(5, 2, 4))
    after, _ = as_ort(model, {"x": random(3, 2, 5, 4)})
    assert [node.op_type for node in after.graph] == ["RotaryEmbedding"]


COUNTED = (
    "shape = Shape<start = 2, end = 3>(x) length = Squeeze(shape) p = Range(i0, length, i1) "
    "f = Cast<to = 1>(p) column = Unsqueeze(f, last) angle = Mul(column, frequencies) "
)
GIVEN = "wide = Unsqueeze(positions, minus) f = Cast<to = 1>(wide) angle = Mul(f, frequencies) "
TWICE = "twice = Concat<axis = -1>(angle, angle) c2 = Cos(twice) s2 = Sin(twice) "
PER_TOKEN = TWICE + "cosine = Unsqueeze(c2, last) sine = Unsqueeze(s2, last) "
ANGLES = {  # where they come from, the shape of cos, and what is left of the way there
    "counted": (
        COUNTED + TWICE + "cosine = Unsqueeze(c2, axes) sine = Unsqueeze(s2, axes) ",
        [1, 1, "s", 4],
        {"Cos": 1, "Sin": 1, "Concat": 0, "Slice": 0},
    ),
    "counted, a batch of one": (
        COUNTED + "alone = Unsqueeze(angle, second) twice = Concat<axis = -1>(alone, alone) "
        "c2 = Cos(twice) s2 = Sin(twice) "
        "cosine = Unsqueeze(c2, last) sine = Unsqueeze(s2, last) ",
        [1, 1, "s", 4],
        {"Cos": 1, "Sin": 1, "Concat": 1, "Slice": 2},
    ),
    "given per token": (
        GIVEN + PER_TOKEN,
        ["b", 1, "s", 4],
        {"Cos": 1, "Sin": 1, "Concat": 0, "Slice": 0},
    ),
}


def twice_rotated(computed: str) -> str:
    """x turned by the same computed angles in two layers."""
    second = ROTATE.format(x="u", cos="cosine", sin="sine", y="y")
    for name in ("m", "lo", "hi", "n", "r", "t"):
        second = second.replace(f"{name} =", f"{name}_ =").replace(f"({name})", f"({name}_)")
        second = second.replace(f"({name},", f"({name}_,").replace(f", {name})", f", {name}_)")
    return computed + ROTATE.format(x="x", cos="cosine", sin="sine", y="u") + " " + second


@pytest.mark.parametrize("case", ANGLES)
def test_computed_angles_are_halved_once_for_all_layers(as_ort, build, case: str) -> None:
    computed, shape, left = ANGLES[case]
    inputs, feed = "float[b, 2, s, 4] x", {"x": random(3, 2, 5, 4)}
    if "positions" in computed:
        inputs += ", int64[b, s] positions"
        feed["positions"] = RNG.integers(0, 40, (3, 5))
    c = constants(5, 2, 4) | {"minus": np.array([-1])}
    model = build(inputs, "float[b, 2, s, 4] y", twice_rotated(computed), **c)
    for value in model.graph.all_nodes():  # what an exporter knows and inference does not
        for output in value.outputs:
            if output.name in ("cosine", "sine"):
                output.shape = type(output.shape)(shape)
    after, log = as_ort(model, feed)
    assert log.counts["rotary"] == 2
    ops = [node.op_type for node in after.graph]
    assert {op: ops.count(op) for op in left} == left
    rotations = [node for node in after.graph if node.op_type == "RotaryEmbedding"]
    assert len({tuple(node.inputs[-2:]) for node in rotations}) == 1


def test_positions_per_token_turn_every_token_by_its_own(as_ort, build) -> None:
    body = (
        ANGLES["given per token"][0]
        + "a = Reshape(x3, split) x = Transpose<perm = [0, 2, 1, 3]>(a) "
    )
    body += ROTATE.format(x="x", cos="cosine", sin="sine", y="y")
    c = constants(5, 2, 4) | {"minus": np.array([-1]), "split": np.array([0, 5, 2, 4])}
    inputs = "float[b, 5, 8] x3, int64[b, 5] positions"
    model = build(inputs, "float[b, 2, 5, 4] y", body, **c)
    x, positions = random(3, 5, 8), RNG.integers(0, 40, (3, 5))
    after, _ = as_ort(model, {"x3": x, "positions": positions}, rtol=1e-4)
    assert [n.op_type for n in after.graph][-3:] == ["RotaryEmbedding", "Reshape", "Transpose"]
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    found = session.run(None, {"x3": x, "positions": positions})[0]
    turn = np.exp(1j * positions[:, None, :, None] * angles(2, 4)[1])
    a, b = np.split(x.reshape(3, 5, 2, 4).transpose(0, 2, 1, 3).astype(np.float64), 2, axis=-1)
    z = (a + 1j * b) * turn
    expected = np.concatenate([z.real, z.imag], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


CHANGES = {
    "interleaved angles": ("cos", "the halves of its angles differ"),
    "angles per head": ("heads", "its angles are not one row per position"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_angles_are_declined(as_ort, build, case: str) -> None:
    which, reason = CHANGES[case]
    c = constants(5, 2, 4)
    if which == "cos":
        c["cos"] = np.repeat(c["cos"][..., :2], 2, axis=-1)
    else:
        c["cos"] = np.concatenate([c["cos"], -c["cos"]], axis=1)
    body = ROTATE.format(x="x", cos="cos", sin="sin", y="y")
    model = build("float[b, 2, 5, 4] x", "float[b, 2, 5, 4] y", body, **c)
    _, log = as_ort(model, {"x": random(3, 2, 5, 4)})
    assert [e.reason for e in log.entries] == [reason]


def test_halves_in_the_other_order_are_no_rotation(as_ort, build) -> None:
    body = ROTATE.format(x="x", cos="cos", sin="sin", y="y").replace("(n, lo)", "(lo, n)")
    model = build("float[b, 2, 5, 4] x", "float[b, 2, 5, 4] y", body, **constants(5, 2, 4))
    _, log = as_ort(model, {"x": random(3, 2, 5, 4)})
    assert log.entries == ()
