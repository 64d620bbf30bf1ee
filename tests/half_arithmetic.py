"""Graphs in half precision with Q/DQ, evaluated by numpy.

Each kernel computes in float64 and rounds its result once to the dtype that the graph declares.
Nothing here is shared with optkit's own simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

Values = dict[str, np.ndarray]
_HALF = {ir.DataType.FLOAT16: np.dtype(np.float16), ir.DataType.BFLOAT16: np.dtype("bfloat16")}
_ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Gelu", "Tanh")
_PRODUCTS = ("Conv", "Gemm", "MatMul")


def evaluate(
    model: ir.Model, feed: Mapping[str, np.ndarray], known: Values | None = None
) -> Values:
    """All values of the graph by name, as float64 where they are floats. `known`: results that a
    kernel behind them reads in place of those that are computed here, so that each kernel is judged
    alone."""
    values: Values = {}
    computed: Values = {}
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        values[name] = _wide(value.const_value.numpy())
    for value in model.graph.inputs:
        values[str(value.name)] = _rounded(value, _wide(feed[str(value.name)]))
    rounded = set(rounded_by_kernels(model))
    for node in model.graph:
        given = [None if v is None else values[str(v.name)] for v in node.inputs]
        found = _RULES[node.op_type](node, *given)
        found = found if isinstance(found, tuple) else (found,)
        for value, array in zip(node.outputs, found, strict=True):
            name = str(value.name)
            computed[name] = values[name] = _rounded(value, array) if name in rounded else array
            if known is not None and name in known and name in rounded:
                values[name] = _wide(known[name])
    return computed


def rounded_by_kernels(model: ir.Model) -> list[str]:
    """The half-precision results of the graph's kernels."""
    inside = {value for node in model.graph for value in _left_in_registers(node)}
    return [
        str(value.name)
        for node in model.graph
        for value in node.outputs
        if value.dtype in _HALF and value not in inside and node.op_type != "DequantizeLinear"
    ]


def _left_in_registers(node: ir.Node) -> list[ir.Value]:
    """The results between a product and the bias, scale or activation behind it."""
    left: list[ir.Value] = []
    value = node.outputs[0]
    while node.op_type in _PRODUCTS or left:
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output():
            break
        after = uses[0].node
        shifts = after.op_type in ("Add", "Mul") and any(
            other is not None and other.is_initializer() for other in after.inputs
        )
        if not shifts and (after.op_type not in _ACTIVATIONS or after.inputs[0] is not value):
            break
        left.append(value)
        if not shifts:
            break
        value = after.outputs[0]
    return left


def _wide(array: np.ndarray) -> np.ndarray:
    numbers = array.dtype.kind in "fV"
    return array.astype(np.float64) if numbers else array


def _rounded(value: ir.Value, array: np.ndarray) -> np.ndarray:
    dtype = _HALF.get(value.dtype)  # type: ignore[arg-type]
    if dtype is None:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32).astype(dtype).astype(np.float64)


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _along(scale: np.ndarray, codes: np.ndarray, node: ir.Node) -> np.ndarray:
    """The scales, one for each code."""
    if not scale.ndim:
        return scale
    axis = _attribute(node, "axis", 1) % codes.ndim
    if block := _attribute(node, "block_size", 0):
        return np.repeat(scale, block, axis=axis)
    return scale.reshape([-1 if d == axis else 1 for d in range(codes.ndim)])


def _quantize(node: ir.Node, x: np.ndarray, s: np.ndarray, z: np.ndarray) -> np.ndarray:
    ratio = x.astype(np.float32) / _along(s, x, node).astype(np.float32)
    kind = node.outputs[0].dtype
    if kind == ir.DataType.FLOAT8E4M3FN:
        return np.clip(ratio, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ends = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}[kind]  # type: ignore[index]
    # NaN: the lowest code, as in ONNX Runtime's kernels; ONNX does not define it
    return np.nan_to_num(np.clip(np.rint(ratio) + z, *ends), nan=ends[0])


def _dequantize(node: ir.Node, q: np.ndarray, s: np.ndarray, z: Any = 0) -> np.ndarray:
    zero = _along(np.asarray(z, np.float64), q, node)
    found: np.ndarray = (q.astype(np.float64) - zero) * _along(s, q, node)
    return found


