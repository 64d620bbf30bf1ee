"""Writes operators of the `ort` form: one node replaces several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, remove
from optkit.ground import graph

Attributes = Mapping[str, int | float | str | Sequence[int]]

MICROSOFT = "com.microsoft"
"""ONNX Runtime's own operators: docs/ContribOperators.md in its repository."""

_BLOCK = 256  # rows

OPSET = 23
"""The first opset with Attention, RMSNormalization and RotaryEmbedding. From opset 21 to it,
operators only gain dtypes, so a graph needs only a new opset number."""


def too_old(node: ir.Node) -> Decline | None:
    """Why the node's graph cannot contain an operator of opset 23 (Attention and similar
    operators)."""
    opset = node.graph.opset_imports.get("", 0) if node.graph is not None else 0
    if opset >= OPSET:
        return None
    return Decline(f"an operator of the graph has no kernel beyond opset {opset}")


def put(
    at: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    result: ir.Value,
    *,
    more: Sequence[ir.Value] = (),
    attributes: Attributes | None = None,
    domain: str = "",
    name: str | None = None,
    removed: Sequence[ir.Node] | None = None,
) -> None:
    """Insert a node before `at` (with its name, unless another is given) that computes `result` and
    the outputs `more`, and remove the nodes that it replaces: `removed`, the last first, or only
    `at`. The opset imports of the graph get the domain."""
    owner = graph.owner(at)
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    output = ir.Value()
    node = ir.node(
        op,
        inputs,
        dict(attributes or {}),
        domain=domain,
        name=name or at.name,
        outputs=[output, *more],
    )
    output.type, output.shape = result.type, result.shape
    owner.insert_before(result.producer() or at, node)
    owner.opset_imports.setdefault(domain, 1)
    text = result.name
    result.replace_all_uses_with(output, replace_graph_outputs=True)
    result.name = None
    output.name = text
    for each in (at,) if removed is None else removed:
        remove(each)


def constant(owner: ir.Graph, name: str, numbers: np.ndarray) -> ir.Value:
    """A constant of this name; an existing one with the same numbers is used again."""
    known = ir.convenience.create_value_mapping(owner)
    old = graph.array(known.get(name))
    if old is not None and old.dtype == numbers.dtype and np.array_equal(old, numbers):
        return known[name]
    return graph.new_constant(owner, name, numbers)


def joined(owner: ir.Graph, name: str, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """Constants concatenated along axis 0 or 1. They are read in blocks of rows when they are
    written, so no weight is in memory."""
    tensors = [part.const_value for part in parts if part.const_value is not None]
    shape = list(tensors[0].shape.numpy())
    shape[axis] = sum(tensor.shape.numpy()[axis] for tensor in tensors)

    def blocks() -> Iterator[list[np.ndarray]]:
        readers = [graph.rows(tensor, _BLOCK) for tensor in tensors]
        if axis == 0:
            yield from ([block] for reader in readers for block in reader)
        else:
            yield from ([np.concatenate(rows, axis=1)] for rows in zip(*readers, strict=True))

    name = graph.unique_name(name, ir.convenience.create_value_mapping(owner))
    form = graph.TensorForm(name, tensors[0].dtype, tuple(shape))
    return graph.add_tensor(owner, *graph.computed([form], blocks))


def length(owner: ir.Graph, source: ir.Value, axis: int) -> ir.Value:
    """int64 [1]"""
    name = f"{source.name}.length_{axis}"
    return once(owner, name, "Shape", [source], {"start": axis, "end": axis + 1})


def once(
    owner: ir.Graph,
    name: str,
    op: str,
    inputs: Sequence[ir.Value],
    attributes: Attributes | None = None,
    behind: ir.Value | None = None,
) -> ir.Value:
    """The result of the node of that name, which is inserted after the nodes that compute its
    inputs, or used again if it exists."""
    known = next((node for node in owner if node.name == name), None)
    if known is not None:
        return known.outputs[0]
    node = ir.node(op, inputs, dict(attributes or {}), name=name, outputs=[ir.Value(name=name)])
    producers = [each.producer() for each in (behind, *inputs) if each is not None]
    before = [each for each in producers if each is not None and each.graph is owner]
    if not before:
        owner.insert_before(owner[0], node)
    else:
        owner.insert_after(max(before, key=[*owner].index), node)
    return node.outputs[0]
