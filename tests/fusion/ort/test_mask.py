"""Masks per key and lookups of all pairs are written down shortly, and mean what they meant."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(43)
LOWEST = np.finfo(np.float32).min
CONSTANTS = {
    "i0": np.array(0),
    "i1": np.array(1),
    "minus": np.array([-1]),
    "first": np.array([0]),
    "behind_rows": np.array([1, 2, 3]),
    "before_columns": np.array([0, 1, 2]),
    "behind": np.array([3]),
    "zero": np.array(0, np.float32),
    "low": np.array(LOWEST),
    "lower": np.array(-1e4, np.float32),
}
ROWS = "n = Shape<start = 0, end = 1>(m) rows = Squeeze(n, first) "
COLUMNS = "t = Shape<start = 1, end = 2>(m) columns = Squeeze(t, first) "
LOOKUP = (  # what torch's exporter writes for m[i, j]
    "j = Range(i0, columns, i1) i = Range(i0, rows, i1) "
    "iu = Unsqueeze(i, behind_rows) ju = Unsqueeze(j, before_columns) "
    "both = Max(iu, ju) shape = Shape(both) ie = Expand(iu, shape) je = Expand(ju, shape) "
    "il = Unsqueeze(ie, minus) jl = Unsqueeze(je, minus) pairs = Concat<axis = -1>(il, jl) "
    "y = GatherND(m, pairs)"
)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def known(model: ir.Model, **shapes: list[int | str]) -> ir.Model:
    """What an exporter knows and inference does not."""
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape = ir.Shape(shapes[value.name])
    return model


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.integers(1, 4), columns=st.integers(1, 6))
def test_all_pairs_are_the_matrix_itself(as_ort, build, batch: int, columns: int) -> None:
    body = ROWS + COLUMNS + LOOKUP
    model = build("bool[b, t] m", "bool[b, 1, 1, t] y", body, **CONSTANTS)
    known(model, i=["b"], j=["t"], y=["b", 1, 1, "t"])
    after, log = as_ort(model, {"m": RNG.random((batch, columns)) < 0.5})
    assert ops(after) == ["Unsqueeze"] and log.counts["mask_grid"] == 1


def test_some_columns_are_taken_at_once(as_ort, build) -> None:
    inputs, outputs = "bool[b, t] m, int64 columns", "bool[b, 1, 1, k] y"
    model = build(inputs, outputs, ROWS + LOOKUP, **CONSTANTS)
    known(model, i=["b"], j=["k"], y=["b", 1, 1, "k"])
    m = RNG.random((3, 7)) < 0.5
    after, _ = as_ort(model, {"m": m, "columns": np.array(5)})
    assert ops(after) == ["Range", "Gather", "Unsqueeze"]
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    np.testing.assert_array_equal(
        session.run(None, {"m": m, "columns": np.array(5)})[0], m[:, None, None, :5]
    )


def test_rows_that_are_not_all_are_declined(as_ort, build) -> None:
    inputs, outputs = "bool[b, t] m, int64 rows", "bool[r, 1, 1, t] y"
    model = build(inputs, outputs, COLUMNS + LOOKUP, **CONSTANTS)
    known(model, i=["r"], j=["t"], y=["r", 1, 1, "t"])
    _, log = as_ort(model, {"m": RNG.random((3, 7)) < 0.5, "rows": np.array(2)})
    assert [e.reason for e in log.entries] == ["it is not known to look up every row once"]


ATTEND = (
    "kt = Transpose<perm = [0, 2, 3, 1]>(k4) q = Transpose<perm = [0, 2, 1, 3]>(q4) "
    "v = Transpose<perm = [0, 2, 1, 3]>(v4) s = MatMul(q, kt) t = Add(s, mask) "
    "p = Softmax<axis = -1>(t) o = MatMul(p, v) ot = Transpose<perm = [0, 2, 1, 3]>(o) "
    "y = Reshape(ot, to_rows)"
)
SPLIT = "q4 = Reshape(q3, heads) k4 = Reshape(k3, heads) v4 = Reshape(v3, heads) "
INPUTS = "float[b, s, 16] q3, float[b, t, 16] k3, float[b, t, 16] v3"
SHAPES = {"heads": np.array([0, 0, 2, 8]), "to_rows": np.array([0, 0, 16])}
PER_KEY = "c = Unsqueeze(m, ones) "
ONES = {"ones": np.array([1, 2]), "always": np.array(True), "axis": np.array([1])}


def feed(queries: int, columns: int) -> dict[str, np.ndarray]:
    sizes = {"q3": queries, "k3": columns, "v3": columns}
    return {n: RNG.standard_normal((3, s, 16)).astype(np.float32) for n, s in sizes.items()}


@pytest.mark.parametrize("low", ["low", "lower"])
@pytest.mark.parametrize("always", ["", "d = And(always, c) ", "d = And(c, always) "])
def test_a_mask_per_key_is_integers(as_ort, build, low: str, always: str) -> None:
    """Also where a sample has no key at all: its rows get the mean of the values."""
    chosen = f"mask = Where({'d' if always else 'c'}, zero, {low}) "
    body = SPLIT + PER_KEY + always + chosen + ATTEND
    c = CONSTANTS | SHAPES | ONES
    model = build(INPUTS + ", bool[b, t] m", "float[b, s, 16] y", body, **c)
    m = RNG.random((3, 5)) < 0.6
    m[0], m[1, 0] = False, True
    f = feed(4, 5) | {"m": m}
    after, _ = as_ort(model, f)
    assert ops(after) == ["Cast", "MultiHeadAttention"]
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    mean = f["v3"][0].mean(0)
    if low == "low":
        np.testing.assert_allclose(
            session.run(None, f)[0][0], np.tile(mean, (4, 1)), rtol=1e-5, atol=1e-5
        )


def test_a_mask_per_key_of_one_sample_for_all_is_declined(as_ort, build) -> None:
    body = SPLIT + PER_KEY + "mask = Where(c, zero, low) " + ATTEND
    inputs = INPUTS + ", bool[1, t] m"
    model = build(inputs, "float[b, s, 16] y", body, **CONSTANTS, **SHAPES, **ONES)
    _, log = as_ort(model, feed(4, 5) | {"m": RNG.random((1, 5)) < 0.6})
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its mask is not known to hold a number per query and key"]


COUNTED = "n = Shape<start = 1, end = 2>(q3) l = Squeeze(n, first) r = Range(i0, l, i1)"
CHOSEN = "mask = Where(u, zero, low) "
HIDES_NOTHING = {
    "constant": ("mask = Where(always, zero, low) ", 0),
    "counted": (
        f"{COUNTED} c = GreaterOrEqual(r, i0) d = And(c, always) u = Unsqueeze(d, axis) {CHOSEN}",
        0,
    ),
    "counted from one": (f"{COUNTED} c = GreaterOrEqual(r, i1) u = Unsqueeze(c, axis) {CHOSEN}", 1),
}


@pytest.mark.parametrize("case", HIDES_NOTHING)
def test_a_mask_that_hides_nothing_is_dropped(as_ort, build, case: str) -> None:
    computed, declined = HIDES_NOTHING[case]
    body = SPLIT + computed + ATTEND
    c = CONSTANTS | SHAPES | ONES
    model = build(INPUTS, "float[b, s, 16] y", body, **c)
    known(model, r=["s"])
    after, log = as_ort(model, feed(4, 5))
    assert (ops(after) == ["Attention"]) == (not declined)
    assert sum(e.outcome == "declined" for e in log.entries) == declined
