"""Three projections of one input and their attention become one operator, or stay with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.craft.fusion.ort import to_ort
from optkit.ground import graph
from tests.codes import weights

RNG = np.random.default_rng(47)
LOWEST = np.finfo(np.float32).min


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def constants(width: int, heads: int, size: int) -> dict[str, np.ndarray]:
    rows = heads * size
    weights = {f"w{n}": random(width, rows) / np.float32(width**0.5) for n in "qkv"}
    return {
        **weights,
        **{f"b{n}": random(rows) for n in "qkv"},
        "heads": np.array([0, 0, heads, size]),
        "to_rows": np.array([0, 0, rows]),
        "scale": np.array(size**-0.5, np.float32),
        "zero": np.array(0, np.float32),
        "low": np.array(LOWEST),
        "ones": np.array([1, 2]),
    }


def body(mask: str = "", biased: str = "qkv", shared: str = "", after: str = "") -> str:
    text = ""
    for name in "qkv":
        weight = "wq" if name in shared else f"w{name}"
        made = f"p{name} = MatMul(x, {weight}) r{name} = Add(p{name}, b{name}) "
        text += made if name in biased else f"r{name} = MatMul(x, {weight}) "
        text += f"{name}4 = Reshape(r{name}, heads) "
    added = f"{mask} a = Add(t, mask) p = Softmax<axis = -1>(a) " if mask else ""
    return text + (
        "q = Transpose<perm = [0, 2, 1, 3]>(q4) v = Transpose<perm = [0, 2, 1, 3]>(v4) "
        "kt = Transpose<perm = [0, 2, 3, 1]>(k4) s = MatMul(q, kt) t = Mul(s, scale) "
        + (added or "p = Softmax<axis = -1>(t) ")
        + "o = MatMul(p, v) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, to_rows) "
        + after
    )


def reference(x: np.ndarray, c: dict[str, np.ndarray], biased: str, hidden=None) -> np.ndarray:
    """Head by head in float64. `hidden` [B, T]: keys that are not there."""
    x = x.astype(np.float64)
    q, k, v = (x @ c[f"w{n}"] + (c[f"b{n}"] if n in biased else 0) for n in "qkv")
    heads, size = c["heads"][2:]
    result = np.zeros_like(q)
    for head in range(heads):
        cut = slice(head * size, (head + 1) * size)
        scores = q[..., cut] @ k[..., cut].transpose(0, 2, 1) / np.sqrt(size)
        if hidden is not None:
            scores = np.where(hidden[:, None, :], LOWEST, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result[..., cut] = weights / weights.sum(-1, keepdims=True) @ v[..., cut]
    return result


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, feed)[0]
    return found


def kinds(model: ir.Model) -> list[str]:
    return [f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph]


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 6),
    heads=st.integers(1, 3),
    size=st.sampled_from([4, 8]),
    biased=st.sampled_from(["", "q", "qv", "qkv"]),
)
def test_of_any_size(as_ort, build, batch, rows, heads, size, biased) -> None:
    c = constants(12, heads, size)
    model = build("float[b, s, 12] x", f"float[b, s, {heads * size}] y", body("", biased), **c)
    x = random(batch, rows, 12)
    after, _ = as_ort(model, {"x": x}, rtol=1e-4)
    assert kinds(after) == ["com.microsoft.Attention"]
    expected = reference(x, c, biased)
    np.testing.assert_allclose(run(after, {"x": x}), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wide", ["", "k2 = And(k1, all)"])
def test_a_mask_per_key(as_ort, build, wide: str) -> None:
    """Written per key, or per query and key."""
    c = constants(12, 2, 8)
    text = body(f"k1 = Unsqueeze(m, ones) {wide} mask = Where({'k2' if wide else 'k1'}, zero, low)")
    c |= {"all": np.ones((1, 1, 5, 1), bool)}
    model = build("float[b, 5, 12] x, bool[b, 5] m", "float[b, 5, 16] y", text, **c)
    m = RNG.random((3, 5)) < 0.6
    m[0] = False  # a sample of nothing but padding
    f = {"x": random(3, 5, 12), "m": m}
    after, _ = as_ort(model, f, rtol=1e-4)
    assert kinds(after) == ["Cast", "com.microsoft.Attention"]
    expected = reference(f["x"], c, "qkv", ~m)
    np.testing.assert_allclose(run(after, f), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (3, 2, 5, 5)])
def test_a_mask_per_query_is_added(as_ort, build, shape: tuple[int, ...]) -> None:
    c = constants(12, 2, 8) | {"mask": random(*shape)}
    model = build("float[3, 5, 12] x", "float[3, 5, 16] y", body(" "), **c)
    after, _ = as_ort(model, {"x": random(3, 5, 12)}, rtol=1e-4)
    assert kinds(after) == ["com.microsoft.Attention"]


def test_a_mask_of_two_axes_is_declined(as_ort, build) -> None:
    c = constants(12, 2, 8) | {"mask": random(5, 5)}
    model = build("float[3, 5, 12] x", "float[3, 5, 16] y", body(" "), **c)
    after, log = as_ort(model, {"x": random(3, 5, 12)}, rtol=1e-4)
    assert kinds(after)[-1] == "Attention"
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its mask is not known to be [B, N, S, T]"]


TWO = "y = Attention<q_num_heads = 2, kv_num_heads = 2"
FOREIGN = {  # operators of a model that comes with them, and whether their projections go along
    "no mask": (f"{TWO}>(rq, rk, rv)", True),
    "causal": (f"{TWO}, is_causal = 1>(rq, rk, rv)", False),
    "fewer key heads": ("y = Attention<q_num_heads = 4, kv_num_heads = 2>(rq, rk2, rv2)", False),
    "lowest": (f"{TWO}>(rq, rk, rv, hard)", False),
    "bool": (f"{TWO}>(rq, rk, rv, seen)", False),
    "bounded": (f"{TWO}>(rq, rk, rv, soft)", True),
    "own bias": ("y = com.microsoft.MultiHeadAttention<num_heads = 2>(rq, rk, rv, b)", False),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_an_attention_that_does_more_keeps_its_products(as_ort, build, case: str) -> None:
    """Not matched: what its attributes, its mask or its own bias add."""
    written, joined = FOREIGN[case]
    text = "".join(f"r{name} = MatMul(x, w{name}) " for name in "qkv")
    text += "rk2 = Slice(rk, n0, n8, n2) rv2 = Slice(rv, n0, n8, n2) " if "rk2" in written else ""
    hidden = np.where(RNG.random((1, 1, 5, 5)) < 0.3, LOWEST, 0).astype(np.float32)
    hidden[..., 2, :] = LOWEST
    c = constants(12, 2, 8) | {"hard": hidden, "soft": np.maximum(hidden, np.float32(-1e4))}
    c |= {"seen": hidden == 0, "b": random(48)}
    c |= {f"n{n}": np.array([n]) for n in (0, 2, 8)}
    imports = {"": 23, "com.microsoft": 1}
    model = build("float[b, 5, 12] x", "float[b, 5, 16] y", text + written, imports, **c)
    after, log = as_ort(model, {"x": random(3, 5, 12)}, rtol=1e-4)
    assert (log.counts.get("projection") == 1) == joined
    assert (kinds(after) == ["com.microsoft.Attention"]) == joined


def test_weights_in_a_data_file_are_joined_when_it_is_written(build, tmp_path: Path) -> None:
    c = constants(300, 2, 128)  # more rows than a block
    model = build("float[b, s, 300] x", "float[b, s, 256] y", body(), **c)
    graph.save(model, tmp_path / "before.onnx", inline_limit=0)
    loaded = graph.load(tmp_path / "before.onnx")
    to_ort(loaded)
    [attention] = loaded.graph
    weight = attention.inputs[1].const_value
    assert isinstance(weight, ir.LazyTensor)  # not yet computed
    graph.save(loaded, tmp_path / "after.onnx", inline_limit=0)
    joined = graph.load(tmp_path / "after.onnx").graph[0].inputs[1].const_value.numpy()
    np.testing.assert_array_equal(joined, np.concatenate([c[f"w{n}"] for n in "qkv"], axis=1))
    x = random(2, 3, 300)
    session = onnxruntime.InferenceSession(tmp_path / "after.onnx")
    found = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(found, reference(x, c, "qkv"), rtol=1e-4, atol=1e-4)


def test_small_weights_may_be_shared(as_ort, build) -> None:
    c = constants(12, 2, 8)
    outputs = "float[b, s, 16] y, float[b, s, 16] z"
    text = body(shared="k", after="z = MatMul(x, wq)")
    model = build("float[b, s, 12] x", outputs, text, **c)
    after, _ = as_ort(model, {"x": random(2, 5, 12)}, rtol=1e-4)
    assert kinds(after) == ["com.microsoft.Attention", "MatMul"]


def test_large_shared_weights_are_declined(as_ort, build) -> None:
    c = constants(512, 2, 128)
    outputs = "float[b, s, 256] y, float[b, s, 256] z"
    model = build("float[b, s, 512] x", outputs, body(after="z = MatMul(x, wv)"), **c)
    _, log = as_ort(model, {"x": random(1, 3, 512)}, rtol=1e-4, atol=1e-4)
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its weights are shared: joined they would add 524,288 bytes to the model"]


def test_projections_that_others_read_are_declined(as_ort, build) -> None:
    outputs = "float[b, s, 16] y, float[b, s, 16] z"
    model = build("float[b, s, 12] x", outputs, body(after="z = Neg(rk)"), **constants(12, 2, 8))
    _, log = as_ort(model, {"x": random(2, 5, 12)}, rtol=1e-4)
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its projections are also used elsewhere"]


def test_attention_to_another_input_keeps_its_products(as_ort, build) -> None:
    text = body().replace("pv = MatMul(x, wv)", "pv = MatMul(z, wv)")
    inputs = "float[b, s, 12] x, float[b, s, 12] z"
    model = build(inputs, "float[b, s, 16] y", text, **constants(12, 2, 8))
    after, _ = as_ort(model, {"x": random(2, 5, 12), "z": random(2, 5, 12)}, rtol=1e-4)
    assert kinds(after)[-1] == "Attention"


def test_products_of_codes_stay_integers(as_ort, build) -> None:
    c = constants(12, 2, 8) | {"sa": np.array(0.02, np.float32), "za": np.array(117, np.uint8)}
    codes = "e = QuantizeLinear(u, sa, za) x = DequantizeLinear(e, sa, za) "
    for name in "qkv":
        c[f"c{name}"] = weights(RNG, (12, 16))
        c[f"s{name}"] = RNG.uniform(0.002, 0.01, 16).astype(np.float32)
        del c[f"w{name}"]
        codes += f"w{name} = DequantizeLinear<axis = 1>(c{name}, s{name}) "
    model = build("float[b, s, 12] u", "float[b, s, 16] y", codes + body(), **c)
    after, _ = as_ort(model, {"u": random(2, 5, 12)}, rtol=1e-4)
    assert kinds(after) == [
        "QuantizeLinear", *["com.microsoft.MatMulIntegerToFloat"] * 3, "Attention",
    ]  # fmt: skip
