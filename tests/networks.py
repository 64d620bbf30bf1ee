"""Small networks as text, inputs for them, and how far one's outputs are from another's."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import onnx_ir as ir

from optkit.facts.tensors import Feed
from optkit.ground import graph

RESIDUAL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,3,12,12] x, float[24,3,3,3] w_stem, float[24] b_stem, float[24,24,3,3] w_1,
   float[24] b_1, float[24,24,3,3] w_2, float[24] b_2, float[48,24,3,3] w_3, float[48] b_3,
   float[48,24,1,1] w_skip, float[48] b_skip, float[10,48] w_head, float[10] b_head)
=> (float[N,10] y) {
  [stem] s = Conv <pads=[1,1,1,1]> (x, w_stem, b_stem)
  [stem_relu] sr = Relu (s)
  [conv1] c1 = Conv <pads=[1,1,1,1]> (sr, w_1, b_1)
  [relu1] r1 = Relu (c1)
  [conv2] c2 = Conv <pads=[1,1,1,1]> (r1, w_2, b_2)
  [add1] a1 = Add (c2, sr)
  [relu2] r2 = Relu (a1)
  [conv3] c3 = Conv <pads=[1,1,1,1], strides=[2,2]> (r2, w_3, b_3)
  [skip] k = Conv <strides=[2,2]> (r2, w_skip, b_skip)
  [add2] a2 = Add (c3, k)
  [relu3] r3 = Relu (a2)
  [pool] p = GlobalAveragePool (r3)
  [flat] f = Flatten (p)
  [head] y = Gemm <transB=1> (f, w_head, b_head)
}"""

# fused query/key/value as timm writes it: one product, taken apart behind
ATTENTION = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8,32] x, float[32] g_1, float[32] b_1, float[32,96] w_qkv, float[32] g_2, float[32] b_2,
   float[32,32] w_o, float[32,128] w_up, float[128] b_up, float[128,32] w_down)
