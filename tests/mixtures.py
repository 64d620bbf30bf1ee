"""A mixture of experts as torch's exporter writes it, and in numpy, one token after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.ground import graph


@dataclass(frozen=True)
class Weights:
    """Experts [E, 2 I, H] and [E, H, I] of the routing [E, H], with biases or without."""

    router: np.ndarray
    up: np.ndarray
    down: np.ndarray
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None


@dataclass(frozen=True)
class Form:
    """How the mixture is written. `interleaved`: gate and up are every second row; `turned`: the
    matrices are the right operands; `most`, `beta` and `alpha`: of SwiGLU."""

    k: int = 2
    interleaved: bool = False
    turned: bool = False
    normalized: bool = True
    alpha: float = 1.0
    beta: float = 0.0
    most: float | None = None


def weights(
    experts: int, hidden: int, inner: int, *, biased: bool = False, seed: int = 0
) -> Weights:
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        numbers: np.ndarray = rng.normal(size=shape).astype(np.float32)
        return numbers / np.float32(np.sqrt(shape[-1]))

    biases = (drawn(experts, 2 * inner), drawn(experts, hidden)) if biased else (None, None)
    return Weights(
        drawn(experts, hidden) * 4, drawn(experts, 2 * inner, hidden),
        drawn(experts, hidden, inner), *biases,
    )  # fmt: skip


def mixture(w: Weights, form: Form = Form()) -> ir.Model:
    """x [tokens, H] → y [tokens, H]."""
    (_, double, hidden), k = w.up.shape, form.k
    inner = double // 2
    lines = [
        "l = MatMul (x, router)",
        "p = Softmax <axis = -1> (l)",
        "v, i = TopK <axis = -1> (p, k)",
        *(["s = ReduceSum <keepdims = 1> (v, one)", "w = Div (v, s)"] if form.normalized
          else ["w = Identity (v)"]),
        "x1 = Unsqueeze (x, one)",
        "xk = Expand (x1, wide)",
        "xs = Reshape (xk, flat_hidden)",
        "i1 = Reshape (i, flat)",
        "ids = Unsqueeze (i1, one)",
        *_product("xs", "up", "h", form, biased=w.up_bias is not None),
        *_halves(form, inner),
        *(["g = Min (g0, most)", "u1 = Clip (u0, least, most)"] if form.most is not None
          else ["g = Identity (g0)", "u1 = Identity (u0)"]),
        "ga = Mul (g, alpha)",
        "a = Sigmoid (ga)",
        "ag = Mul (g, a)",
        "u = Add (u1, beta)" if form.beta else "u = Identity (u1)",
        "h2 = Mul (ag, u)",
        *_product("h2", "down", "o", form, biased=w.down_bias is not None),
        "w1 = Reshape (w, flat)",
        "w2 = Unsqueeze (w1, one)",
        "ow = Mul (o, w2)",
        "ok = Reshape (ow, by_token)",
        "y = ReduceSum <keepdims = 0> (ok, one)",
    ]  # fmt: skip
    up, up_bias = w.up, w.up_bias
    if form.interleaved:
        order = np.arange(double).reshape(2, inner).T.reshape(-1)
        up, up_bias = up[:, order], None if up_bias is None else up_bias[:, order]
    one = np.array([1])
    constants = {
        "router": w.router.T, "up": _laid_out(up, form), "down": _laid_out(w.down, form),
        "up_bias": up_bias, "down_bias": w.down_bias, "k": np.array([k]), "one": one,
        "wide": np.array([1, k, 1]), "flat_hidden": np.array([-1, hidden]), "flat": -one,
        "by_token": np.array([-1, k, hidden]), "alpha": np.array(form.alpha, np.float32),
        "beta": np.array(form.beta, np.float32), "two": one * 2, "last": one * double,
        "zero": one * 0, "least": np.array(-(form.most or 0.0), np.float32),
        "most": np.array(form.most or 0.0, np.float32),
    }  # fmt: skip
    head = '<ir_version: 10, opset_import: ["" : 23]>'
    body = "\n".join(lines)
    model = ir.from_onnx_text(
        f"{head} g (float[tokens, {hidden}] x) => (float[tokens, {hidden}] y) {{ {body} }}"
    )
    _give(model, {name: each for name, each in constants.items() if each is not None})
    graph.ensure_names(model)
    graph.infer_shapes(model)
    return model


def reference(w: Weights, form: Form, x: np.ndarray) -> np.ndarray:
    """The same in float64; a tie goes to the expert with the lower number."""
    y, inner = np.zeros(x.shape), w.down.shape[2]
    scores = x.astype(np.float64) @ w.router.T.astype(np.float64)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    for token, row in enumerate(x.astype(np.float64)):
        chosen = np.argsort(-shares[token], kind="stable")[: form.k]
        total = shares[token, chosen].sum() if form.normalized else 1.0
        for expert in chosen:
            h = w.up[expert] @ row + (0 if w.up_bias is None else w.up_bias[expert])
            g, u = h[:inner], h[inner:]
            if form.most is not None:
                g, u = np.minimum(g, form.most), np.clip(u, -form.most, form.most)
            h = g / (1 + np.exp(-form.alpha * g)) * (u + form.beta)
            o = w.down[expert] @ h + (0 if w.down_bias is None else w.down_bias[expert])
            y[token] += shares[token, expert] / total * o
    return y


def _product(rows: str, weight: str, result: str, form: Form, *, biased: bool) -> list[str]:
    axis, operands = ("one", "{r}1, {w}m") if form.turned else ("two", "{w}m, {r}1")
    lines = [
        f"{weight}m = GatherND ({weight}, ids)",
        f"{rows}1 = Unsqueeze ({rows}, {axis})",
        f"{weight}p = MatMul ({operands.format(r=rows, w=weight)})",
        f"{weight}s = Squeeze ({weight}p, {axis})",
    ]
    if not biased:
        return [*lines, f"{result} = Identity ({weight}s)"]
    return [
        *lines,
        f"{weight}b = GatherND ({weight}_bias, ids)",
        f"{result} = Add ({weight}s, {weight}b)",
    ]


def _halves(form: Form, inner: int) -> list[str]:
    if not form.interleaved:
        return ["g0, u0 = Split <axis = 1, num_outputs = 2> (h)"]
    starts = {"g": "zero", "u": "one"}
    return [f"{part}0 = Slice (h, {start}, last, one, two)" for part, start in starts.items()]


def _laid_out(stack: np.ndarray, form: Form) -> np.ndarray:
    return np.ascontiguousarray(stack.transpose(0, 2, 1)) if form.turned else stack


def _give(model: ir.Model, constants: dict[str, np.ndarray]) -> None:
    """Make the values that no node computes constants."""
    known = ir.convenience.create_value_mapping(model.graph)
    for name, numbers in constants.items():
        if (value := known.get(name)) is not None and value.uses():
            value.const_value = ir.Tensor(np.asarray(numbers, order="C"), name=name)
            value.type = ir.TensorType(ir.DataType.from_numpy(numbers.dtype))
            value.shape = ir.Shape(numbers.shape)
            model.graph.register_initializer(value)
