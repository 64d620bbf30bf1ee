"""Casts that torch's exporter forgets: `1.0 - mask` with integers in the mask.

The exporter promotes the operands of most operators, but finds no overload for `rsub` of integers
and a float. With a cast to the dtype of the result there is nothing left to promote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def cast_operands(program: ExportedProgram) -> None:
    """Cast the tensor of each `rsub` to the dtype of its result, where they differ."""
    import torch

    changed = False
    for node in list(program.graph.nodes):
        if node.target is not torch.ops.aten.rsub.Scalar:
            continue
        operand, result = node.args[0], node.meta["val"]
        value = operand.meta["val"]
        if value.dtype == result.dtype:
            continue
        with program.graph.inserting_before(node):
            cast = program.graph.call_function(torch.ops.aten.to.dtype, (operand, result.dtype))
        cast.meta = {**node.meta, "val": value.to(result.dtype)}
        node.replace_input_with(operand, cast)
        changed = True
    if changed:
        program.graph_module.recompile()
