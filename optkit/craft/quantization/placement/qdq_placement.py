"""Where Q/DQ pairs go: one pair per value, shared by every reader that needs integers.

every backend      x ── Q ── DQ ──► Conv, MatMul, Gemm        the activation they multiply
residual_adds      Conv ──► Add ◄── DQ ── Q ── shortcut       the sum fuses into the convolution
quantize_outputs   Conv ─(Relu)─ Q ── DQ ──►                  an integer Conv writes integers,
                   Conv ── Q ── DQ ──► Add ─(Relu)─ Q ── DQ   and so does the sum after it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from optkit.craft.quantization.placement.weighted_nodes import computed
from optkit.facts.assignment import Assignment
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat, Precision
from optkit.ground import graph

Reader = tuple[ir.Node, int]
"""A node and the index of its input."""


Rules = Mapping[Precision, PlacementRules]
"""Precision → what the backend wants of it."""


@dataclass(frozen=True)
class QdqPlacement:
    """A value to quantize. `readers` get the dequantized value; all other readers get the float
    value."""

    value: ir.Value
    format: NumberFormat
    readers: tuple[Reader, ...]


def qdq_placements(model: ir.Model, assignment: Assignment, rules: Rules) -> list[QdqPlacement]:
    """All values that get a pair, in the order of the nodes that need them; one pair per format."""
    planned = assignment.quantized()
    wanted: dict[tuple[ir.Value, NumberFormat], dict[Reader, None]] = {}
    for node in model.graph:
        own_rules = rules[planned[str(node.name)]] if node.name in planned else None
        if own_rules is not None and own_rules.activation is not None:
            for value, readers in _wanted_by(node, planned, own_rules):
                wanted.setdefault((value, own_rules.activation), {}).update(dict.fromkeys(readers))
    return [QdqPlacement(value, fmt, tuple(readers)) for (value, fmt), readers in wanted.items()]


def tail(node: ir.Node) -> ir.Value:
    """The result of the node, after the activation function that is its only reader and that an
    integer kernel applies by saturation: Relu, or Clip from 0 (the zero point is then the lowest
    code)."""
    value = node.outputs[0]
    while (reader := _only_reader(value)) is not None and _saturates(reader):
        value = reader.outputs[0]
    return value


def _wanted_by(
    node: ir.Node, planned: Collection[str], rules: PlacementRules
) -> Iterator[tuple[ir.Value, list[Reader]]]:
    activation = node.inputs[0]
    assert activation is not None
    yield activation, [(node, 0)]
    writes_integers = _writes_integers(node, rules)
    result = tail(node) if writes_integers else node.outputs[0]
    if writes_integers:
        yield from _for_all_readers(result)
    add = _only_reader(result)
    summed = add is not None and add.op_type == "Add" and len(computed(add)) == 2
    if add is None or not summed or node.op_type != "Conv" or not rules.residual_adds:
        return
    for index, operand in enumerate(add.inputs):
        # a float convolution result fuses with the sum as it is
        if operand is not None and operand is not result and not _is_result(operand, planned):
            yield operand, [(add, index)]
    if writes_integers:
        yield from _for_all_readers(tail(add))


def _writes_integers(node: ir.Node, rules: PlacementRules) -> bool:
    """Whether the output of the node gets a pair. If some kernels need an integer output, all nodes
    directly before an activation function get one: otherwise the float activation would be fused
    first, and no integer kernel is possible."""
    if not rules.quantize_outputs:
        return False
    reader = _only_reader(node.outputs[0])
    activated = reader is not None and reader.op_type in ("Relu", "Clip")
    return activated or node.op_type in rules.quantize_outputs


def _for_all_readers(value: ir.Value) -> Iterator[tuple[ir.Value, list[Reader]]]:
    """All but those inside a branch or a loop: ONNX Runtime aborts when it moves a
    DequantizeLinear through the branches of an If."""
    producer = value.producer()
    own = None if producer is None else producer.graph
    readers = [(use.node, use.idx) for use in value.uses() if use.node.graph is own]
    if readers and not value.is_graph_output():
        yield value, readers


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _saturates(node: ir.Node) -> bool:
    if node.op_type != "Clip":
        return node.op_type == "Relu"
    lowest = graph.array(node.inputs[1]) if len(node.inputs) > 1 else None
    return lowest is not None and bool((lowest == 0).all())


def _is_result(value: ir.Value, planned: Collection[str]) -> bool:
    producer = value.producer()
    return producer is not None and producer.name in planned
