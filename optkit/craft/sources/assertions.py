"""Assertions of a captured program, which no graph needs.

`torch._check` and a model's own checks of shapes become nodes that return nothing and raise if a
condition is false. ONNX has no such operator. What the conditions compute is then unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_RAISING = frozenset(
    {
        "aten._assert_async",
        "aten._assert_scalar",
        "aten._assert_tensor_metadata",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    }
)


def remove(program: ExportedProgram) -> None:
    """Remove these nodes, and everything that only they read, from the program."""
    from torch._ops import OpOverload

    found = [
        node
        for node in program.graph.nodes
        if isinstance(node.target, OpOverload) and str(node.target).rpartition(".")[0] in _RAISING
    ]
    for node in found:
        program.graph.erase_node(node)
    if found:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
