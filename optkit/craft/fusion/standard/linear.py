"""y = W x + b in the forms of a graph, and the effect of an affine map after it on W and b.

    s · (W x + b) + t = (s W) x + (s b + t)        s, t: one number per output channel

The operators are Conv, ConvTranspose, Gemm, and MatMul with or without the Add of its bias. The
guards: only constants, no other reader of y; shared weights are copied or do not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import made_by, sides
from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES, Decline, remove, replace
from optkit.ground import graph


@dataclass(frozen=True)
class LinearNode:
    """A linear node whose weight and bias are constant and whose result has one reader."""

    node: ir.Node
    weight: ir.Value
    bias: np.ndarray  # [channels], float64
    add: ir.Node | None  # holds the bias of a MatMul
    channels: int
    output: ir.Value

    @property
    def channel_axis(self) -> int:
        """The axis of the result for the channels."""
        return 1 if self.node.op_type in ("Conv", "ConvTranspose") else -1


@dataclass(frozen=True)
class Affine:
    """A match: `node` computes scale · y + shift after `linear`, which absorbs it."""

    node: ir.Node
    linear: LinearNode
    weight: np.ndarray  # the new weight, in its own dtype
    bias: np.ndarray  # [channels], in the weight's dtype


def find(value: ir.Value | None) -> LinearNode | Decline | None:
    """The linear operator that computes `value`; None if another node does."""
    node = made_by(value, "Conv", "ConvTranspose", "Gemm", "MatMul")
    if node is not None:
        return _linear(node, None)
    add = made_by(value, "Add")
    for inner, bias in sides(add):
        product = made_by(inner, "MatMul")
        if product is not None:
            return _linear(product, add) if graph.is_constant(bias) else None
    return None


def compose(
    node: ir.Node, linear: LinearNode, scale: np.ndarray, shift: np.ndarray
) -> Affine | Decline:
    """Fold `scale` and `shift` ([channels] or one number, float64) into the linear's parameters."""
    old = graph.array(linear.weight)
    assert old is not None
    with np.errstate(over="ignore", invalid="ignore"):
        weight = (old.astype(np.float64) * _along_weight(linear, scale, old)).astype(old.dtype)
        bias = (linear.bias * scale + shift).astype(old.dtype)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return Decline(f"the folded parameters would overflow {old.dtype}")
    return Affine(node, linear, weight, bias)


def absorb(match: Affine) -> str:
    """Write the new parameters; the linear's result takes the name and place of the affine's."""
    linear = match.linear
    _set_weight(linear, match.weight)
    result = match.node.outputs[0]
    if linear.node.op_type == "MatMul" and linear.add is None and match.bias.any():
        _turn_into_add(match)
        return f"scale into {linear.node.name}, shift stays as its bias"
    if linear.node.op_type != "MatMul" or linear.add is not None:
        _set_bias(linear, match.bias)
    replace(result, linear.output)
    linear.output.name = result.name
    remove(match.node)
    return f"{match.node.op_type} into {linear.node.name}"


def per_channel(numbers: np.ndarray, linear: LinearNode, rank: int) -> np.ndarray | None:
    """A constant operand as float64 [channels] or [1]; None if it varies along another axis."""
    if numbers.ndim > rank:
        return None
    dims = (1,) * (rank - numbers.ndim) + numbers.shape
    axis = linear.channel_axis % rank
    if any(dim != 1 for i, dim in enumerate(dims) if i != axis):
        return None
    if dims[axis] not in (1, linear.channels):
        return None
    return numbers.reshape(-1).astype(np.float64)


def _linear(node: ir.Node, add: ir.Node | None) -> LinearNode | Decline:
    output = (add or node).outputs[0]
    for value in {node.outputs[0], output}:
        if value.is_graph_output() or len(value.uses()) != 1:
            return Decline(f"the result of {node.name} is also used elsewhere")
    weight = node.inputs[1]
    numbers = graph.array(weight)
    if weight is None or numbers is None or not weight.is_initializer():
        return Decline(f"the weight of {node.name} is not constant")
    if not np.issubdtype(numbers.dtype, np.floating) or numbers.ndim < 2:
        return Decline(f"the weight of {node.name} is {numbers.ndim}-d {numbers.dtype}")
    if _is_shared(weight) and numbers.nbytes > GROWTH_LIMIT_BYTES:
        return Decline(f"the weight of {node.name} is shared and {numbers.nbytes:,} bytes large")
    channels = _channels(node, numbers)
    bias = _bias(node, add, channels)
    if isinstance(bias, Decline):
        return bias
    return LinearNode(node, weight, bias, add, channels, output)


