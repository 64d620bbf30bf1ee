"""SwiGLU between two products, however it is written.

    g σ(αg) · u     g σ(αg) · (u + β)     min(g, limit), clip(u, ±limit) in place of g and u

g and u are rows of one product: its halves, or every second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import MICROSOFT
from optkit.craft.fusion.pattern import (
    Either,
    Match,
    Number,
    Op,
    ScaledBy,
    Var,
    dims,
    ints,
    made_by,
    scalar,
)

_NOTHING = Match()


class _QuickGelu:
    """g σ(αg) as the one operator that the rule `activation` makes of it."""

    def matches(self, value: ir.Value | None, match: Match = _NOTHING) -> Iterator[Match]:
        node = made_by(value, "QuickGelu", domain=MICROSOFT)
        if node is not None and node.inputs[0] is not None:
            alpha = node.attributes.get_float("alpha", 1.702)
            yield match.bind("g", node.inputs[0]).count("alpha", alpha)


_G, _U = Var("g"), Var("u")
_ACTIVATED = Either((Op("Mul", _G, Op("Sigmoid", ScaledBy(_G, "alpha"))), _QuickGelu()))
_GATED = Either((Op("Mul", _ACTIVATED, Op("Add", _U, Number("beta"))), Op("Mul", _ACTIVATED, _U)))


@dataclass(frozen=True, eq=False)
class Gate:
    """SwiGLU of `source` [S, 2 I]. `order`: the rows g0, u0, g1, u1, … of the product; None: it has
    them in this order. `limit`: None if nothing is clipped."""

    source: ir.Value
    order: np.ndarray | None
    alpha: float
    beta: float
    limit: float | None


def gate_of(value: ir.Value) -> Gate | None:
    """The SwiGLU that computes this value [S, I]; None for another function."""
    for match in _GATED.matches(value):
        (g, most), (u, span) = _most(match["g"]), _span(match["u"])
        of_g, of_u = _rows(g), _rows(u)
        if most != span or of_g is None or of_u is None or of_g[0] is not of_u[0]:
            continue
        order = np.stack([of_g[1], of_u[1]], axis=1).reshape(-1)
        if not np.array_equal(np.sort(order), np.arange(_width(of_g[0]) or 0)):
            continue
        same = np.array_equal(order, np.arange(order.size))
        numbers = match.numbers
        beta = numbers.get("beta", 0.0)
        return Gate(of_g[0], None if same else order, numbers["alpha"], beta, most)
    return None


def _most(value: ir.Value) -> tuple[ir.Value, float | None]:
    """(g, limit) if the value is min(g, limit)."""
    node = made_by(value, "Min", "Clip")
    if node is None or len(node.inputs) < 2 or node.inputs[0] is None:
        return value, None
    if node.op_type == "Min":
        found = scalar(node.inputs[1]) if len(node.inputs) == 2 else None
    else:
        least, found = _ends(node)
        found = found if least is None else None
    return (value, None) if found is None else (node.inputs[0], found)


def _span(value: ir.Value) -> tuple[ir.Value, float | None]:
    """(u, limit) if the value is u, clipped to ± limit."""
    node = made_by(value, "Clip")
    if node is None or node.inputs[0] is None:
        return value, None
    least, most = _ends(node)
    whole = least is not None and most is not None and least == -most
    return (node.inputs[0], most) if whole else (value, None)


def _ends(clip: ir.Node) -> tuple[float | None, float | None]:
    """The limits of a Clip."""
    given = [*clip.inputs[1:], None, None][:2]
    return scalar(given[0]), scalar(given[1])


def _rows(value: ir.Value) -> tuple[ir.Value, np.ndarray] | None:
    """The value [S, N] of which this is a part, and which of its columns the part has."""
    node = made_by(value, "Split", "Slice")
    source = None if node is None else node.inputs[0]
    width = None if source is None else _width(source)
    if node is None or source is None or width is None:
        return None
    part = _of_split(node, value) if node.op_type == "Split" else _of_slice(node)
    return None if part is None else (source, np.arange(width)[part])


def _of_split(split: ir.Node, value: ir.Value) -> slice | None:
    sizes = [_width(each) or 0 for each in split.outputs]
    if split.attributes.get_int("axis", 0) not in (1, -1) or 0 in sizes:
        return None
    at = split.outputs.index(value)
    return slice(sum(sizes[:at]), sum(sizes[: at + 1]))


def _of_slice(node: ir.Node) -> slice | None:
    given = [ints(each) for each in node.inputs[1:]]
    single = [each[0] for each in given if each is not None and len(each) == 1]
    if len(single) < 3 or len(single) != len(given) or single[2] not in (1, -1):
        return None
    return slice(single[0], single[1], single[3] if len(single) > 3 else 1)


def _width(value: ir.Value) -> int | None:
    """N of a value [S, N]."""
    shape = dims(value, 2)
    return shape[1] if shape is not None and isinstance(shape[1], int) else None
