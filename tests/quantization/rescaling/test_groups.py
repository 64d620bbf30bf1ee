"""Factors between a value and the weights that read it: where they go, and that nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.rescaling import channels as labels
from optkit.craft.quantization.rescaling import groups
from optkit.craft.quantization.rescaling.fold import FoldPath
from optkit.craft.quantization.rescaling.rules import FoldObstacle
from optkit.facts.tensors import Feed
from optkit.ground import graph
from tests.networks import NETWORKS, feed, network

HEAD = '<ir_version: 10, opset_import: ["" : 23]>\n'

# every kind of producer, and the nodes whose constants must take the factor of `v`
FOLDS = {
    "layer norm": (
        """g (float[N,5,8] x, float[8] g_1, float[8] b_1, float[8,6] w) => (float[N,5,6] y) {
          [n] v = LayerNormalization (x, g_1, b_1)
          [m] y = MatMul (v, w) }""",
        ["n"],
    ),
    "rms norm": (
        """g (float[N,5,8] x, float[8] g_1, float[8,6] w) => (float[N,5,6] y) {
          [n] v = RMSNormalization (x, g_1)
          [m] y = MatMul (v, w) }""",
        ["n"],
    ),
    "rms norm, decomposed": (
        """g (float[N,5,8] x, float[8] g_1, float[8,6] w) => (float[N,5,6] y) {
          [two] two = Constant <value_float=2.0> ()
          [last] last = Constant <value_ints=[-1]> ()
          [eps] eps = Constant <value_float=1.0e-6> ()
          [square] s = Pow (x, two)
          [mean] m = ReduceMean <keepdims=1> (s, last)
          [shift] e = Add (m, eps)
          [root] r = Sqrt (e)
          [divide] d = Div (x, r)
          [scale] v = Mul (g_1, d)
          [product] y = MatMul (v, w) }""",
        ["scale"],
    ),
    "linear, relu": (
        """g (float[N,5,8] x, float[8,16] w_1, float[16] b_1, float[16,6] w) => (float[N,5,6] y) {
          [up] u = MatMul (x, w_1)
          [bias] ub = Add (b_1, u)
          [relu] v = Relu (ub)
          [down] y = MatMul (v, w) }""",
        ["up", "bias"],
    ),
    "gate times up": (
        """g (float[N,5,8] x, float[8,16] w_g, float[8,16] w_u, float[16,6] w) => (float[N,5,6] y) {
          [gate] a = MatMul (x, w_g)
          [sigmoid] s = Sigmoid (a)
          [silu] b = Mul (a, s)
          [up] u = MatMul (x, w_u)
          [product] v = Mul (b, u)
          [down] y = MatMul (v, w) }""",
        ["up"],
    ),
    "gate and up in one": (
        """g (float[N,5,8] x, float[8,32] w_gu, float[16,6] w) => (float[N,5,6] y) {
          [both] gu = MatMul (x, w_gu)
          [split] a, u = Split <axis=-1, num_outputs=2> (gu)
          [gelu] b = Gelu (a)
          [product] v = Mul (b, u)
          [down] y = MatMul (v, w) }""",
        ["both"],
    ),
    "gemm, divided, flattened": (
        """g (float[N,8] x, float[16,8] w_1, float[16] b_1, float[6,16] w, float[6] b)
           => (float[N,6] y) {
          [up] u = Gemm <transB=1> (x, w_1, b_1)
          [leaky] l = LeakyRelu (u)
          [flat] v = Flatten (l)
          [down] y = Gemm <transB=1> (v, w, b) }""",
        ["up"],
    ),
    "constant divisor": (
        """g (float[N,5,8] x, float[8] g_d, float[8,6] w) => (float[N,5,6] y) {
          [divide] v = Div (x, g_d)
          [down] y = MatMul (v, w) }""",
        ["divide"],
    ),
    "convolutions, pools": (
        """g (float[N,3,8,8] x, float[6,3,3,3] w_1, float[6] b_1, float[6,1,3,3] w, float[6] b)
           => (float[N,6,2,2] y) {
          [c1] a = Conv <pads=[1,1,1,1]> (x, w_1, b_1)
          [relu] r = Relu (a)
          [max] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
          [avg] v = AveragePool <kernel_shape=[1,1]> (p)
          [depthwise] y = Conv <group=6> (v, w, b) }""",
        ["c1"],
    ),
    "grouped, transposed": (
        """g (float[N,4,8,8] x, float[4,6,3,3] w_1, float[6] b_1, float[4,3,3,3] w)
           => (float[N,4,8,8] y) {
          [c1] a = ConvTranspose (x, w_1, b_1)
          [zero] zero = Constant <value_float=0.0> ()
          [clip] v = Clip (a, zero)
          [grouped] y = Conv <group=2> (v, w) }""",
        ["c1"],
    ),
    "into a transposed one": (
        """g (float[N,4,8,8] x, float[6,4,1,1] w_1, float[6,2,3,3] w) => (float[N,4,10,10] y) {
          [c1] v = Conv (x, w_1)
          [up] y = ConvTranspose <group=2> (v, w) }""",
        ["c1"],
    ),
    "batch norm, residual of two, concat": (
        """g (float[N,4,6,6] x, float[5,4,1,1] w_1, float[5,4,1,1] w_2, float[3,4,1,1] w_3,
              float[5] g_s, float[5] b_s, float[5] b_m, float[5] g_v, float[7,8,1,1] w)
           => (float[N,7,6,6] y) {
          [c1] a = Conv (x, w_1)
          [bn] n = BatchNormalization (a, g_s, b_s, b_m, g_v)
          [c2] c = Conv (x, w_2)
          [add] s = Add (n, c)
          [c3] d = Conv (x, w_3)
          [concat] v = Concat <axis=1> (s, d)
          [last] y = Conv (v, w) }""",
        ["bn", "c2", "c3"],
    ),
    "mean over the image": (
        """g (float[N,4,6,6] x, float[5,4,1,1] w_1, float[5] b_1, float[5,3] w) => (float[N,3] y) {
          [c1] a = Conv (x, w_1, b_1)
          [image] axes = Constant <value_ints=[2, 3]> ()
          [mean] v = ReduceMean <keepdims=0> (a, axes)
          [head] y = MatMul (v, w) }""",
        ["c1"],
    ),
    "several readers": (
        """g (float[N,5,8] x, float[8] g_1, float[8,6] w_q, float[8,4] w_k, float[3,8] w_v)
           => (float[N,5,6] q, float[N,5,4] k) {
          [n] v = RMSNormalization (x, g_1)
          [q] q = MatMul (v, w_q)
          [k] k = MatMul (v, w_k) }""",
        ["n"],
    ),
}  # fmt: skip

ATTENTION = """g (float[N,S,32] x, float[32,32] w_q, float[32,{kv}] w_k, float[32,{kv}] w_v,
                  float[{kv}] b_v, float[32,32] w) => (float[N,S,32] y) {{
  [q] q = MatMul (x, w_q)
  [k] k = MatMul (x, w_k)
  [v] vp = MatMul (x, w_v)
  [bias] vb = Add (vp, b_v)
  [shape_q] sq = Constant <value_ints=[0, 0, 4, 8]> ()
  [shape_k] sk = Constant <value_ints=[0, 0, {heads}, 8]> ()
  [rq] q4 = Reshape (q, sq)
  [rk] k4 = Reshape (k, sk)
  [rv] v4 = Reshape (vb, sk)
  [tq] qt = Transpose <perm=[0,2,1,3]> (q4)
  [tk] kt = Transpose <perm=[0,2,3,1]> (k4)
  [tv] vt = Transpose <perm=[0,2,1,3]> (v4)
  {repeat}
  [scores] a = MatMul (qt, kr)
  [softmax] p = Softmax (a)
  [mix] m = MatMul (p, vr)
  [back] mt = Transpose <perm=[0,2,1,3]> (m)
  [shape_o] so = Constant <value_ints=[0, 0, 32]> ()
  [merge] v = Reshape (mt, so)
  [out] y = MatMul (v, w)
}}"""
ALL_HEADS = "[ik] kr = Identity (kt)\n  [iv] vr = Identity (vt)"
# as transformers writes repeat_kv: each of two heads serves two
REPEATED = """[two] two = Constant <value_ints=[2]> ()
  [uk] ku = Unsqueeze (kt, two)
  [uv] vu = Unsqueeze (vt, two)
  [copies] copies = Constant <value_ints=[1, 1, 2, 1, 1]> ()
  [ek] ke = Expand (ku, copies)
  [ev] ve = Expand (vu, copies)
  [shape_rk] srk = Constant <value_ints=[0, 4, 8, -1]> ()
  [shape_rv] srv = Constant <value_ints=[0, 4, -1, 8]> ()
  [fk] kr = Reshape (ke, srk)
  [fv] vr = Reshape (ve, srv)"""


def run(model: ir.Model, feed: Feed, folder: Path) -> list[np.ndarray]:
    """Outputs of ONNX Runtime without its own rewrites."""
    graph.save(model, folder / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "m.onnx", options)
    return session.run(None, {name: feed[name] for name in (i.name for i in session.get_inputs())})


def close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()


def group(model: ir.Model, value: str = "v") -> groups.RescalingGroup:
    nodes = [str(n.name) for n in model.graph if graph.constant_weight(n) is not None]
    return next(g for g in groups.find_groups(model, nodes) if g.value.name == value)


def factors(
    found: groups.RescalingGroup, path: FoldPath | FoldObstacle, seed: int = 0
) -> np.ndarray:
    ties = path.ties if isinstance(path, FoldPath) else ()
    drawn = np.exp(np.random.default_rng(seed).normal(0, 1.5, found.channels))
    return drawn[labels.classes(found.channels, ties)].astype(np.float32)


def ready(text: str) -> ir.Model:
    return graph.infer_shapes(network(HEAD + text))


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_changes_the_constants_it_names_and_no_output(name: str, tmp_path: Path) -> None:
    text, into = FOLDS[name]
    model = ready(text)
    given = feed(model, batch=3)
    wanted = run(model, given, tmp_path)
    nodes = [n.name for n in model.graph]
    tapped = run(graph.expose(model, ["v"]), given, tmp_path)[-1]
    found = group(model)
    path = groups.fold_path(found)
    assert isinstance(path, FoldPath), path
    assert sorted({sink.node.name for sink in path.sinks}) == sorted(into)
    s = factors(found, path)
    groups.fold(found, path, s)
    close(run(model, given, tmp_path), wanted)
    assert [n.name for n in model.graph] == nodes  # no operator more
    along = (1, -1) + (1,) * (tapped.ndim - 2) if found.axis == 1 else (-1,)
    close([run(graph.expose(model, ["v"]), given, tmp_path)[-1]], [tapped / s.reshape(along)])


@pytest.mark.parametrize(
    ("heads", "repeat", "tied"), [(4, ALL_HEADS, 32), (2, REPEATED, 16)], ids=["heads", "shared"]
)
def test_a_fold_passes_attention_to_the_values(
    heads: int, repeat: str, tied: int, tmp_path: Path
) -> None:
    text = ATTENTION.format(kv=8 * heads, heads=heads, repeat=repeat)
    model = ready(text)
    given = {"x": np.random.default_rng(0).standard_normal((2, 7, 32), np.float32)}
    wanted = run(model, given, tmp_path)
    found = group(model)
    path = groups.fold_path(found)
    assert isinstance(path, FoldPath), path
    assert {sink.node.name for sink in path.sinks} == {"v", "bias"}
    ties = labels.classes(32, path.ties)
    assert len(set(ties)) == tied
    if heads == 2:  # heads 0 and 1 read the same values, and so do 2 and 3
        assert (ties[:8] == ties[8:16]).all() and not set(ties[:16]) & set(ties[16:])
    groups.fold(found, path, factors(found, path))
    close(run(model, given, tmp_path), wanted)


def test_a_fold_reaches_the_values_in_a_fused_projection(tmp_path: Path) -> None:
    model = graph.infer_shapes(network(NETWORKS["attention"]))
    given = feed(model, batch=2)
    wanted = run(model, given, tmp_path)
    qkv = next(n for n in model.graph if n.name == "qkv")
    before = np.array(graph.array(qkv.inputs[1]))
    found = group(model, "mm")
    path = groups.fold_path(found)
    assert isinstance(path, FoldPath), path
    groups.fold(found, path, factors(found, path))
    after = graph.array(qkv.inputs[1])
    assert after is not None
    changed = (before != after).any(axis=0)
    assert not changed[:64].any() and changed[64:].all()  # queries and keys stay
    close(run(model, given, tmp_path), wanted)


REFUSALS = {
    "Gelu gelu is not homogeneous": """g (float[N,8] x, float[8,16] w_1, float[16,6] w)
           => (float[N,6] y) {
          [up] u = MatMul (x, w_1)
          [gelu] v = Gelu (u)
          [down] y = MatMul (v, w) }""",
    "has a bound": """g (float[N,4,6,6] x, float[5,4,1,1] w_1, float[5,5,1,1] w)
           => (float[N,5,6,6] y) {
          [c1] a = Conv (x, w_1)
          [zero] zero = Constant <value_float=0.0> ()
          [six] six = Constant <value_float=6.0> ()
          [relu6] v = Clip (a, zero, six)
          [c2] y = Conv (v, w) }""",
    "model output": """g (float[N,8] x, float[8,16] w_1, float[16,6] w)
           => (float[N,6] y, float[N,16] v) {
          [up] v = MatMul (x, w_1)
          [down] y = MatMul (v, w) }""",
    "reads r too": """g (float[N,4,6,6] x, float[4,4,1,1] w_1, float[4,4,1,1] w_2, float[4,4,1,1] w)
           => (float[N,4,6,6] y) {
          [c1] a = Conv (x, w_1)
          [relu] r = Relu (a)
          [c2] b = Conv (r, w_2)
          [add] v = Add (b, r)
          [c3] y = Conv (v, w) }""",
    "shared with up": """g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
          [up] v = MatMul (x, w)
          [down] y = MatMul (v, w) }""",
    "w_1 is shared with first": """g (float[N,8] x, float[8,8] w_1, float[8,8] w)
           => (float[N,8] y) {
          [first] f = MatMul (x, w_1)
          [up] v = MatMul (f, w_1)
          [down] y = MatMul (v, w) }""",
    "not the main result": """g (float[N,8] x, float[8] g_1, float[8] b_1, float[1,6] w)
           => (float[N,6] y) {
          [n] z, v, d = LayerNormalization (x, g_1, b_1)
          [m] y = MatMul (v, w) }""",
    "model input": """g (float[N,8] v, float[8,6] w) => (float[N,6] y) {
          [m] y = MatMul (v, w) }""",
    "mixes axes": """g (float[N,S,8] x, float[8,8] w_1, float[12,6] w) => (float[N,T,6] y) {
          [up] u = MatMul (x, w_1)
          [shape] s = Constant <value_ints=[0, -1, 12]> ()
          [reshape] v = Reshape (u, s)
          [down] y = MatMul (v, w) }""",
    "not one per row or column": """g (float[N,6,8] x, float[8,8] w_1, float[12,6] w)
           => (float[N,4,6] y) {
          [up] u = MatMul (x, w_1)
          [shape] s = Constant <value_ints=[0, -1, 12]> ()
          [reshape] v = Reshape (u, s)
          [down] y = MatMul (v, w) }""",
    "v too": """g (float[N,8] x, float[8] g_1, float[8,6] w) => (float[N,6] y, float[N,8] z) {
          [n] v = RMSNormalization (x, g_1)
          [m] y = MatMul (v, w)
          [other] z = Relu (v) }""",
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_cannot_be_folded_says_why(reason: str) -> None:
    model = ready(REFUSALS[reason])
    path = groups.fold_path(group(model))
    assert isinstance(path, FoldObstacle), path
    assert reason in path.reason


def test_a_mul_serves_the_members_alone(tmp_path: Path) -> None:
    model = ready(
        """g (float[N,5,8] x, float[8] g_1, float[8] b_1, float[8,6] w, float[8,6] w_2)
           => (float[N,5,6] y, float[N,5,8] z) {
          [n] v = LayerNormalization (x, g_1, b_1)
          [plain] p = MatMul (v, w_2)
          [m] q = MatMul (v, w)
          [sum] y = Add (p, q)
          [residual] z = Add (v, x) }"""
    )
    given = feed(model, batch=2)
    wanted = run(model, given, tmp_path)
    (found,) = groups.find_groups(model, ["m"])
    assert [n.name for n in found.members] == ["m"]
    assert [n.name for n in found.partners] == ["plain"]
    new = groups.insert_mul(found, factors(found, FoldObstacle("")))
    close(run(model, given, tmp_path), wanted)
    read = {n.name: n.inputs[0].name for n in model.graph if n.inputs and n.inputs[0] is not None}
    assert read["m"] == new.name and read["plain"] == read["residual"] == "v"


def test_a_weight_that_two_members_share_is_scaled_once(tmp_path: Path) -> None:
    model = ready(
        """g (float[N,8] x, float[8] g_1, float[8,6] w) => (float[N,6] y, float[N,6] z) {
          [n] v = RMSNormalization (x, g_1)
          [a] y = MatMul (v, w)
          [b] z = MatMul (v, w) }"""
    )
    given = feed(model, batch=2)
    wanted = run(model, given, tmp_path)
    found = group(model)
    path = groups.fold_path(found)
    assert isinstance(path, FoldPath)
    groups.fold(found, path, factors(found, path))
    close(run(model, given, tmp_path), wanted)
    assert len([name for name in model.graph.initializers if name.startswith("w")]) == 1


def test_a_small_constant_with_other_readers_is_copied(tmp_path: Path) -> None:
    model = ready(
        """g (float[N,8] x, float[8] g_1, float[8,6] w, float[8,6] w_2)
           => (float[N,6] y, float[N,6] z) {
          [n] v = RMSNormalization (x, g_1)
          [twice] t = RMSNormalization (v, g_1)
          [m] y = MatMul (x, w)
          [k] z = MatMul (t, w_2) }"""
    )
    given = feed(model, batch=2)
    wanted = run(model, given, tmp_path)
    found = group(model, "t")
    path = groups.fold_path(found)
    assert isinstance(path, FoldPath)
    groups.fold(found, path, factors(found, path))
    close(run(model, given, tmp_path), wanted)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_labels_follow_a_reshape_as_numpy_does(data: st.DataObject) -> None:
    """Scaling before a reshape equals scaling behind it, wherever labels are found."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    total = int(np.prod(sizes))
    result: list[int] = []
    rest = total
    while rest > 1:
        divisor = data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        result.append(divisor)
        rest //= divisor
    result = result or [1]
    axis = data.draw(st.integers(0, len(result) - 1))
    behind = labels.of_axis(len(result), axis, result[axis])
    before = labels.before_reshape(behind, tuple(sizes), tuple(result))
    assert before is not None  # all sizes are static
    t = np.random.default_rng(0).uniform(1, 2, result[axis])
    x = np.random.default_rng(1).standard_normal(sizes)
    np.testing.assert_array_equal((x * t[before]).reshape(result), x.reshape(result) * t[behind])
