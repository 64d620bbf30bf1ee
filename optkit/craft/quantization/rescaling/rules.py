"""The effect of a positive factor per channel at a node: which constants absorb it, or to which
operands it moves.

    t (x̂ γ + β)  = x̂ (t γ) + t β      LayerNormalization, RMS norms: their scale and bias
    t (u W + b)   = u (W t) + t b       MatMul, Gemm, Conv: the weight's output channels, the bias
    t (a ⊙ b)     = a ⊙ (t b)           a product: one of its operands
    t relu(u)     = relu(t u)           t > 0: positively homogeneous operators: go on to u
    t (P V)       = P (t V)             attention: on to the values, if t varies over their columns

There is one function for each kind of operator; `_RULES` is their table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.rescaling.channels import (
    before_expand,
    before_reshape,
    before_selection,
    before_transpose,
    dims,
    of_operand,
)
from optkit.ground import graph


@dataclass(frozen=True)
class FoldObstacle:
    """The factor cannot be folded, for this reason."""

    reason: str


@dataclass(frozen=True)
class Sink:
    """A constant operand that is multiplied by the factor of its labels (`divide`: divided by
    it)."""

    node: ir.Node
    index: int
    labels: np.ndarray
    divide: bool = False


@dataclass(frozen=True)
class FoldStep:
    """One way to move a factor past a node: constants that absorb the factor, and operands that
    must get it next."""

    sinks: tuple[Sink, ...] = ()
    up: tuple[tuple[int, np.ndarray], ...] = ()
    ties: tuple[tuple[int, int], ...] = ()


Ways = list[FoldStep] | FoldObstacle
"""Ways to move a factor past a node, the best first."""


def ways(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """Ways to move a factor of these labels past the node that computes `value`, the best first."""
    rule = _RULES.get((node.domain, node.op_type))
    if rule is None:
        return FoldObstacle(f"{node.op_type} {node.name} is not homogeneous")
    if value is not node.outputs[0] and node.op_type != "Split":
        return FoldObstacle(f"{value.name} is not the main result of {node.name}")
    return rule(node, value, labels)


def touches(reader: ir.Node, labels: np.ndarray) -> bool:
    """Whether a reader reads any element that changes."""
    chosen = _chosen(reader) if reader.op_type in ("Gather", "Slice") else None
    if chosen is None or labels.shape[chosen[0]] == 1:
        return True
    return bool((labels.take(chosen[1], chosen[0]) >= 0).any())


# ---- parameters --------------------------------------------------------------------------------


def _norm(*parameters: int) -> Callable[[ir.Node, ir.Value, np.ndarray], Ways]:
    """A normalization over the last axes whose inputs `parameters` scale and shift the result."""

    def ways(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
        first = node.attributes.get_int("axis", -1) % labels.ndim
        if any(size != 1 for size in labels.shape[:first]):
            return FoldObstacle(f"{node.name} normalizes along other axes")
        trailing = labels.reshape(labels.shape[first:])
        return [FoldStep(tuple(Sink(node, i, trailing) for i in parameters if _given(node, i)))]

    return ways


def _channel_norm(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """Scale and bias [C], one for each index of axis 1."""
    flat = _only_along(labels, 1)
    scale = graph.array(node.inputs[1])
    if flat is None or scale is None or scale.size != flat.size:
        return FoldObstacle(f"{node.name} has no parameter for each channel")
    return [FoldStep((Sink(node, 1, flat), Sink(node, 2, flat)))]


def _matmul(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """Columns of the right operand, or rows of the left one."""
    ways: list[FoldStep] = []
    for index, fixed in ((1, -2), (0, -1)):
        shape = dims(node.inputs[index])
        operand = of_operand(labels, shape) if labels.ndim > 1 else None
        if operand is not None and operand.ndim > 1 and operand.shape[fixed] == 1:
            ways.append(_take(node, index, operand))
    return ways or FoldObstacle(f"the factor is not one per row or column of {node.name}")


def _gemm(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    flat = _only_along(labels, 1)
    if flat is None:
        return FoldObstacle(f"the factor is not one per column of {node.name}")
    along = flat.reshape(-1, 1) if node.attributes.get_int("transB", 0) else flat.reshape(1, -1)
    return [_with_bias(node, _take(node, 1, along), flat)]


def _conv(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    flat, weight = _only_along(labels, 1), graph.array(node.inputs[1])
    if flat is None or weight is None:
        return FoldObstacle(f"the factor is not one per output channel of {node.name}")
    if node.op_type == "Conv":
        along = flat.reshape(-1, *(1,) * (weight.ndim - 1))
    elif node.attributes.get_int("group", 1) == 1:
        along = flat.reshape(1, -1, *(1,) * (weight.ndim - 2))
    else:
        return FoldObstacle(f"{node.name} is a transposed convolution with groups")
    return [_with_bias(node, FoldStep((Sink(node, 1, along),)), flat)]


def _with_bias(node: ir.Node, step: FoldStep, flat: np.ndarray) -> FoldStep:
    if not _given(node, 2):
        return step
    return FoldStep((*step.sinks, Sink(node, 2, flat)), step.up)


# ---- element by element ------------------------------------------------------------------------


def _homogeneous(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    return [FoldStep(up=((0, labels),))]


def _pooled(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    if _only_along(labels, 1) is None:
        return FoldObstacle(f"{node.name} mixes elements with different factors")
    return _homogeneous(node, value, labels)


def _clip(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    low = graph.array(node.inputs[1]) if _given(node, 1) else None
    if _given(node, 2) or low is None or low.any():
        return FoldObstacle(f"{node.op_type} {node.name} has a bound that would have to move")
    return _homogeneous(node, value, labels)


def _resize(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    cropped = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if cropped == "tf_crop_and_resize":
        return FoldObstacle(f"{node.name} fills in a constant")
    return _pooled(node, value, labels)


def _sum(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """Every term gets the factor."""
    step = FoldStep()
    for index in range(len(node.inputs)):
        operand = node.inputs[index]
        if graph.is_constant(operand):
            step = FoldStep((*step.sinks, Sink(node, index, labels)), step.up)
            continue
        above = of_operand(labels, dims(operand))
        if above is None:
            return FoldObstacle(f"{node.name} broadcasts a computed operand")
        step = FoldStep(step.sinks, (*step.up, (index, above)))
    return [step]


def _product(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """One operand gets the factor: a constant per channel, otherwise an operand that can absorb it.
    A scalar constant stays a scalar, because patterns of runtimes (Gelu) contain scalars."""
    constant: list[FoldStep] = []
    computed: list[FoldStep] = []
    for index in range(1 if node.op_type == "Div" else 2):
        numbers = graph.array(node.inputs[index])
        above = of_operand(labels, dims(node.inputs[index]))
        if numbers is not None and numbers.size > 1:
            constant.append(FoldStep((Sink(node, index, labels),)))
        elif numbers is None and above is not None:
            computed.append(FoldStep(up=((index, above),)))
    divisor = graph.array(node.inputs[1]) if node.op_type == "Div" else None
    if divisor is not None and divisor.size > 1:
        constant.append(FoldStep((Sink(node, 1, labels, divide=True),)))
    return constant + computed or FoldObstacle(f"{node.name} broadcasts its operands")


# ---- layout ------------------------------------------------------------------------------------


def _transpose(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    permutation = node.attributes.get_ints("perm") or tuple(reversed(range(labels.ndim)))
    return [FoldStep(up=((0, before_transpose(labels, permutation)),))]


def _reshape(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    source, result = dims(node.inputs[0]), dims(value)
    above = before_reshape(labels, source, result) if source and result else None
    return (
        FoldObstacle(f"{node.name} mixes axes") if above is None else [FoldStep(up=((0, above),))]
    )


def _expand(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    source = dims(node.inputs[0])
    expanded = before_expand(labels, source) if source is not None else None
    if expanded is None:
        return FoldObstacle(f"{node.name} copies what has different factors")
    above, ties = expanded
    return [FoldStep(up=((0, above),), ties=tuple(ties))]


def _split(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    axis = node.attributes.get_int("axis", 0)
    shapes = [dims(output) for output in node.outputs]
    sizes = [shape[axis] if shape else None for shape in shapes]
    before = sizes[: node.outputs.index(value) + 1]
    if not all(isinstance(size, int) for size in before):
        return FoldObstacle(f"{node.name} has parts of unknown size")
    known = [int(size or 0) for size in before]
    return _selected(node, labels, axis, np.arange(known[-1]) + sum(known[:-1]))


def _taken(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    chosen = _chosen(node)
    if chosen is None:
        return FoldObstacle(f"{node.name} takes computed places, or parts of a dynamic axis")
    if node.op_type == "Gather" and len(dims(node.inputs[1]) or ()) == 0:
        labels = np.expand_dims(labels, chosen[0])
    return _selected(node, labels, *chosen)


def _chosen(node: ir.Node) -> tuple[int, np.ndarray] | None:
    """The axis of the input, and the constant indices along it, that a Gather or Slice selects."""
    source = dims(node.inputs[0])
    read = [graph.array(node.inputs[i]) if _given(node, i) else None for i in range(1, 5)]
    starts, ends, axes, steps = read
    if source is None or starts is None:
        return None
    if node.op_type == "Gather":
        axis = node.attributes.get_int("axis", 0) % len(source)
        return (axis, starts.reshape(-1)) if starts.ndim < 2 else None
    if ends is None or starts.size != 1 or (_given(node, 3) and axes is None):
        return None
    axis = int(axes[0]) % len(source) if axes is not None else 0
    size, step = source[axis], int(steps[0]) if steps is not None else 1
    if not isinstance(size, int):
        return None
    return axis, np.arange(size)[int(starts[0]) : int(ends[0]) : step]


def _selected(node: ir.Node, labels: np.ndarray, axis: int, chosen: np.ndarray) -> Ways:
    source = dims(node.inputs[0])
    above = before_selection(labels, source, axis, chosen) if source else None
    if above is None:
        return FoldObstacle(f"{node.name} takes parts of a dynamic axis, or one twice")
    return [FoldStep(up=((0, above),))]


def _concat(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    axis = node.attributes.get_int("axis", 0) % labels.ndim
    up, start = [], 0
    for index, operand in enumerate(node.inputs):
        part = labels
        if labels.shape[axis] != 1:
            shape = dims(operand)
            size = shape[axis] if shape else None
            if not isinstance(size, int):
                return FoldObstacle(f"{node.name} joins parts of unknown size")
            part = labels.take(np.arange(start, start + size), axis)
            start += size
        if (part >= 0).any():
            up.append((index, part))
    return [FoldStep(up=tuple(up))]


def _reduce(node: ir.Node, value: ir.Value, labels: np.ndarray) -> Ways:
    """Mean, sum, maximum over axes on which the factor does not depend."""
    source = dims(node.inputs[0])
    axes = graph.array(node.inputs[1]) if _given(node, 1) else None
    if source is None or axes is None:
        return FoldObstacle(f"{node.name} reduces over axes that are not known")
    reduced = sorted(int(axis) % len(source) for axis in axes.reshape(-1))
    if not node.attributes.get_int("keepdims", 1):
        labels = np.expand_dims(labels, reduced)
    if any(labels.shape[axis] != 1 for axis in reduced):
        return FoldObstacle(f"{node.name} mixes elements with different factors")
    return [FoldStep(up=((0, labels),))]


def _take(node: ir.Node, index: int, labels: np.ndarray) -> FoldStep:
    """The operand gets the factor: a constant absorbs it, another value passes it to its node."""
    if graph.is_constant(node.inputs[index]):
        return FoldStep((Sink(node, index, labels),))
    return FoldStep(up=((index, labels),))


def _only_along(labels: np.ndarray, axis: int) -> np.ndarray | None:
    """Labels [C] if they differ only along this axis."""
    if labels.ndim <= axis or labels.size != labels.shape[axis]:
        return None
    return labels.reshape(-1)


def _given(node: ir.Node, index: int) -> bool:
    return len(node.inputs) > index and node.inputs[index] is not None


_Rule = Callable[[ir.Node, ir.Value, np.ndarray], Ways]
_PLAIN: dict[str, _Rule] = {
    "LayerNormalization": _norm(1, 2),
    "RMSNormalization": _norm(1),
    "SimplifiedLayerNormalization": _norm(1),
    "BatchNormalization": _channel_norm,
    "InstanceNormalization": _channel_norm,
    "GroupNormalization": _channel_norm,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv,
    **dict.fromkeys(("Relu", "LeakyRelu", "Abs", "Identity", "Neg", "Dropout"), _homogeneous),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pooled),
    "Clip": _clip,
    "Resize": _resize,
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    **dict.fromkeys(("Mul", "Div"), _product),
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Expand": _expand,
    "Split": _split,
    **dict.fromkeys(("Slice", "Gather"), _taken),
    "Concat": _concat,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), _reduce),
}
_RULES: Mapping[tuple[str, str], _Rule] = {
    **{("", op): rule for op, rule in _PLAIN.items()},
    ("com.microsoft", "SimplifiedLayerNormalization"): _norm(1),
}
