"""How much noise the codes of recurrent cells leave at the outputs of the model.

Each cell has a copy with codes beside it in the float graph, and an input of the graph chooses
between their results:

    x ──┬── DynamicQuantizeLSTM ──► Where(switch) ──►
        └── LSTM ─────────────────►
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.placement.recurrent_cells import UNJUDGED, cell_weights
from optkit.craft.quantization.qdq.coded_recurrences import coded_cell
from optkit.facts.assignment import Assignment
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

CELLS = "noisy_cells.switches"
"""The input of the graph, bool [cells]: whether each has codes."""


@dataclass(frozen=True)
class CodedCell:
    """A recurrent cell that may have codes. `weights`: their number, with which the time of a step
    grows."""

    name: str
    weights: int


def insert_cells(model: ir.Model, assignment: Assignment, fmt: NumberFormat) -> list[CodedCell]:
    """Let the graph, in place, take the results of codes of each cell that `CELLS` says, in this
    order. Cells whose codes nobody has judged are taken; without any the graph stays as it is.
    Raises InputRefused for a weight that is not finite."""
    owner, names, found = model.graph, graph.FreeNames(model), list[CodedCell]()
    switches = ir.Value(name=CELLS, type=ir.TensorType(ir.DataType.BOOL))
    for node in list(owner):
        name = str(node.name)
        stored = cell_weights(node) if assignment.reasons.get(name) == UNJUDGED else None
        if stored is None:
            continue
        coded, _ = coded_cell(model, node, fmt, names)
        at = np.asarray(len(found), np.int64)
        index = graph.add_constant(owner, names.value(f"{name}_index"), at)
        switch = ir.node("Gather", [switches, index], name=names.node(f"{name}_switch"))
        switch.outputs[0].name = names.value(f"{name}_switch")
        owner.insert_after(node, switch)
        for exact, rounded in zip(node.outputs, coded.outputs, strict=True):
            if exact.name:
                _choose(owner, switch, rounded, exact, names)
        found.append(
            CodedCell(name, sum(one.const_value.size for one in stored if one.const_value))
        )
    if found:
        switches.shape = ir.Shape([len(found)])
        owner.inputs.append(switches)
    return found


def _choose(
    owner: ir.Graph, switch: ir.Node, rounded: ir.Value, exact: ir.Value, names: graph.FreeNames
) -> None:
    """Let all readers of `exact` read one of both."""
    name = str(exact.name)
    where = ir.node("Where", [switch.outputs[0], rounded, exact], name=names.node(f"{name}_chosen"))
    result = where.outputs[0]
    result.name, result.type, result.shape = names.value(f"{name}_chosen"), exact.type, exact.shape
    owner.insert_after(switch, where)
    for use in list(exact.uses()):
        if use.node is not where:
            use.node.replace_input_with(use.idx, result)
    graph.replace_output(owner, exact, result)
