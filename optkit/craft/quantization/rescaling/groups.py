"""x W = (x / s) (s W): a factor per input channel, moved between an activation and its weights.

A group is a value with all weighted nodes that read it; they share one s. `fold` finds the
constants that take the factor. If there are none, a Mul is inserted before the readers that need
it. The rewrite is exact up to float rounding. `smoothquant`,
`cross_layer_equalization` and `awq` choose s.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.rescaling.channels import dims, of_axis
from optkit.craft.quantization.rescaling.factors import Factor
from optkit.craft.quantization.rescaling.fold import FoldPath, find_fold
from optkit.craft.quantization.rescaling.rules import FoldObstacle
from optkit.ground import graph


@dataclass(frozen=True)
class RescalingGroup:
    """`members`: the given nodes that multiply `value` by a constant weight. `partners`: other such
    nodes that read it; their weights can compensate for a factor too."""

    value: ir.Value
    members: tuple[ir.Node, ...]
    partners: tuple[ir.Node, ...]
    axis: int  # the axis of the value over which the weights sum: -1, or 1 for convolutions
    channels: int

    @property
    def readers(self) -> tuple[ir.Node, ...]:
        return (*self.members, *self.partners)

    @property
    def kernels(self) -> list[np.ndarray]:
        """The weights of the members, as `kernel` has them."""
        return [kernel(node) for node in self.members]


def find_groups(model: ir.Model, nodes: Collection[str]) -> list[RescalingGroup]:
    """The values that the named nodes multiply by constant weights, in the order of the graph."""
    by_value: dict[ir.Value, RescalingGroup] = {}
    for node in model.graph:
        if node.name not in nodes or not _weighted(node):
            continue
        value = node.inputs[0]
        assert value is not None
        if value not in by_value:
            by_value[value] = _group(value, node, nodes)
    return list(by_value.values())


def kernel(node: ir.Node) -> np.ndarray:
    """The weight of the node as [groups, inputs, outputs, taps] for any operator; a view.

    Conv [O, I/g, *k] · ConvTranspose [I, O/g, *k] · MatMul, Gemm: one group, one tap.
    """
    w = graph.array(node.inputs[1])
    assert w is not None
    if node.op_type not in _CONVOLUTIONS:
        matrix = w.T if node.attributes.get_int("transB", 0) else w
        return matrix[None, :, :, None]
    count = node.attributes.get_int("group", 1)
    parts = w.reshape(count, w.shape[0] // count, w.shape[1], -1)
    return parts.swapaxes(1, 2) if node.op_type == "Conv" else parts


def fold_path(group: RescalingGroup) -> FoldPath | FoldObstacle:
    """How a factor can be folded, if every reader of the value can compensate for it."""
    shape = dims(group.value)
    if shape is None:
        return FoldObstacle(f"the shape of {group.value.name} is not known")
    readers = {(node, 0) for node in group.readers}
    return why_not_scalable(group.readers) or find_fold(
        group.value, of_axis(len(shape), group.axis, group.channels), readers
    )


def why_not_scalable(nodes: Collection[ir.Node]) -> FoldObstacle | None:
    """Why the weights of these nodes cannot be multiplied by a factor; None if they can."""
    for node in nodes:
        weight = node.inputs[1]
        assert weight is not None
        foreign = [u.node.name for u in weight.uses() if u.node not in nodes or u.idx != 1]
        if foreign or weight.is_graph_output():
            other = foreign[0] if foreign else "a model output"
            return FoldObstacle(f"the weight of {node.name} is shared with {other}")
    return None


def fold(group: RescalingGroup, path: FoldPath, s: np.ndarray) -> list[Factor]:
    """Divide the value by `s` [channels] where it is computed, and multiply the weights of all its
    readers by `s`. Returns what constants were multiplied by.

    Channels that `path.ties` joins must have the same factor.
    """
    reciprocal = 1.0 / s.astype(np.float64)
    factors = []
    for sink in path.sinks:
        ones = np.where(sink.labels < 0, 1.0, reciprocal[sink.labels])
        factor = 1.0 / ones if sink.divide else ones
        _scale_constant(sink.node, sink.index, factor)
        factors.append(Factor(str(sink.node.name), sink.index, factor))
    return factors + _scale_weights(group.readers, s)


def insert_mul(group: RescalingGroup, s: np.ndarray) -> ir.Value:
    """Insert a Mul by 1/s before the members, and multiply their weights by s. Returns the new
    value.

    Only for MatMul and Gemm, because the factor is along the last axis.
    """
    owner, value = group.members[0].graph, group.value
    assert isinstance(owner, ir.Graph) and group.axis == -1
    taken = set(ir.convenience.create_value_mapping(owner))
    name = graph.unique_name(f"{value.name}_rescaled", taken)
    factor = graph.unique_name(f"{name}_factor", taken)
    constant = graph.add_constant(owner, factor, (1.0 / s.astype(np.float64)).astype(np.float32))
    node_name = graph.unique_name(f"Mul_{name}", {str(node.name) for node in owner.all_nodes()})
    result = ir.Value(name=name, type=value.type, shape=value.shape)
    node = ir.node("Mul", [value, constant], outputs=[result], name=node_name)
    owner.insert_before(next(n for n in owner if n in group.members), node)
    for member in group.members:
        member.replace_input_with(0, result)
    _scale_weights(group.members, s)
    return result


_CONVOLUTIONS = ("Conv", "ConvTranspose")


def _group(value: ir.Value, first: ir.Node, nodes: Collection[str]) -> RescalingGroup:
    axis = 1 if first.op_type in _CONVOLUTIONS else -1
    rank = len(dims(value) or ())
    same = (-1, 1) if rank == 2 else (axis,)
    reading = [
        use.node
        for use in value.uses()
        if use.idx == 0 and _weighted(use.node) and _axis(use.node) in same
    ]
    members = tuple(node for node in reading if node.name in nodes)
    partners = tuple(node for node in reading if node.name not in nodes)
    count, inputs, *_ = kernel(first).shape
    return RescalingGroup(value, members, partners, axis, count * inputs)


def _axis(node: ir.Node) -> int:
    return 1 if node.op_type in _CONVOLUTIONS else -1


def _weighted(node: ir.Node) -> bool:
    """Whether the node multiplies its first input by a stored float weight; for a MatMul, by a
    matrix."""
    if node.domain != "" or node.op_type not in graph.WEIGHTED or len(node.inputs) < 2:
        return False
    weight = node.inputs[1]
    if weight is None or not weight.is_initializer() or not graph.is_constant(weight):
        return False
    numbers = weight.const_value  # not read: it may be in a file
    assert numbers is not None
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
        return False
    matrix = len(numbers.shape) == 2 or node.op_type in _CONVOLUTIONS
    return matrix and numbers.dtype == ir.DataType.FLOAT


def _scale_weights(nodes: Collection[ir.Node], s: np.ndarray) -> list[Factor]:
    done: set[ir.Value] = set()
    factors = []
    for node in nodes:
        weight = node.inputs[1]
        assert weight is not None
        if weight not in done:
            done.add(weight)
            factor = _along_inputs(node, s).astype(np.float64)
            _scale_constant(node, 1, factor, copied=False)
            factors.append(Factor(str(node.name), 1, factor))
    return factors


def _along_inputs(node: ir.Node, s: np.ndarray) -> np.ndarray:
    """`s` in a shape that multiplies the node's weight along its input channels."""
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    taps = (1,) * (len(shape) - 2)
    if node.op_type == "Conv":  # [O, I/g, *k]: output channel o reads the inputs of its group
        per_group = s.reshape(node.attributes.get_int("group", 1), 1, -1)
        each = shape[0] // per_group.shape[0]
        return np.repeat(per_group, each, axis=1).reshape(shape[0], -1, *taps)
    if node.op_type == "ConvTranspose" or not node.attributes.get_int("transB", 0):
        return s.reshape(-1, 1, *taps)
    return s.reshape(1, -1)


def _scale_constant(node: ir.Node, index: int, factor: np.ndarray, *, copied: bool = True) -> None:
    """Multiply a constant operand. `copied`: if the constant has other readers, multiply a copy."""
    value = node.inputs[index]
    assert value is not None and node.graph is not None
    owned = value.is_initializer() and not value.is_graph_output() and len(value.uses()) == 1
    if owned or not copied:
        assert value.const_value is not None
        value.const_value = graph.scaled(value.const_value, factor)
        value.shape = ir.Shape(value.const_value.shape.numpy())
        return
    old = graph.array(value)
    assert old is not None
    numbers = (old.astype(np.float64) * factor).astype(old.dtype)
    copy = graph.new_constant(node.graph, f"{value.name}_rescaled", numbers)
    node.replace_input_with(index, copy)