=> (float[N,8,32] y) {
  [norm1] n1 = LayerNormalization (x, g_1, b_1)
  [qkv] qkv = MatMul (n1, w_qkv)
  [shape] heads = Constant <value_ints=[0, 8, 3, 4, 8]> ()
  [reshape] h = Reshape (qkv, heads)
  [spread] t = Transpose <perm=[2, 0, 3, 1, 4]> (h)
  [zero] i0 = Constant <value_int=0> ()
  [one] i1 = Constant <value_int=1> ()
  [two] i2 = Constant <value_int=2> ()
  [q] q = Gather <axis=0> (t, i0)
  [k] k = Gather <axis=0> (t, i1)
  [v] v = Gather <axis=0> (t, i2)
  [kt] kt = Transpose <perm=[0, 1, 3, 2]> (k)
  [scores] sc = MatMul (q, kt)
  [root] root = Constant <value_float=0.35> ()
  [scaled] ss = Mul (sc, root)
  [softmax] at = Softmax (ss)
  [mix] m = MatMul (at, v)
  [back] mt = Transpose <perm=[0, 2, 1, 3]> (m)
  [flatshape] flat = Constant <value_ints=[0, 8, 32]> ()
  [merge] mm = Reshape (mt, flat)
  [out] o = MatMul (mm, w_o)
  [add1] r1 = Add (x, o)
  [norm2] n2 = LayerNormalization (r1, g_2, b_2)
  [up] u = MatMul (n2, w_up)
  [upbias] ub = Add (u, b_up)
  [gelu] ge = Gelu (ub)
  [down] d = MatMul (ge, w_down)
  [add2] y = Add (r1, d)
}"""

POST_NORM = """<ir_version: 10, opset_import: ["" : 23]>
g (float[N,8,32] x, float[32,32] w_o, float[32] b_o, float[32] g_1, float[32] b_1,
   float[32,96] w_up, float[96] b_up, float[96,32] w_down, float[32] b_down, float[32] g_2,
   float[32] b_2) => (float[N,8,32] y) {
  [out] o = MatMul (x, w_o)
  [outbias] ob = Add (o, b_o)
  [add1] r1 = Add (x, ob)
  [norm1] n1 = LayerNormalization (r1, g_1, b_1)
  [up] u = MatMul (n1, w_up)
  [upbias] ub = Add (u, b_up)
  [gelu] ge = Gelu (ub)
  [down] d = MatMul (ge, w_down)
  [downbias] db = Add (d, b_down)
  [add2] r2 = Add (n1, db)
  [norm2] y = LayerNormalization (r2, g_2, b_2)
}"""

LLAMA = """<ir_version: 10, opset_import: ["" : 23]>
g (float[N,S,32] x, float[32] g_1, float[32,32] w_q, float[32,16] w_k, float[32,16] w_v,
   float[32,32] w_o, float[32] g_2, float[32,48] w_gate, float[32,48] w_up, float[48,32] w_down)
   => (float[N,S,32] y) {
  [norm1] n1 = RMSNormalization (x, g_1)
  [q] q = MatMul (n1, w_q)
  [k] k = MatMul (n1, w_k)
  [v] v = MatMul (n1, w_v)
  [shape_q] sq = Constant <value_ints=[0, 0, 4, 8]> ()
  [shape_k] sk = Constant <value_ints=[0, 0, 2, 8]> ()
  [rq] q4 = Reshape (q, sq)
  [rk] k4 = Reshape (k, sk)
  [rv] v4 = Reshape (v, sk)
  [tq] qt = Transpose <perm=[0,2,1,3]> (q4)
  [tk] kt = Transpose <perm=[0,2,3,1]> (k4)
  [tv] vt = Transpose <perm=[0,2,1,3]> (v4)
  [two] two = Constant <value_ints=[2]> ()
  [uk] ku = Unsqueeze (kt, two)
  [uv] vu = Unsqueeze (vt, two)
  [copies] copies = Constant <value_ints=[1, 1, 2, 1, 1]> ()
  [ek] ke = Expand (ku, copies)
  [ev] ve = Expand (vu, copies)
  [shape_rk] srk = Constant <value_ints=[0, 4, 8, -1]> ()
  [shape_rv] srv = Constant <value_ints=[0, 4, -1, 8]> ()
  [fk] kr = Reshape (ke, srk)
  [fv] vr = Reshape (ve, srv)
  [scores] a = MatMul (qt, kr)
  [softmax] p = Softmax (a)
  [mix] m = MatMul (p, vr)
  [back] mt = Transpose <perm=[0,2,1,3]> (m)
  [shape_o] so = Constant <value_ints=[0, 0, 32]> ()
  [merge] mm = Reshape (mt, so)
  [out] o = MatMul (mm, w_o)
  [add1] r1 = Add (x, o)
  [norm2] n2 = RMSNormalization (r1, g_2)
  [gate] ga = MatMul (n2, w_gate)
  [up] u = MatMul (n2, w_up)
  [sigmoid] si = Sigmoid (ga)
  [silu] sl = Mul (ga, si)
  [product] gu = Mul (sl, u)
  [down] d = MatMul (gu, w_down)
  [add2] y = Add (r1, d)
}"""

CHAIN = """<ir_version: 10, opset_import: ["" : 23]>
g (float[N,3,10,10] x, float[16,3,3,3] w_1, float[16] b_1, float[16,1,3,3] w_2,
   float[16] b_2, float[24,16,1,1] w_3, float[24] b_3, float[24,24,3,3] w_4, float[24] b_4,
   float[10,24] w_head, float[10] b_head) => (float[N,10] y) {
  [conv1] c1 = Conv <pads=[1,1,1,1]> (x, w_1, b_1)
  [relu1] r1 = Relu (c1)
  [depthwise] c2 = Conv <group=16, pads=[1,1,1,1]> (r1, w_2, b_2)
  [relu2] r2 = Relu (c2)
  [pool] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r2)
  [conv3] c3 = Conv (p, w_3, b_3)
  [zero] zero = Constant <value_float=0.0> ()
  [six] six = Constant <value_float=6.0> ()
  [relu6] r3 = Clip (c3, zero, six)
  [conv4] c4 = Conv <pads=[1,1,1,1]> (r3, w_4, b_4)
  [relu4] r4 = Relu (c4)
  [mean] g = GlobalAveragePool (r4)
  [flat] f = Flatten (g)
  [head] y = Gemm <transB=1> (f, w_head, b_head)
}"""

NETWORKS = {
    "residual": RESIDUAL, "attention": ATTENTION, "post-norm": POST_NORM, "llama": LLAMA,
    "chain": CHAIN,
}  # fmt: skip


def network(text: str, **given: np.ndarray) -> ir.Model:
    """A model from text. Inputs named w*, b*, g* become weights, seeded by their name."""
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs):
        name = str(value.name)
        if name[0] not in "wbg":
            continue
        model.graph.inputs.remove(value)
        assert value.shape is not None
        shape = value.shape.numpy()
        rng = np.random.default_rng(list(name.encode()))
        numbers = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1.0))
        numbers = given.get(name, numbers + (1.0 if name[0] == "g" else 0.0))
        value.const_value = ir.tensor(numbers.astype(np.float32), name=name)
        model.graph.register_initializer(value)
    return graph.upgrade(model)


def feed(model: ir.Model, batch: int = 16, seed: int = 0) -> Feed:
    """Standard normal numbers; an axis S has 8 places."""
    rng = np.random.default_rng(seed)
    sizes = {"S": 8}
    return {
        name: rng.standard_normal(
            [sizes.get(d, batch) if isinstance(d, str) else d for d in shape]
        ).astype(dtype)
        for name, dtype, shape in map(astuple, graph.inputs(model))
    }


def sqnr(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise ratio, dB."""
    noise = np.square(reference.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / noise))
