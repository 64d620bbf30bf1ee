"""Which recurrent cells get weights in 8 bits.

Their kernel (DynamicQuantizeLSTM) rounds the input of all steps with one scale. In a speaker
encoder (Resemblyzer) this costs little in the second and the third layer, and in the first layer
everything: a mel spectrum has few large numbers. So a cell is quantized only where the recipe names
it, or where the noise of its codes at the outputs of the model was judged (`noisy_nodes`).
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.precisions import NumberFormat, Precision
from optkit.ground import graph

UNJUDGED = "nobody has judged how much noise its codes leave at the outputs"
"""The reason of a cell that gets codes if its noise allows it."""
LEAST_UNITS = 128
"""Hidden units from which integers are faster over several steps; a single step of 128 takes some
microseconds more or less (docs/studies/package_models.md)."""
_CELL = "LSTM"
_PEEPHOLES = 7  # inputs of an LSTM: X, W, R, B, sequence_lens, initial_h, initial_c, P


def cell_precisions(
    model: ir.Model, scheme: Scheme, named: Callable[[str], Precision | None]
) -> tuple[dict[str, Precision], dict[str, str]]:
    """The precisions of recurrent cells, and the reasons of those in float; none where the backend
    has no kernel for them. `named`: the precision that the recipe gives to a node."""
    nodes: dict[str, Precision] = {}
    reasons: dict[str, str] = {}
    able = any(own.recurrent for own in scheme.rules.values())
    for node in model.graph if able else ():
        if node.op_type == _CELL:
            name = str(node.name)
            asked = named(name)
            reason = _why_float(node, asked or scheme.precision, scheme, named=asked is not None)
            nodes[name] = scheme.unquantized if reason else asked or scheme.precision
            if reason:
                reasons[name] = reason
    return nodes, reasons


def cell_formats(assignment: Assignment, rules: Rules) -> dict[str, NumberFormat]:
    """The format of the weights of each quantized cell, by name."""
    planned = assignment.planned()
    return {name: rules[planned[name]].weight for name in assignment.recurrences & planned.keys()}


def cell_weights(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """W [directions, 4 · hidden, inputs] and R [directions, 4 · hidden, hidden] of an LSTM that the
    kernel computes: they are stored in float32, there are no peepholes, and the first axis of the
    input is that of the steps."""
    peepholes = len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None
    if node.op_type != _CELL or peepholes or node.attributes.get_int("layout", 0) != 0:
        return None
    w, r = node.inputs[1:3]
    if w is None or r is None or not (graph.is_constant(w) and graph.is_constant(r)):
        return None
    return (w, r) if w.dtype == r.dtype == ir.DataType.FLOAT else None


def _why_float(node: ir.Node, wanted: Precision, scheme: Scheme, *, named: bool) -> str | None:
    """Why a cell has no codes; None if it has."""
    found = cell_weights(node)
    if not wanted.quantized:
        return f"{wanted} quantizes nothing"
    if wanted not in scheme.rules or not scheme.rules[wanted].recurrent:
        return f"{node.op_type} has no {wanted} kernel in this backend"
    if found is None:
        return "the kernel takes no peepholes, and only weights that are stored in float32"
    if named:
        return None
    shape = found[1].shape
    if shape is not None and shape.numpy()[2] < LEAST_UNITS:
        return f"fewer than {LEAST_UNITS} hidden units: float is as fast"
    return UNJUDGED
