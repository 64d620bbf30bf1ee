"""Writing operators of the `ort` form: a node in the place of those it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.fusion.rule import Declined

Attributes = Mapping[str, int | float | str | Sequence[int]]

MICROSOFT = "com.microsoft"
"""ONNX Runtime's own operators: docs/ContribOperators.md in its repository."""

OPSET = 23
"""The first with Attention, RMSNormalization and RotaryEmbedding. From opset 21 on it only allows
more dtypes, so a graph is raised to it by saying so."""


def too_old(node: ir.Node) -> Declined | None:
    """Why the node's graph takes no operator of opset 23 (Attention and the like)."""
    opset = node.graph.opset_imports.get("", 0) if node.graph is not None else 0
    if opset >= OPSET:
        return None
    return Declined(f"an operator of the graph has no kernel beyond opset {opset}")


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
) -> ir.Node:
    """Insert a node before `at` (under its name, if no other is given) that makes `result`, and
    behind it the outputs `more`.

    What made `result` before makes a value of its own from now on, which nobody reads; the caller
    removes that node. The graph's opset imports come to name the domain.
    """
    owner = at.graph
    assert owner is not None
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    output = ir.Value()
    node = ir.node(
        op, inputs, dict(attributes or {}), domain=domain, name=name or at.name,
        outputs=[output, *more],
    )  # fmt: skip
    output.type, output.shape = result.type, result.shape
    at_result = result.producer()
    owner.insert_before(
        at_result if at_result is not None and at_result.graph is owner else at, node
    )
    owner.opset_imports.setdefault(domain, 1)
    text = result.name
    result.replace_all_uses_with(output, replace_graph_outputs=True)
    result.name = None
    output.name = text
    return node


def constant(owner: ir.Graph, name: str, numbers: np.ndarray) -> ir.Value:
    """A new constant; one of that name that holds the same numbers serves again."""
    known = ir.convenience.create_value_mapping(owner)
    old = graph.array(known.get(name))
    if old is not None and old.dtype == numbers.dtype and np.array_equal(old, numbers):
        return known[name]
    return graph.add_constant(owner, graph.unique_name(name, known), numbers)


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
    """The result of the node of that name, put behind what makes its inputs; it serves again."""
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
