"""The formats of the matrices of experts."""

from __future__ import annotations

from dataclasses import dataclass

from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.facts.assignment import Assignment
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

_SMALLEST = 16  # of ONNX Runtime's kernels


@dataclass(frozen=True)
class ExpertFormat:
    """How the matrices of a product are stored. `accuracy`: the level of their kernel, as of
    MatMulNBits."""

    format: NumberFormat
    accuracy: int


def expert_formats(assignment: Assignment, rules: Rules) -> dict[str, ExpertFormat]:
    """The format of each quantized product of experts, by name. It is that of the rules whose codes
    have as many bits as the precision of the product."""
    known = {
        each.experts.bits: ExpertFormat(each.experts, each.nbits_accuracy or 0)
        for each in rules.values()
        if each.experts is not None
    }
    planned = assignment.planned()
    chosen = {name: planned[name].weights for name in assignment.experts if name in planned}
    return {name: known[weights.bits] for name, weights in chosen.items() if weights is not None}


def expert_block(stack: graph.Stack, fmt: NumberFormat, wanted: int | None = None) -> int | None:
    """The largest power of two, at most the block size of the format (`wanted`: that of the
    recipe), that divides the summed axis, as the kernels for experts need it; None if there is
    none."""
    size, length = (wanted if fmt.has_free_blocks else None) or fmt.block_size, stack.sizes[2]
    assert size is not None
    while size >= _SMALLEST and length % size:
        size //= 2
    return size if size >= _SMALLEST else None