def _channels(node: ir.Node, weight: np.ndarray) -> int:
    if node.op_type == "Conv":
        return int(weight.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1]) * node.attributes.get_int("group", 1)
    return int(weight.shape[0 if node.attributes.get_int("transB", 0) else -1])


def _bias(node: ir.Node, add: ir.Node | None, channels: int) -> np.ndarray | Decline:
    """The bias as float64 [channels]; zeros where there is none."""
    if add is not None:
        value = next(v for v in add.inputs if graph.is_constant(v))
    else:
        value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return np.zeros(channels)
    numbers = graph.array(value)
    if numbers is None:
        return Decline(f"the bias of {node.name} is not constant")
    if any(dim != 1 for dim in numbers.shape[:-1]) or numbers.size not in (1, channels):
        return Decline(f"the bias of {node.name} is not one number per channel")
    if add is not None and numbers.ndim > len(node.outputs[0].shape or ()):
        return Decline(f"the bias of {node.name} has more axes than its result")
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    return np.broadcast_to(numbers.reshape(-1).astype(np.float64) * beta, (channels,))


def _along_weight(linear: LinearNode, scale: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`scale` in a shape that multiplies the weight along its output channels."""
    node = linear.node
    scale = np.broadcast_to(scale, (linear.channels,))
    if node.op_type == "ConvTranspose":  # weight: [in, out / group, *kernel]
        group = node.attributes.get_int("group", 1)
        spread = np.repeat(scale.reshape(group, -1), weight.shape[0] // group, axis=0)
        return spread.reshape(*spread.shape, *(1,) * (weight.ndim - 2))
    if node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1:  # [out, in, ...]
        return scale.reshape(-1, *(1,) * (weight.ndim - 1))
    return scale  # [..., in, out]


def _set_weight(linear: LinearNode, numbers: np.ndarray) -> None:
    if _is_shared(linear.weight):
        linear.node.replace_input_with(1, _new_constant(linear, "weight", numbers))
    else:
        linear.weight.const_value = ir.Tensor(numbers, name=linear.weight.name)


def _set_bias(linear: LinearNode, numbers: np.ndarray) -> None:
    holder = linear.add or linear.node
    if linear.add is not None:
        index = 0 if graph.is_constant(holder.inputs[0]) else 1
    else:
        index = 2
        if len(holder.inputs) < 3:
            if not numbers.any():
                return
            holder.resize_inputs(3)
    old = holder.inputs[index]
    if old is not None and old.is_initializer() and not _is_shared(old):
        old.const_value = ir.Tensor(numbers, name=old.name)
        old.shape = ir.Shape(numbers.shape)
    else:
        holder.replace_input_with(index, _new_constant(linear, "bias", numbers))
    if holder.op_type == "Gemm":
        holder.attributes.add(ir.AttrFloat32("beta", 1.0))


def _turn_into_add(match: Affine) -> None:
    """A MatMul has no bias input, so the affine node becomes the Add of the bias."""
    node, linear = match.node, match.linear
    assert node.graph is not None
    shift = _new_constant(linear, "bias", match.bias)
    add = ir.Node("", "Add", [linear.output, shift], num_outputs=1, name=node.name)
    node.graph.insert_before(node, add)
    result = node.outputs[0]
    add.outputs[0].type, add.outputs[0].shape = result.type, result.shape
    replace(result, add.outputs[0])
    add.outputs[0].name = result.name
    remove(node)


def _is_shared(value: ir.Value) -> bool:
    return len(value.uses()) > 1 or value.is_graph_output()


def _new_constant(linear: LinearNode, what: str, numbers: np.ndarray) -> ir.Value:
    return graph.new_constant(graph.owner(linear.node), f"{linear.node.name}.{what}", numbers)
