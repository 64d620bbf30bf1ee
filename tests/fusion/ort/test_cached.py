"""A causal attention with a cache is written so that the cache may be a buffer of full length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.backends.ort_session import OrtSession
from optkit.craft.fusion.ort import to_ort
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.decoder import IN_PLACE
from optkit.ground.decoder import WINDOW as NOTED
from optkit.ground.runtimes import SessionOptions, backend

HEADS, GROUPS, SIZE = 4, 2, 8
LOW = np.float32(-1e9)
CARRIED = {"nk": "pk", "nv": "pv"}
PAST = "past1 = Shape<start = 2, end = 3>(pk) past = Squeeze(past1)"
CAUSAL = "later = LessOrEqual(keys, queries)"
BODY = f"""
    {PAST}
    rows1 = Shape<start = 1, end = 2>(q) rows = Squeeze(rows1)
    all = Add(past, rows) kr = Range(zero, all, one) qr = Range(zero, rows, one)
    qp = Add(qr, past) keys = Unsqueeze(kr, key_axes) queries = Unsqueeze(qp, query_axes)
    {CAUSAL} there = Cast<to = 9>(mask) seen = Unsqueeze(there, mask_axes)
    keep = And(later, seen) bias = Where(keep, nothing, low)
    y, nk, nv = Attention<q_num_heads = {HEADS}, kv_num_heads = {GROUPS}, scale = 0.3>
        (q, k, v, bias, pk, pv)
"""
WINDOW = """apart = Sub(queries, two) near = GreaterOrEqual(keys, apart)
    both = And(later, near) keep = And(both, seen)"""
WINDOWED = BODY.replace("keep = And(later, seen)", WINDOW)  # of three keys
ON_HEADS = f"""
    qa = Reshape(q, apart_q) ka = Reshape(k, apart_k) va = Reshape(v, apart_k)
    qt = Transpose<perm = [0, 2, 1, 3]>(qa) kt = Transpose<perm = [0, 2, 1, 3]>(ka)
    qh = Neg(qt) kh = Neg(kt) vh = Transpose<perm = [0, 2, 1, 3]>(va)
    {
    BODY.replace(f"q_num_heads = {HEADS}, kv_num_heads = {GROUPS}, ", "")
    .replace("y, nk", "heads, nk")
    .replace("(q, k, v, b", "(qh, kh, vh, b")
}
    turned = Transpose<perm = [0, 2, 1, 3]>(heads) y = Reshape(turned, together)
