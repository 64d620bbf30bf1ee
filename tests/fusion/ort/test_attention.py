"""Attention becomes one operator, on rows where the heads are only split and joined; rotary
embeddings and packed projections on the way to it go along."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(17)
LOWEST = np.finfo(np.float32).min
SCALES = {
    "both": "qs = Mul(q, half) ks = Mul(kt, half)",
    "query": "qs = Mul(scale, q) ks = Identity(kt)",
    "divided": "qs = Div(q, inverse) ks = Identity(kt)",
}


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def constants(heads: int, groups: int, size: int) -> dict[str, np.ndarray]:
    return {
        "to_q": np.array([0, 0, heads, size]),
        "to_k": np.array([0, 0, groups, size]),
        "to_rows": np.array([0, 0, heads * size]),
        "half": np.array(size**-0.25, np.float32),
        "scale": np.array(size**-0.5, np.float32),
        "inverse": np.array(size**0.5, np.float32),
        "two": np.array([2]),
        "wide": np.array([1, groups, heads // groups, 1, size]),
        "merged": np.array([0, heads, -1, size]),
    }


def body(scale: str = "both", mask: str = "t = Identity(s)", repeat: bool = False) -> str:
    """q3, k3, v3 → y. K is transposed with its heads, unless they are repeated first."""
    heads = "q4 = Reshape(q3, to_q) k4 = Reshape(k3, to_k) v4 = Reshape(v3, to_k) "
    heads += "q = Transpose<perm = [0, 2, 1, 3]>(q4) v = Transpose<perm = [0, 2, 1, 3]>(v4) "
    if repeat:
        heads += "k = Transpose<perm = [0, 2, 1, 3]>(k4) "
        for name in "kv":
            heads += f"{name}u = Unsqueeze({name}, two) {name}e = Expand({name}u, wide) "
            heads += f"{name}r = Reshape({name}e, merged) "
        heads += "kt = Transpose<perm = [0, 1, 3, 2]>(kr) vv = Identity(vr) "
    else:
        heads += "kt = Transpose<perm = [0, 2, 3, 1]>(k4) vv = Identity(v) "
    return (
        f"{heads} {SCALES[scale]} s = MatMul(qs, ks) {mask} p = Softmax<axis = -1>(t) "
        "o = MatMul(p, vv) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, to_rows)"
    )


def plain(text: str) -> str:
    """Without the Identity nodes that stand for a choice not taken."""
    while found := re.search(r"(\w+) = Identity\((\w+)\)", text):
        text = re.sub(rf"\b{found[1]}\b", found[2], text.replace(found[0], ""))
    return text


def inputs(heads: int, groups: int, size: int) -> str:
    return (
        f"float[b, s, {heads * size}] q3, float[b, s, {groups * size}] k3, "
        f"float[b, s, {groups * size}] v3"
    )


def feed(batch: int, rows: int, heads: int, groups: int, size: int) -> dict[str, np.ndarray]:
    widths = {"q3": heads, "k3": groups, "v3": groups}
    return {name: random(batch, rows, width * size) for name, width in widths.items()}


def reference(f: dict[str, np.ndarray], heads: int, groups: int, size: int, mask=0.0):
    """Head by head, row by row, in float64."""
    batch, rows, _ = f["q3"].shape
    result = np.zeros((batch, rows, heads * size))
    bias = np.broadcast_to(mask, (batch, heads, rows, rows)).astype(np.float64)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // groups)
            q = f["q3"][b, :, h * size : (h + 1) * size].astype(np.float64)
            k, v = (f[n][b, :, g * size : (g + 1) * size].astype(np.float64) for n in ("k3", "v3"))
            for row in range(rows):
                scores = k @ q[row] / np.sqrt(size) + bias[b, h, row]
                weights = np.exp(scores - scores.max())
                result[b, row, h * size : (h + 1) * size] = weights @ v / weights.sum()
    return result


def run(model: ir.Model, f: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, f)[0]
    return found


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 7),
    groups=st.integers(1, 3),
    repeats=st.integers(1, 3),
    size=st.sampled_from([2, 4, 8]),
    scale=st.sampled_from(sorted(SCALES)),
)
def test_on_rows_of_any_size(as_ort, build, batch, rows, groups, repeats, size, scale) -> None:
    heads = groups * repeats
    text = plain(body(scale, repeat=repeats > 1))
    c = constants(heads, groups, size)
    if repeats > 1:
        c["wide"] = np.array([1, groups, repeats, 1, size])
    model = build(inputs(heads, groups, size), f"float[b, s, {heads * size}] y", text, **c)
    f = feed(batch, rows, heads, groups, size)
    after, log = as_ort(model, f)
    assert [node.op_type for node in after.graph] == ["Attention"]
    assert after.graph[0].attributes.get_int("kv_num_heads") == groups  # nothing is repeated
    assert log.counts["attention"] == 1
    np.testing.assert_allclose(
        run(after, f), reference(f, heads, groups, size), rtol=1e-4, atol=1e-5
    )


def test_it_has_the_name_of_the_product_with_the_values(as_ort, build) -> None:
    model = build(inputs(2, 2, 4), "float[b, s, 8] y", plain(body()), **constants(2, 2, 4))
    name = [node.name for node in model.graph if node.op_type == "MatMul"][-1]
    after, _ = as_ort(model, feed(2, 3, 2, 2, 4))
    assert [node.name for node in after.graph] == [name]


MASKS = [(5, 5), (1, 5, 5), (2, 5, 5), (1, 1, 5, 5), (3, 1, 5, 5), (1, 2, 5, 5), (3, 2, 5, 5)]


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_with_rows_that_are_all_masked(as_ort, build, shape: tuple[int, ...]) -> None:
    mask = np.where(RNG.random(shape) < 0.4, LOWEST, 0).astype(np.float32)
    mask[..., 1, :] = LOWEST
    text = plain(body(mask="t = Add(s, mask)"))
    given_inputs = inputs(2, 2, 4).replace("b, s", "3, 5")
    model = build(given_inputs, "float[3, 5, 8] y", text, **constants(2, 2, 4), mask=mask)
    f = feed(3, 5, 2, 2, 4)
    after, _ = as_ort(model, f)
    assert [node.op_type for node in after.graph] == ["Attention"]
    expected = reference(f, 2, 2, 4, np.where(mask < 0, -1e30, 0))
    hidden = np.broadcast_to(mask < 0, (3, 2, 5, 5)).all(-1).transpose(0, 2, 1).repeat(4, axis=-1)
    expected = np.where(hidden, f["v3"].mean(1, keepdims=True), expected)
    np.testing.assert_allclose(run(after, f), expected, rtol=1e-4, atol=1e-5)


BOUNDED = {  # how a mask is computed, and what is left of it
    "chosen": ("mask = Where(keep, zero, lowest)", ["Where"]),
    "multiplied": (
        "k = Cast<to = 1>(keep) hide = Sub(one, k) mask = Mul(hide, lowest)",
        ["Cast", "Sub", "Mul", "Max"],
    ),
}


@pytest.mark.parametrize("how", BOUNDED)
def test_layers_share_a_computed_mask(as_ort, build, how: str) -> None:
    """What ONNX Runtime takes for an absent key is raised once."""
    computed, left = BOUNDED[how]
    one = plain(body(mask="t = Add(s, mask)"))
    head, core = one.split("qs = ")
    second = ("qs = " + core).replace("y =", "z =")
    for name in ("qs", "ks", "s", "t", "p", "o", "ot"):
        second = re.sub(rf"\b{name}\b", f"{name}_2", second)
    text = f"{computed} {head} qs = {core} {second}"
    c = constants(2, 2, 4) | {
        "zero": np.array(0, np.float32),
        "one": np.array(1, np.float32),
        "lowest": np.array(LOWEST),
    }
    given_inputs = inputs(2, 2, 4) + ", bool[b, 1, s, s] keep"
    model = build(given_inputs, "float[b, s, 8] y, float[b, s, 8] z", text, **c)
    keep = RNG.random((3, 1, 5, 5)) < 0.6
    keep[:, :, 2] = False
    after, _ = as_ort(model, feed(3, 5, 2, 2, 4) | {"keep": keep})
    assert [node.op_type for node in after.graph] == [*left, "Attention", "Attention"]


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1, 1, 5), (1, 1, 5, 1)])
def test_a_mask_that_broadcasts_over_queries_or_keys_is_declined(as_ort, build, shape) -> None:
    text = plain(body(mask="t = Add(s, mask)"))
    model = build(
        inputs(2, 2, 4).replace("b, s", "3, 5"),
        "float[3, 5, 8] y",
        text,
        **constants(2, 2, 4),
        mask=random(*shape),
    )
    _, log = as_ort(model, feed(3, 5, 2, 2, 4))
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its mask is not known to hold a number per query and key"]


def test_weights_that_are_a_result_keep_the_products(as_ort, build) -> None:
    text = plain(body())
    outputs = "float[b, s, 8] y, float[b, 2, s, s] p"
    model = build(inputs(2, 2, 4), outputs, text, **constants(2, 2, 4))
    _, log = as_ort(model, feed(2, 3, 2, 2, 4))
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its weights are also used elsewhere"]


def test_heads_that_were_not_split_from_rows_stay_heads(as_ort, build) -> None:
    text = (
        "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) t = Mul(s, scale) "
        "p = Softmax<axis = -1>(t) y = MatMul(p, v)"
    )
    given_inputs = "float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v"
    model = build(given_inputs, "float[b, 2, s, 4] y", text, **constants(2, 2, 4))
    f = {name: random(2, 2, 3, 4) for name in "qkv"}
    after, _ = as_ort(model, f)
    assert [node.op_type for node in after.graph] == ["Attention"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("Softmax<axis = -1>", "Softmax<axis = 2>"), "its softmax runs along another axis"),
        (("[0, 2, 3, 1]", "[0, 2, 1, 3]"), "its keys are not the transposed heads, or its scale"),
    ],
)
def test_other_products_of_a_softmax_are_declined(as_ort, build, change, reason: str) -> None:
    text = plain(body()).replace(*change)  # as many rows as features per head: both are products
    given_inputs = inputs(2, 2, 4).replace("b, s", "3, 4")
    model = build(given_inputs, "float[3, 4, 8] y", text, **constants(2, 2, 4))
    _, log = as_ort(model, feed(3, 4, 2, 2, 4))
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert len(reasons) == 1 and reasons[0].startswith(reason)


def test_a_batch_of_queries_on_one_set_of_keys_is_declined(as_ort, build) -> None:
    text = (
        "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) "
        "p = Softmax<axis = -1>(s) y = MatMul(p, v)"
    )
    given_inputs = "float[b, 2, 3, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v"
    model = build(given_inputs, "float[b, 2, 3, 4] y", text)
    f = {"q": random(3, 2, 3, 4), "k": random(1, 2, 3, 4), "v": random(1, 2, 3, 4)}
    _, log = as_ort(model, f)
    reasons = [e.reason for e in log.entries if e.outcome == "declined"]
    assert reasons == ["its queries, keys and values are not known to be of one batch"]


def packed(select: str) -> str:
    cuts = ""
    for index, name in enumerate("qkv"):
        if select == "gather":
            cuts += f"{name} = Gather<axis = 0>(heads, i{index}) "
        else:
            cuts += f"{name}1 = Slice(heads, l{index}, l{index + 1}, l0) "
            cuts += f"{name} = Squeeze({name}1, l0) "
    return (
        "parts = Reshape(x, five) heads = Transpose<perm = [2, 0, 3, 1, 4]>(parts) "
        f"{cuts} kt = Transpose<perm = [0, 1, 3, 2]>(k) qs = Mul(q, half) ks = Mul(kt, half) "
        "s = MatMul(qs, ks) p = Softmax<axis = -1>(s) o = MatMul(p, v) "
        "ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, to_rows)"
    )


@pytest.mark.parametrize("select", ["slice", "gather"])
def test_a_packed_projection_is_read_as_ranges_of_features(as_ort, build, select: str) -> None:
    c = constants(2, 2, 4) | {"five": np.array([0, 0, 3, 2, 4])}
    c |= {f"i{n}": np.array(n) for n in range(3)} | {f"l{n}": np.array([n]) for n in range(4)}
    model = build("float[b, s, 24] x", "float[b, s, 8] y", packed(select), **c)
    x = random(2, 3, 24)
    after, log = as_ort(model, {"x": x})
    assert [node.op_type for node in after.graph] == ["Slice", "Slice", "Slice", "Attention"]
    assert log.counts["unpack_heads"] == 3
    f = dict(zip(("q3", "k3", "v3"), np.split(x, 3, axis=-1), strict=True))
    np.testing.assert_allclose(run(after, {"x": x}), reference(f, 2, 2, 4), rtol=1e-4, atol=1e-5)


def cached(repeats: int) -> str:
    """q, k, v on rows; k and v are put behind what was there, then repeated."""
    text = "q4 = Reshape(q3, to_q) k4 = Reshape(k3, to_k) v4 = Reshape(v3, to_k) "
    for name in "qkv":
        text += f"{name} = Transpose<perm = [0, 2, 1, 3]>({name}4) "
    text += "kc = Concat<axis = 2>(kp, k) "
    text += "vc = Concat<axis = -2>(vp, v) "
    for name in "kv":
        if repeats > 1:
            text += f"{name}u = Unsqueeze({name}c, two) {name}e = Expand({name}u, wide) "
            text += f"{name}r = Reshape({name}e, merged) "
    used = "r" if repeats > 1 else "c"
    return text + (
        f"kt = Transpose<perm = [0, 1, 3, 2]>(k{used}) s0 = MatMul(q, kt) s1 = Mul(s0, scale) "
        f"t = Add(s1, mask) p = Softmax<axis = -1>(t) o = MatMul(p, v{used}) "
        "ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, to_rows)"
    )


def cached_model(build, groups: int, repeats: int, text: str, more: str = ""):
    heads, size = groups * repeats, 4
    c = constants(heads, groups, size) | {"wide": np.array([1, groups, repeats, 1, size])}
    past = f"float[b, {groups}, past, {size}]"
    present = f"float[b, {groups}, t, {size}]"
    given_inputs = f"{inputs(heads, groups, size)}, {past} kp, {past} vp, float[b, 1, s, t] mask"
    outputs = f"float[b, s, {heads * size}] y, {present} kc, {present} vc{more}"
    model = build(given_inputs, outputs, text, **c)
    for node in model.graph:  # what an exporter knows and inference does not
        for value in node.outputs:
            if value.name in ("kc", "vc"):
                value.shape = ir.Shape(["b", groups, "t", size])
            if value.name in ("ke", "ve"):
                value.shape = ir.Shape(["b", groups, repeats, "t", size])
            if value.name in ("kr", "vr"):
                value.shape = ir.Shape(["b", heads, "t", size])
            if value.name == "s0":
                value.shape = ir.Shape(["b", heads, "s", "t"])
    return model


def cached_feed(batch: int, rows: int, past: int, heads: int, groups: int, padding: int):
    """A causal mask, with the first keys of the first sample hidden."""
    f = feed(batch, rows, heads, groups, 4)
    f |= {name: random(batch, groups, past, 4) for name in ("kp", "vp")}
    seen = np.arange(past + rows)[None] <= np.arange(rows)[:, None] + past
    seen = np.broadcast_to(seen, (batch, 1, rows, past + rows)).copy()
    seen[0, :, :, :padding] = False
    return f | {"mask": np.where(seen, 0, LOWEST).astype(np.float32)}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 4),
    past=st.integers(0, 4),
    groups=st.integers(1, 2),
    repeats=st.integers(1, 3),
    padding=st.integers(0, 3),
)
def test_a_cache_is_read_and_handed_out_longer(
    as_ort, build, batch, rows, past, groups, repeats, padding
) -> None:
    """Also an empty one, one with padding on the left, and several tokens behind it in a batch."""
    heads = groups * repeats
    model = cached_model(build, groups, repeats, cached(repeats))
    f = cached_feed(batch, rows, past, heads, groups, padding)
    after, _ = as_ort(model, f, rtol=1e-4)
    assert [node.op_type for node in after.graph][-1] == "Attention"
    attention = after.graph[-1]
    assert attention.attributes.get_int("kv_num_heads") == groups
    assert [value.name for value in attention.outputs] == ["y", "kc", "vc"]
    assert {node.op_type for node in after.graph} <= {"Attention", "Max"}
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    split = f["k3"].reshape(batch, rows, groups, 4).transpose(0, 2, 1, 3)
    present = session.run(["kc"], f)[0]
    np.testing.assert_array_equal(present, np.concatenate([f["kp"], split], axis=2))


def test_a_cache_that_others_read_stays_for_them(as_ort, build) -> None:
    """What they compute may be what the attention reads: the operator's own would be a circle."""
    text = cached(2) + " z = Neg(kc)"
    model = cached_model(build, 2, 2, text, ", float[b, 2, t, 4] z")
    after, _ = as_ort(model, cached_feed(2, 3, 2, 4, 2, 1), rtol=1e-4)
    ops = [node.op_type for node in after.graph]
    assert ops.count("Concat") == 1 and "Attention" in ops and "Neg" in ops


def test_a_cache_of_keys_alone_is_read_whole(as_ort, build) -> None:
    text = cached(2).replace(
        "vc = Concat<axis = -2>(vp, v)", "vw = Concat<axis = -2>(vp, v) vc = Neg(vw)"
    )
    model = cached_model(build, 2, 2, text)
    after, _ = as_ort(model, cached_feed(2, 3, 2, 4, 2, 1), rtol=1e-4)
    attention = next(node for node in after.graph if node.op_type == "Attention")
    assert len(attention.inputs) == 4  # no past
