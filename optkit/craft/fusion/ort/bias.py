"""The bias of an integer Conv or Gemm, as the int32 that its kernel adds.

    Q ── DQ ──► Conv(·, DQ(w), b) ──► Relu ── Q      b float  ──►  b = DQ(int32, s_x s_w)

optkit's quantizer writes such biases. Other tools leave them in float (TensorRT adds floats), and
ONNX Runtime then computes the Conv in float. The step s_x s_w is that of the sum of products, so a
rounded bias moves a result by half of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import made_by, reader
from optkit.craft.fusion.rule import Decline, Rule
from optkit.facts.precisions import BIAS_STEPS
from optkit.ground import graph

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class FloatBias:
    """`bias` [channels] of a node, and `step`, the scale of its sums, rank 0 or [channels]."""

    node: ir.Node
    bias: np.ndarray
    step: np.ndarray


def check(node: ir.Node) -> FloatBias | Decline | None:
    given = node.inputs[2] if len(node.inputs) > 2 else None
    activation, weight = (made_by(value, "DequantizeLinear") for value in node.inputs[:2])
    if node.domain != "" or activation is None or weight is None or not graph.is_constant(given):
        return None
    result = node.outputs[0]
    while (behind := reader(result, "Relu", "Clip")) is not None:
        result = behind.outputs[0]
    if reader(result, "QuantizeLinear") is None:
        return Decline("its result is not quantized: its kernel adds floats")
    if node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1.0:
        return Decline("beta is not 1")
    return _in_steps(node, *map(graph.array, (given, activation.inputs[1], weight.inputs[1])))


def _in_steps(
    node: ir.Node, bias: np.ndarray | None, x: np.ndarray | None, w: np.ndarray | None
) -> FloatBias | Decline:
    """The bias beside the scales of the activation and of the weight."""
    if bias is None or x is None or w is None or {bias.dtype, x.dtype, w.dtype} != {_FLOAT}:
        return Decline("its scales or its bias are not float32 constants")
    if bias.ndim != 1 or x.size != 1 or w.size not in (1, bias.size):
        return Decline("its scales are not one per tensor and one per output channel")
    step = (x.reshape(()) * (w.reshape(()) if w.size == 1 else w.reshape(-1))).astype(np.float32)
    if not np.all(np.abs(bias) <= step.astype(np.float64) * BIAS_STEPS):
        return Decline("its bias has more steps than an int32 sum can hold")
    return FloatBias(node, bias, step)


def to_codes(match: FloatBias) -> str:
    node, owner = match.node, graph.owner(match.node)
    codes = np.rint(match.bias / match.step.astype(np.float64)).astype(np.int32)
    inputs = [
        graph.new_constant(owner, f"{node.name}_bias_quantized", codes),
        graph.new_constant(owner, f"{node.name}_bias_scale", match.step),
    ]
    axis = {"axis": 0} if match.step.ndim else {}
    value = ir.Value(name=f"{node.name}_bias_dequantized")
    dequantize = ir.node("DequantizeLinear", inputs, axis, outputs=[value])
    value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(match.bias.shape)
    owner.insert_before(node, dequantize)
    node.replace_input_with(2, value)
    return "int32, added to the integer products"


integer_bias: Rule[FloatBias] = Rule("integer_bias", frozenset({"Conv", "Gemm"}), check, to_codes)
