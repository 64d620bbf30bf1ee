"""Small networks as text, inputs for them, and how far one's outputs are from another's."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.tensors import Feed

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

NETWORKS = {"residual": RESIDUAL, "attention": ATTENTION}


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
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([batch if isinstance(d, str) else d for d in shape]).astype(dtype)
        for name, dtype, shape in map(astuple, graph.inputs(model))
    }


def sqnr(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise ratio, dB."""
    noise = np.square(reference.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / noise))
