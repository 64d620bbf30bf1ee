"""Inputs that are not data: shapes, axes, indices and other arguments of operators. Random numbers
are not valid for them; some follow from the declared shapes of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

_SHAPES = {("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0)}
_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
_ARGUMENTS = {
    **dict.fromkeys(_SHAPES, "shape"),
    **{(op, 1): "axes" for op in (*_REDUCTIONS, "Squeeze", "Unsqueeze", "CumSum", "CumProd")},
    **{(op, 1): "indices" for op in ("Gather", "GatherElements", "GatherND")},
    **{(op, 1): "indices" for op in ("ScatterElements", "ScatterND", "MaxUnpool")},
    ("Tile", 1): "repeats", ("Pad", 1): "pads", ("Pad", 3): "axes", ("TopK", 1): "k",
    ("Split", 1): "split", ("OneHot", 1): "depth", ("Trilu", 1): "k",
    ("Slice", 1): "starts", ("Slice", 2): "ends", ("Slice", 3): "axes", ("Slice", 4): "steps",
    ("Resize", 2): "scales", ("Resize", 3): "sizes", ("MaxUnpool", 2): "output shape",
    ("AffineGrid", 1): "size", ("Col2Im", 1): "image shape", ("Col2Im", 2): "block shape",
    ("CenterCropPad", 1): "shape", ("NonMaxSuppression", 2): "number of boxes",
    ("NonMaxSuppression", 3): "threshold", ("NonMaxSuppression", 4): "threshold",
    ("STFT", 1): "frame step", ("STFT", 3): "frame length", ("DFT", 1): "length",
    ("DFT", 2): "axis", ("Range", 0): "start", ("Range", 1): "limit", ("Range", 2): "delta",
    ("Loop", 0): "trip count", ("If", 0): "condition",
}  # fmt: skip
"""(operator, input) → the role of this input, in the words of ONNX's definition."""

_THROUGH = frozenset({"Identity", "Cast"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


@dataclass(frozen=True)
class Argument:
    """An input of the model that is an argument of `node` with this `role`. `numbers`: its values,
    if they follow from the declared shapes of the graph, else None."""

    role: str
    node: str
    numbers: np.ndarray | None

    @property
    def what(self) -> str:
        return f"the {self.role} of {self.node}"


def arguments(model: ir.Model) -> dict[str, Argument]:
    """Name of an input → the argument that it is. Inputs of data are not in the result."""
    by_name = {}
    for value in model.graph.inputs:
        if value.is_initializer():
            continue
        for node, index in _readers(value):
            role = _ARGUMENTS.get((node.op_type, index)) if node.domain == "" else None
            if role is None and _divides(node, index, value):
                role = "divisor"
            if role is None and (branch := _branch(node, value)) is not None:
                role, node = "condition", branch
            if role is not None:
                name = f"{node.op_type} {node.name}".strip()
                by_name[str(value.name)] = Argument(role, name, _numbers(node, index, role, value))
                break
    return by_name


def _readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    readers: list[tuple[ir.Node, int]] = []
    for node, index in value.uses():
        passes = node.op_type in _THROUGH and node.domain == ""
        readers += _readers(node.outputs[0]) if passes else [(node, index)]
    return readers


def _divides(node: ir.Node, index: int, value: ir.Value) -> bool:
    integer = value.dtype is not None and value.dtype.is_integer()
    return integer and index == 1 and node.op_type in ("Div", "Mod")


def _branch(node: ir.Node, value: ir.Value) -> ir.Node | None:
    """The If whose branch the integer `value` chooses, by the comparison `node`; None: none."""
    integer = value.dtype is not None and value.dtype.is_integer()
    if not integer or node.op_type not in _COMPARISONS or node.domain != "":
        return None
    return next((reader for reader, _ in _readers(node.outputs[0]) if reader.op_type == "If"), None)


def _numbers(node: ir.Node, index: int, role: str, value: ir.Value) -> np.ndarray | None:
    shape = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
    if shape is None or value.dtype is None:
        return None
    size, dtype = int(np.prod(shape)), value.dtype.numpy()
    if role == "indices" and node.op_type != "MaxUnpool":
        return np.zeros(shape, dtype)  # the first row, which is always there
    if role == "divisor":
        return np.ones(shape, dtype)
    if (node.op_type, index) in _SHAPES:
        numbers = _sizes(node.outputs[0])
    else:
        numbers = _BY_ROLE[role](node, size) if role in _BY_ROLE else None
    if numbers is None or len(numbers) != size:
        return None
    return np.asarray(numbers, dtype).reshape(shape)


def _axes(node: ir.Node, count: int) -> list[int] | None:
    if node.op_type == "Squeeze":
        sizes = _sizes(node.inputs[0])
        return None if sizes is None else [i for i, d in enumerate(sizes) if d == 1][:count]
    return _reduced(node, count) if node.op_type in _REDUCTIONS and count else None


def _split(node: ir.Node, count: int) -> list[int] | None:
    axis = node.attributes.get_int("axis", 0)
    parts = [_sizes(output) for output in node.outputs]
    return None if None in parts else [part[axis] for part in parts if part is not None]


def _repeats(node: ir.Node, count: int) -> list[int] | None:
    before, after = _sizes(node.inputs[0]), _sizes(node.outputs[0])
    if before is None or after is None or not all(before):
        return None
    return [large // small for small, large in zip(before, after, strict=True)]


_BY_ROLE = {"axes": _axes, "split": _split, "repeats": _repeats}
"""The facts about an argument that follow from the shapes of a node, and the number of its
elements."""


def _reduced(node: ir.Node, count: int) -> list[int] | None:
    """The axes that the declared result lacks, or in which it has size one."""
    before, after = _sizes(node.inputs[0]), _sizes(node.outputs[0])
    if before is None or after is None:
        return None
    if len(before) == len(after):
        axes = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        return axes if len(axes) == count else None
    return list(range(len(before))) if not after else None


def _sizes(value: ir.Value | None) -> list[int] | None:
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return [int(dim) for dim in value.shape.numpy()]
