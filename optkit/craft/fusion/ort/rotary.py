"""Rotary position embedding as one operator (Su et al., arXiv:2104.09864).

    y = x · cos + rotate(x) · sin,   rotate([a, b]) = [−b, a] for the halves a, b of a head

Both halves of a row of cos (and of sin) have the same D/2 numbers: they are the caches of
RotaryEmbedding, constant or computed once for all layers, before the exporter duplicates them. A
cache with one row per position goes to com.microsoft's operator, a cache with one row per token
(positions are an input) to the operator of opset 23. On rows x [B, S, N·D] the heads need not be
separate, so the Transpose that splits them moves after this operator, where attention absorbs it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.heads import SPLIT, HeadRows, split_from
from optkit.craft.fusion.ort.write import MICROSOFT, constant, once, put, too_old
from optkit.craft.fusion.pattern import (
    Op,
    Var,
    cut_by,
    dims,
    first_match,
    known_equal,
    made_by,
    scalar,
)
from optkit.craft.fusion.rule import Decline, Rule
from optkit.ground import graph


@dataclass(frozen=True)
class RotaryMatch:
    """`node` computes `source` [B, N, S, D], rotated; `cos`, `sin` [1 or B, 1, S, D]."""

    node: ir.Node
    source: ir.Value
    rows: HeadRows | None
    cos: ir.Value
    sin: ir.Value


def _takes_half(cut: ir.Node, which: int) -> bool:
    """Whether the node takes the lower (0) or upper (1) half of the last of four axes."""
    taken, shape = cut_by(cut), dims(cut.inputs[0], 4)
    if taken is None or taken.axis not in (-1, 3) or shape is None or not isinstance(shape[3], int):
        return False
    half = shape[3] // 2
    return taken.within(shape[3]) == (which * half, (which + 1) * half)


def _joins_halves(concat: ir.Node) -> bool:
    return len(concat.inputs) == 2 and concat.attributes.get_int("axis", 0) in (-1, 3)


_LOWER = Op("Slice", Var("x"), where=lambda node: _takes_half(node, 0))
_UPPER = Op("Slice", Var("x"), where=lambda node: _takes_half(node, 1))
_ROTATED = Op("Concat", Op("Neg", _UPPER), _LOWER, where=_joins_halves)
_ROTATION = Op("Add", Op("Mul", _ROTATED, Var("sin")), Op("Mul", Var("x"), Var("cos")))


def check(node: ir.Node) -> RotaryMatch | Decline | None:
    match = first_match(_ROTATION, node.outputs[0])
    if match is None:
        return None
    source, cos, sin = match["x"], match["cos"], match["sin"]
    for angles in (cos, sin):
        if reason := _why_not(angles, source):
            return Decline(reason)
    if _per_token(cos) != _per_token(sin):
        return Decline("one of its angles is per token, the other per position")
    if _per_token(cos) and (declined := too_old(node)):
        return declined
    return RotaryMatch(node, source, split_from(source), cos, sin)


def rotate(match: RotaryMatch) -> str:
    node, owner, rows = match.node, graph.owner(match.node), match.rows
    caches = [_cache(match.cos, node), _cache(match.sin, node)]
    domain = "" if _per_token(match.cos) else MICROSOFT
    if domain:
        caches = [constant(owner, "rotary.first", np.zeros(1, np.int64)), *caches]
    result = node.outputs[0]
    if rows is None:
        put(node, "RotaryEmbedding", [match.source, *caches], result, domain=domain)
        return "one operator on heads"
    transpose = match.source.producer()
    reshape = transpose.inputs[0].producer() if transpose and transpose.inputs[0] else None
    assert reshape is not None and transpose is not None
    name = str(node.name)
    turned, apart = ir.Value(name=f"{name}.rotated"), ir.Value(name=f"{name}.apart")
    turned.type, turned.shape = rows.value.type, rows.value.shape
    apart.type, apart.shape = rows.value.type, reshape.outputs[0].shape
    rotary = ir.node(
        "RotaryEmbedding",
        [rows.value, *caches],
        {"num_heads": rows.heads},
        domain=domain,
        outputs=[turned],
        name=f"{name}.rotary",
    )
    split = ir.node(
        "Reshape",
        [turned, reshape.inputs[1]],
        dict(reshape.attributes),
        outputs=[apart],
        name=f"{name}.reshape",
    )
    owner.insert_before(node, [rotary, split])
    owner.opset_imports.setdefault(domain, 1)
    put(node, "Transpose", [apart], result, attributes={"perm": SPLIT})
    return "one operator on rows"


def _why_not(angles: ir.Value, source: ir.Value) -> str | None:
    """Why `angles` are not [1 or B, 1, S, D] with two equal halves; None if they are."""
    shape, heads = dims(angles, 4), dims(source, 4)
    if shape is None or heads is None or not isinstance(heads[3], int) or heads[3] % 2:
        return "the size of its heads is odd or not known"
    batch = shape[0] == 1 or known_equal(shape[0], heads[0])
    if not batch or shape[1] != 1 or shape[3] != heads[3] or not known_equal(shape[2], heads[2]):
        return "its angles are not one row per position"
    numbers = graph.array(angles)
    if numbers is None:
        return _why_not_doubled(angles, heads[3])
    lower, upper = np.split(numbers, 2, axis=-1)
    return None if np.array_equal(lower, upper) else "the halves of its angles differ"


def _why_not_doubled(angles: ir.Value, size: int) -> str | None:
    """Why the computed angles are not a row of `size` / 2 numbers concatenated with itself; None if
    they are."""
    twice, _ = _doubled(angles)
    if twice is None or len(twice.inputs) != 2 or twice.inputs[0] is not twice.inputs[1]:
        return "the halves of its angles are not known to be the same"
    joined = twice.outputs[0].shape
    if joined is None or twice.attributes.get_int("axis", 0) not in (-1, len(joined) - 1):
        return "its angles interleave"
    return None if joined[-1] == size else "its angles are not one row per position"


def _per_token(angles: ir.Value) -> bool:
    return angles.shape is not None and angles.shape[0] != 1


def _doubled(angles: ir.Value) -> tuple[ir.Node | None, list[ir.Node]]:
    """(the Concat that writes every number twice, the nodes that compute with its result, the last
    first)."""
    value: ir.Value | None = angles
    nodes: list[ir.Node] = []
    while (node := made_by(value, "Unsqueeze", "Mul", "Cos", "Sin", "Cast")) is not None:
        if node.op_type == "Mul" and scalar(node.inputs[1]) is None:
            break
        nodes.append(node)
        value = node.inputs[0]
    return made_by(value, "Concat"), nodes


def _cache(angles: ir.Value, node: ir.Node) -> ir.Value:
    """[S, D/2], or [B, S, D/2] per token: the first half of every row. Layers that read the same
    angles share it."""
    owner = graph.owner(node)
    name = f"{angles.name}.rows"
    numbers = graph.array(angles)
    if numbers is not None:
        half = np.split(numbers[:, 0], 2, axis=-1)[0]
        return constant(owner, name, half if _per_token(angles) else half[0])
    known = next((each for each in owner if each.name == name), None)
    if known is not None:
        return known.outputs[0]
    twice, steps = _doubled(angles)
    source = twice.inputs[0] if twice is not None else None
    steps = [each for each in reversed(steps) if each.op_type != "Unsqueeze"]
    if steps and dims(source, 3 if _per_token(angles) else 2) is not None and source is not None:
        return _computed(source, steps)
    return _cut(angles, node, name)


def _computed(source: ir.Value, steps: list[ir.Node]) -> ir.Value:
    """The same nodes on every number once instead of twice. Layers with the same nodes share the
    result."""
    value, owner = source, graph.owner(steps[0])
    for step in steps:
        constants = [each for each in step.inputs[1:] if each is not None]
        name = ".".join(map(str, [value.name, *(c.name for c in constants), step.op_type.lower()]))
        shape, kind = source.shape, step.outputs[0].type
        value = once(
            owner,
            name,
            step.op_type,
            [value, *constants],
            {key: each.value for key, each in step.attributes.items()},
            behind=source,
        )
        value.shape, value.type = shape, kind
    return value


def _cut(angles: ir.Value, node: ir.Node, name: str) -> ir.Value:
    owner, producer = graph.owner(node), angles.producer()
    assert producer is not None and angles.shape is not None
    batch, _, sequence, size = angles.shape.dims
    assert isinstance(size, int)
    leading = [batch, sequence] if _per_token(angles) else [sequence]
    flat, half = ir.Value(name=f"{name}.whole"), ir.Value(name=name)
    flat.type = half.type = angles.type
    flat.shape, half.shape = ir.Shape([*leading, size]), ir.Shape([*leading, size // 2])
    dropped = [1] if _per_token(angles) else [0, 1]
    axes = constant(owner, f"rotary.dropped_{len(dropped)}", np.array(dropped, np.int64))
    cut = [
        constant(owner, f"rotary.{n}", np.array([n], np.int64))
        for n in (0, size // 2, len(leading))
    ]
    nodes = [
        ir.node("Squeeze", [angles, axes], outputs=[flat], name=flat.name),
        ir.node("Slice", [flat, *cut], outputs=[half], name=name),
    ]
    owner.insert_after(producer, nodes)
    return half


rotary: Rule[RotaryMatch] = Rule("rotary", frozenset({"Add"}), check, rotate)