"""
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "low": np.array(LOW),
    "nothing": np.array(0, np.float32), "soft": np.array(-2, np.float32),
    "key_axes": np.array([0, 1, 2]), "query_axes": np.array([0, 1, 3]),
    "mask_axes": np.array([1, 2]), "first": np.array([0]), "second": np.array([1]),
    "apart_q": np.array([0, 0, HEADS, SIZE]), "apart_k": np.array([0, 0, GROUPS, SIZE]),
    "together": np.array([0, 0, HEADS * SIZE]),
}  # fmt: skip
SHAPES = {
    "q": ("b", "s", HEADS * SIZE), "k": ("b", "s", GROUPS * SIZE), "v": ("b", "s", GROUPS * SIZE),
    "mask": ("b", "p + s"), "pk": ("b", GROUPS, "p", SIZE), "pv": ("b", GROUPS, "p", SIZE),
}  # fmt: skip


def attention(build, body: str = BODY, size: int = SIZE, **shapes: tuple[int | str, ...]):
    widths = [count * size for count in (HEADS, GROUPS)]
    caches = f"float[b, {GROUPS}, p, {size}]"
    model = build(
        f"float[b, s, {widths[0]}] q, float[b, s, {widths[1]}] k, float[b, s, {widths[1]}] v, "
        f"int64[b, t] mask, {caches} pk, {caches} pv",
        f"float[b, s, {widths[0]}] y, {caches} nk, {caches} nv",
        body, {"": 23}, **CONSTANTS,
    )  # fmt: skip
    known = {"mask": SHAPES["mask"], **shapes}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in known:
            value.shape = ir.Shape(known[value.name])
        if value.name in CARRIED:
            value.shape = ir.Shape(["b", GROUPS, "p + s", size])
    for node in model.graph:
        for value in node.outputs:
            value.shape = value.shape if value.is_graph_output() else None  # of the old axes
    return model


def feed(batch: int, rows: int, past: int, padding: int = 0, size: int = SIZE) -> Feed:
    """The last sample is padded on the left."""
    random = np.random.default_rng(batch * 1000 + rows * 10 + past)
    sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    mask = np.ones((batch, past + rows), np.int64)
    mask[-1, :padding] = 0
    found = {
        **{n: random.standard_normal((batch, rows, size * c)) for n, c in sizes.items()},
        **{n: random.standard_normal((batch, GROUPS, past, size)) for n in ("pk", "pv")},
    }
    return {"mask": mask, **{name: x.astype(np.float32) for name, x in found.items()}}


def reference(f: Feed, window: int = 1 << 20) -> np.ndarray:
    """In float64, for the rows that are no padding; the others are zero."""
    batch, rows, _ = f["q"].shape
    q, k, v = (
        f[name].astype(np.float64).reshape(batch, rows, -1, SIZE).swapaxes(1, 2) for name in "qkv"
    )
    k, v = (
        np.repeat(np.concatenate([f[past], new], 2), HEADS // GROUPS, 1)
        for past, new in (("pk", k), ("pv", v))
    )
    past = f["pk"].shape[2]
    distance = past + np.arange(rows)[:, None] - np.arange(past + rows)
    hidden = (distance < 0) | (distance >= window) | (f["mask"] == 0)[:, None, None, :]
    scores = np.where(hidden, -np.inf, 0.3 * (q @ k.swapaxes(2, 3)))
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    found: np.ndarray = (weights @ v).swapaxes(1, 2).reshape(batch, rows, -1)
    return found


@pytest.mark.parametrize("body", [BODY, WINDOWED], ids=["causal", "window"])
@pytest.mark.parametrize("sizes", [(1, 1, 0), (3, 7, 0), (3, 1, 9, 4), (1, 4, 9, 2)], ids=str)
def test_it_computes_the_same(as_ort, build, body: str, sizes: tuple[int, ...]) -> None:
    after, log = as_ort(attention(build, body), feed(*sizes))
    assert log.counts["cached"] == 1
    ops = [node.op_type for node in after.graph]
    assert "GroupQueryAttention" in ops and "Attention" not in ops
    lengths = {node.inputs[0].name for node in after.graph if node.op_type == "Shape"}
    assert lengths <= {"q", "mask"}  # a buffer's own length says nothing
    assert json.loads(after.metadata_props[IN_PLACE]) == ["nk", "nv"]


@pytest.mark.parametrize("cap", ["", ", softcap = 1.5"], ids=["plain", "capped"])
@pytest.mark.parametrize("body", [BODY, ON_HEADS], ids=["rows", "heads"])
def test_it_takes_heads_and_a_cap_of_the_scores(as_ort, build, body: str, cap: str) -> None:
    capped = body.replace("scale = 0.3", f"scale = 0.3{cap}")
    after, log = as_ort(attention(build, capped), feed(1, 5, 4, 2))
    assert log.counts["cached"] == 1
    (node,) = (node for node in after.graph if node.op_type == "GroupQueryAttention")
    assert node.attributes.get_float("softcap", 0.0) == (1.5 if cap else 0.0)
    turned = [node for node in after.graph if node.op_type == "Transpose"]
    assert len(turned) == (4 if body == ON_HEADS else 0)  # q and k to heads and back; v is rows
    as_ort(attention(build, capped), feed(3, 7, 0))


@pytest.mark.parametrize(
    ("near", "width"),
    [
        ("GreaterOrEqual(keys, apart)", 3),
        ("Greater(keys, apart)", 2),
        ("LessOrEqual(apart, keys)", 3),
        ("Less(apart, keys)", 2),
        ("Less(keys, apart)", None),
        ("Greater(queries, apart)", None),
    ],
)
def test_the_window_of_all_layers_is_noted(build, near: str, width: int | None) -> None:
    model = attention(build, WINDOWED.replace("GreaterOrEqual(keys, apart)", near))
    to_ort(model)
    assert model.metadata_props.get(NOTED) == (None if width is None else str(width))
    assert IN_PLACE in model.metadata_props


def test_what_a_mask_hides_from_all_queries_is_all_that_stays_of_it(as_ort, build) -> None:
    after, _ = as_ort(attention(build), feed(2, 1, 5, 2))
    assert {"Range", "LessOrEqual", "And"}.isdisjoint(node.op_type for node in after.graph)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> OrtSession:
    return loaded(BODY, tmp_path_factory.mktemp("cached") / "attention.onnx")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> OrtSession:
    return loaded(WINDOWED, tmp_path_factory.mktemp("windowed") / "attention.onnx")


def loaded(body: str, path: Path) -> OrtSession:
    from tests.fusion.ort.conftest import _build

    model = attention(_build, body)
    to_ort(model)
    graph.save(model, path)
    graph.check(path)
    found = backend("onnxruntime").session(path, SessionOptions(threads=1))
    assert isinstance(found, OrtSession)
    return found


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3), prompt=st.integers(1, 6), new=st.integers(1, 4),
    padding=st.integers(0, 5), spare=st.integers(0, 3),
)  # fmt: skip
def test_one_buffer_gives_what_longer_caches_give(
    session: OrtSession, batch: int, prompt: int, new: int, padding: int, spare: int
) -> None:
    """A prompt, padded on the left, and then row by row; a continuation at once is run for each
    sample."""
    whole = feed(batch, prompt + new, 0, min(padding, prompt - 1))
    start = {name: whole[name] for name in CARRIED.values()}
    loop = session.loop(CARRIED, start, room=prompt + new + spare)
    expected, held, told = reference(whole), start, []
    for first, last in ((0, prompt), *((at, at + 1) for at in range(prompt, prompt + new))):
        part = {name: whole[name][:, first:last] for name in "qkv"}
        given_ = {**part, "mask": whole["mask"][:, :last]}
        found, grown = loop.run(given_), session.run({**given_, **held})
        real = whole["mask"][:, first:last] == 1
        np.testing.assert_allclose(
            found["y"][real], expected[:, first:last][real], rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(found["y"], grown["y"], rtol=1e-5, atol=1e-6)
        told.append((found["y"], found["y"].copy()))
        held = {into: grown[out] for out, into in CARRIED.items()}
        assert held["pk"].shape[2] == last
    for array, before in told:  # what was handed out is not written again
        np.testing.assert_array_equal(array, before)
    rest = {**whole, **{name: whole[name][:, prompt:] for name in "qkv"},
            **{name: x[:, :, :prompt] for name, x in held.items()}}  # fmt: skip
    np.testing.assert_allclose(session.run(rest)["y"], expected[:, prompt:], rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 2), prompt=st.integers(1, 9), new=st.integers(1, 9),
    padding=st.integers(0, 8), spare=st.integers(1, 3),
)  # fmt: skip
def test_rows_before_the_window_can_be_forgotten(
    windowed: OrtSession, batch: int, prompt: int, new: int, padding: int, spare: int
) -> None:
    """The buffer has room for the window and `spare` rows less one; where it is full, the rows that
    are still read move to its start."""
    whole = feed(batch, prompt + new, 0, min(padding, prompt - 1))
    expected = reference(whole, window=3)
    loop = windowed.loop(CARRIED, {n: whole[n] for n in CARRIED.values()}, room=prompt + new)
    assert loop.sliding is not None and loop.sliding.window == 3
    first = 0
    for start, stop in ((0, prompt), *((at, at + 1) for at in range(prompt, prompt + new))):
        if start and start - first >= 2 + spare:
            loop.sliding.slide(start - first, 2, 2 + spare)
            first = start - 2
        rows = {name: whole[name][:, start:stop] for name in "qkv"}
        found = loop.run({**rows, "mask": whole["mask"][:, first:stop]})["y"]
        real = whole["mask"][:, start:stop] == 1
        np.testing.assert_allclose(found[real], expected[:, start:stop][real], rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(prompt=st.integers(1, 6), new=st.integers(1, 5), wrong=st.integers(1, 4))
def test_several_rows_are_read_at_once_where_others_were_before(
    session: OrtSession, prompt: int, new: int, wrong: int
) -> None:
    """One sample, as when drafted tokens are verified, of which the last ones were wrong."""
    whole, other = feed(1, prompt + new, 0, 0), feed(1, prompt + wrong, 1, 0)
    start = {name: whole[name] for name in CARRIED.values()}
    loop = session.loop(CARRIED, start, room=prompt + max(new, wrong))
    for part, first, last in ((whole, 0, prompt), (other, prompt, prompt + wrong),
                              (whole, prompt, prompt + new)):  # fmt: skip
        loop.cut(first, axis=2)
        rows = {name: part[name][:, first:last] for name in "qkv"}
        found = loop.run({**rows, "mask": part["mask"][:, :last]})
    np.testing.assert_allclose(found["y"], reference(whole)[:, prompt:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (CAUSAL, "later = Less(keys, queries)", "later keys"),
        ("queries = Unsqueeze(qp", "queries = Unsqueeze(qr", "later keys"),
        ("keep = And(later, seen)", "keep = Or(later, seen)", "later keys"),
        ("Where(keep, nothing, low)", "Where(keep, low, nothing)", "later keys"),
        ("Where(keep, nothing, low)", "Where(keep, nothing, soft)", "later keys"),
        ("scale = 0.3", "scale = 0.3, is_causal = 0", "more than to attend"),
        (PAST, "sizes = Shape(pk) past = Gather(sizes, two)", "used elsewhere"),
    ],
)
def test_it_is_left_alone(as_ort, build, old: str, new: str, reason: str) -> None:
    assert old in BODY
    _, log = as_ort(attention(build, BODY.replace(old, new)), feed(1, 1, 5))
    assert [reason in e.reason for e in log.entries if e.rule == "cached"] == [True]


def test_a_mask_of_a_length_of_its_own_is_no_length_of_the_cache(as_ort, build) -> None:
    after, log = as_ort(attention(build, mask=("b", "t")), feed(1, 1, 5))
    assert "cached" not in log.counts and IN_PLACE not in after.metadata_props


def test_its_kernel_wants_heads_of_eight(as_ort, build) -> None:
    _, log = as_ort(attention(build, size=4), feed(1, 1, 5, size=4))
    assert [e.reason for e in log.entries if e.rule == "cached"] == [
        "its head size 4 is no multiple of 8, or not that of values"
    ]


def test_its_kernel_wants_a_bias_of_four_axes(as_ort, build) -> None:
    """A window without a padding mask is [S, T]."""
    body = BODY.replace("key_axes", "first").replace("query_axes", "second")
    narrow = body.replace(
        "keep = And(later, seen)", f"{WINDOW.split('both')[0]} keep = And(later, near)"
    )
    _, log = as_ort(attention(build, narrow), feed(1, 3, 5))
    assert [e.reason for e in log.entries if e.rule == "cached"] == [
        "what its mask hides besides later keys has not four axes"
    ]


def test_what_is_noted_outlives_the_file_and_nothing_else_does(build, tmp_path: Path) -> None:
    model = attention(build)
    to_ort(model)
    model.metadata_props["author"] = "someone"
    graph.save(model, tmp_path / "model.onnx")
    assert graph.load(tmp_path / "model.onnx").metadata_props.keys() == {IN_PLACE}