def _fp4(node: ir.Node, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    ideal = np.abs(blocks).max(-1) / (6 * g)
    scale = np.clip(ideal, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    codes = np.clip(blocks / (scale * g)[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return codes.astype(np.float64).reshape(x.shape), scale


def _conv(node: ir.Node, x: np.ndarray, w: np.ndarray, b: Any = None) -> np.ndarray:
    top, left, bottom, right = _attribute(node, "pads", [0, 0, 0, 0])
    down, across = _attribute(node, "strides", [1, 1])
    groups = _attribute(node, "group", 1)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    windows = windows[:, :, ::down, ::across]
    parts = [
        np.einsum("nchwij,ocij->nohw", a, k)
        for a, k in zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    y: np.ndarray = np.concatenate(parts, 1)
    return y if b is None else y + b[:, None, None]


def _gemm(node: ir.Node, a: np.ndarray, b: np.ndarray, c: Any = 0) -> np.ndarray:
    found: np.ndarray = a @ (b.T if _attribute(node, "transB", 0) else b) + c
    return found


def _pool(node: ir.Node, x: np.ndarray) -> np.ndarray:
    down, across = _attribute(node, "strides", [1, 1])
    shape = tuple(_attribute(node, "kernel_shape", None))
    windows = np.lib.stride_tricks.sliding_window_view(x, shape, (2, 3))
    return np.asarray(windows[:, :, ::down, ::across].max((-2, -1)))


def _softmax(node: ir.Node, x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _norm(node: ir.Node, x: np.ndarray, g: np.ndarray, b: Any = 0.0) -> np.ndarray:
    centre = x.mean(-1, keepdims=True) if node.op_type == "LayerNormalization" else 0.0
    power = np.square(x - centre).mean(-1, keepdims=True) + _attribute(node, "epsilon", 1e-5)
    return np.asarray((x - centre) / np.sqrt(power) * g + b)


def _gelu(node: ir.Node, x: np.ndarray) -> np.ndarray:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


def _reshape(node: ir.Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape.tolist())])


def _cast(node: ir.Node, x: np.ndarray) -> np.ndarray:
    whole = node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return x.astype(np.int64) if whole else x.astype(np.float64)


def _mean(node: ir.Node, x: np.ndarray, axes: Any = None) -> np.ndarray:
    over = None if axes is None else tuple(axes.tolist())
    return np.asarray(x.mean(over, keepdims=bool(_attribute(node, "keepdims", 1))))


def _split(node: ir.Node, x: np.ndarray, sizes: Any = None) -> tuple[np.ndarray, ...]:
    axis = _attribute(node, "axis", 0)
    if sizes is None:
        return tuple(np.split(x, len(node.outputs), axis))
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def _slice(
    node: ir.Node, x: np.ndarray, starts: np.ndarray, ends: np.ndarray, axes: Any = None,
    steps: Any = None,
) -> np.ndarray:  # fmt: skip
    at = [slice(None)] * x.ndim
    along = range(len(starts)) if axes is None else axes.tolist()
    by = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(along, starts.tolist(), ends.tolist(), by, strict=True):
        at[axis] = slice(start, end, step)
    return x[tuple(at)]


def _gather_nd(node: ir.Node, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    assert not _attribute(node, "batch_dims", 0)
    return np.asarray(x[tuple(np.moveaxis(at.astype(np.int64), -1, 0))])


def _shape(node: ir.Node, x: np.ndarray) -> np.ndarray:
    return np.array(x.shape[_attribute(node, "start", 0) : _attribute(node, "end", None)])


_RULES: Mapping[str, Callable[..., Any]] = {
    "Add": lambda n, a, b: a + b,
    "Sub": lambda n, a, b: a - b,
    "Mul": lambda n, a, b: a * b,
    "Div": lambda n, a, b: a / b,
    "Relu": lambda n, x: np.maximum(x, 0),
    "Clip": lambda n, x, low=None, high=None: np.clip(x, low, high),
    "Sigmoid": lambda n, x: 1 / (1 + np.exp(-x)),
    "Tanh": lambda n, x: np.tanh(x),
    "Identity": lambda n, x: x,
    "Constant": lambda n: _wide(n.attributes["value"].value.numpy()),
    "Transpose": lambda n, x: x.transpose(_attribute(n, "perm", None)),
    "Unsqueeze": lambda n, x, axes: np.expand_dims(x, tuple(axes.tolist())),
    "Squeeze": lambda n, x, axes=None: np.squeeze(x, None if axes is None else tuple(axes)),
    "Expand": lambda n, x, shape: x * np.ones(shape.tolist()),
    "Flatten": lambda n, x: x.reshape(len(x), -1),
    "Gather": lambda n, x, at: np.take(x, at.astype(np.int64), _attribute(n, "axis", 0)),
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Split": _split,
    "Shape": _shape,
    "Range": lambda n, *ends: np.arange(*(int(np.squeeze(end)) for end in ends)),
    "Max": lambda n, *xs: reduce(np.maximum, xs),
    "Where": lambda n, at, a, b: np.where(at.astype(bool), a, b),
    "And": lambda n, a, b: np.logical_and(a, b),
    "GreaterOrEqual": lambda n, a, b: a >= b,
    "ReduceMean": _mean,
    "Concat": lambda n, *xs: np.concatenate(xs, _attribute(n, "axis", 0)),
    "GlobalAveragePool": lambda n, x: x.mean((2, 3), keepdims=True),
    "MatMul": lambda n, a, b: a @ b,
    "Gemm": _gemm,
    "Conv": _conv,
    "MaxPool": _pool,
    "Softmax": _softmax,
    "LayerNormalization": _norm,
    "RMSNormalization": _norm,
    "Gelu": _gelu,
    "Reshape": _reshape,
    "Cast": _cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "TRT_FP4DynamicQuantize": _fp4,
}
