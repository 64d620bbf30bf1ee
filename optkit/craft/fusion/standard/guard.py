"""The guard that torch's exporter writes around the softmax of a masked attention.

    Where(IsNaN(p), 0, p) = p   with p = Softmax(scores + mask), if no row of the sum is all −inf

Softmax gives NaN for a row that is all −inf, or that has NaN or +inf. PyTorch's boolean masks fill
with −inf, but those of the exporter with the lowest finite number, so the guard has no effect. The
proof uses intervals in float32: constants have theirs, integer inputs have the one of their dtype,
and results of layers (a matrix product, a normalization) are assumed to be within ±1e30; an
overflow there is an error of the model, not a mask. A mask that is a float input may have −inf, so
its guard remains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import Op, Var, first_match, made_by, sides
from optkit.craft.fusion.rule import Decline, Rule, keeps_output, remove, replace
from optkit.ground import graph

Interval = tuple[np.float32, np.float32]

_SOUND = (np.float32(-1e30), np.float32(1e30))
_FALSE, _TRUE = (np.float32(0), np.float32(0)), (np.float32(1), np.float32(1))
_EITHER = (np.float32(0), np.float32(1))
_LAYERS = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention"),
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "Softmax"),
        *("InstanceNormalization", "BatchNormalization", "LpNormalization"),
        *("Sigmoid", "Tanh", "Relu", "Gelu", "Sin", "Cos", "Erf"),
    }
)
_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice"),
        *("Gather", "GatherND", "GatherElements", "Identity", "Split"),
    }
)
"""Operators that only select or move numbers of their first input."""

_P = Op("Softmax", Var("scores"), result="p")
_GUARDED = Op("Where", Op("IsNaN", _P), Var("zero"), Var("p"))


@dataclass(frozen=True)
class Guard:
    """`where` returns the result of `softmax` unchanged."""

    where: ir.Node
    softmax: ir.Value


def check(node: ir.Node) -> Guard | Decline | None:
    match = first_match(_GUARDED, node.outputs[0])
    softmax = made_by(match["p"], "Softmax") if match is not None else None
    if match is None or softmax is None:
        return None
    scores = match["scores"]
    rank = len(scores.shape) if scores.shape is not None else None
    if rank is None or softmax.attributes.get_int("axis", -1) not in (-1, rank - 1):
        return Decline("the softmax is not known to run along the last axis")
    if reason := _why_nan(scores):
        return Decline(reason)
    return keeps_output(node.outputs[0], softmax.outputs[0]) or Guard(node, softmax.outputs[0])


def drop(match: Guard) -> str:
    replace(match.where.outputs[0], match.softmax)
    remove(match.where)
    return "no row of the softmax can be all -inf"


def interval(value: ir.Value | None) -> Interval | str:
    """The least and the largest number of the value, both finite; a str is the reason why they are
    unknown."""
    if value is None:
        return "an operand is absent"
    numbers = graph.array(value)
    if numbers is not None:
        return _of_constant(value, numbers)
    node = value.producer()
    if node is None:
        return _of_dtype(value) or f"the float input {value.name} may hold -inf"
    if node.domain == "" and node.op_type in _LAYERS:
        return _SOUND
    if node.domain == "" and node.op_type in _MOVES:
        return interval(node.inputs[0])
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        return _of_dtype(value) or f"{node.op_type} {node.name} may give -inf"
    with np.errstate(all="ignore"):
        bounds = rule(node)
    if not isinstance(bounds, str) and not np.isfinite(bounds).all():
        return f"{node.op_type} {node.name} may overflow to an infinity"
    return bounds


def _why_nan(scores: ir.Value) -> str | None:
    """Why a row may have no finite number, or NaN or +inf; None if neither can occur."""
    for mask, other in sides(made_by(scores, "Add")):
        numbers = graph.array(mask)
        if numbers is not None and not np.isfinite(numbers).all():
            if not _leaves_a_number_per_row(numbers):
                return f"the constant {mask.name if mask else 'mask'} hides a row, or is no mask"
            bounds = interval(other)
            return bounds if isinstance(bounds, str) else None
    bounds = interval(scores)
    return bounds if isinstance(bounds, str) else None


def _leaves_a_number_per_row(numbers: np.ndarray) -> bool:
    hidden = np.isneginf(numbers)
    sound = bool((np.isfinite(numbers) | hidden).all())
    return sound and numbers.ndim > 0 and not hidden.all(axis=-1).any()


def _of_constant(value: ir.Value, numbers: np.ndarray) -> Interval | str:
    if not numbers.size:
        return (np.float32(0), np.float32(0))
    low, high = np.float32(numbers.min()), np.float32(numbers.max())
    if not np.isfinite([low, high]).all():
        return f"the constant {value.name} holds an infinity"
    return low, high


def _of_dtype(value: ir.Value) -> Interval | None:
    """Integers and booleans are finite, within the range of their dtype."""
    if value.dtype == ir.DataType.BOOL:
        return _EITHER
    if value.dtype is None or not value.dtype.is_integer():
        return None
    info = np.iinfo(value.dtype.numpy())
    return np.float32(info.min), np.float32(info.max)


def _both(node: ir.Node, *indices: int) -> list[Interval] | str:
    bounds = [interval(node.inputs[index]) for index in indices]
    reason = next((each for each in bounds if isinstance(each, str)), None)
    return reason or [each for each in bounds if not isinstance(each, str)]


def _hull(*numbers: np.float32) -> Interval:
    return np.float32(min(numbers)), np.float32(max(numbers))


def _where(node: ir.Node) -> Interval | str:
    condition = interval(node.inputs[0])
    if condition in (_TRUE, _FALSE):
        return interval(node.inputs[1 if condition == _TRUE else 2])
    bounds = _both(node, 1, 2)
    return bounds if isinstance(bounds, str) else _hull(*bounds[0], *bounds[1])


def _concat(node: ir.Node) -> Interval | str:
    bounds = _both(node, *range(len(node.inputs)))
    return bounds if isinstance(bounds, str) else _hull(*(end for each in bounds for end in each))


def _arithmetic(
    result: Callable[[np.float32, np.float32], np.float32],
) -> Callable[[ir.Node], Interval | str]:
    """The interval of an operator that is monotonic in each operand: the ends of the operands
    determine it."""

    def rule(node: ir.Node) -> Interval | str:
        bounds = _both(node, 0, 1)
        if isinstance(bounds, str):
            return bounds
        return _hull(*(result(a, b) for a in bounds[0] for b in bounds[1]))

    return rule


def _range(node: ir.Node) -> Interval | str:
    """A Range that counts upwards is never below its start."""
    start, step = interval(node.inputs[0]), interval(node.inputs[2])
    of_dtype = _of_dtype(node.outputs[0])
    upwards = not isinstance(step, str) and step[0] > 0
    if isinstance(start, str) or of_dtype is None or not upwards:
        return of_dtype or f"Range {node.name} may give an infinity"
    return start[0], of_dtype[1]


def _at_least(node: ir.Node) -> Interval | str:
    bounds = _both(node, 0, 1)
    holds = not isinstance(bounds, str) and bounds[0][0] >= bounds[1][1]
    return _TRUE if holds else _EITHER


def _divide(node: ir.Node) -> Interval | str:
    bounds = _both(node, 0, 1)
    if isinstance(bounds, str):
        return bounds
    low, high = bounds[1]
    if low <= 0 <= high:
        return f"Div {node.name} may divide by zero"
    return _hull(*(a / b for a in bounds[0] for b in bounds[1]))


def _negate(node: ir.Node) -> Interval | str:
    bounds = interval(node.inputs[0])
    return bounds if isinstance(bounds, str) else (-bounds[1], -bounds[0])


def _cast(node: ir.Node) -> Interval | str:
    bounds, of_dtype = interval(node.inputs[0]), _of_dtype(node.outputs[0])
    if of_dtype is None:
        return bounds
    fits = not isinstance(bounds, str) and of_dtype[0] <= bounds[0] and bounds[1] <= of_dtype[1]
    return bounds if fits else of_dtype


_RULES: dict[str, Callable[[ir.Node], Interval | str]] = {
    "Where": _where,
    "Concat": _concat,
    "Add": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "And": _arithmetic(np.minimum),
    "GreaterOrEqual": _at_least,
    "Range": _range,
    "Min": _concat,
    "Max": _concat,
    "Div": _divide,
    "Neg": _negate,
    "Cast": _cast,
}

drop_guard: Rule[Guard] = Rule("drop_guard", frozenset({"Where"}), check, drop)
