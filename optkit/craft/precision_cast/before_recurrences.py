"""What TensorRT-RTX 1.7 needs around a recurrence (LSTM, GRU, RNN) beside half precision.

It takes the lengths of sequences only beside states in FP32, and it does not compile a Cast right
before a recurrence in FP32: what such a recurrence reads has to be computed in FP32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
REASON = "TensorRT-RTX fails on a Cast right before a recurrence in FP32"
_LENGTHS = 4  # their input sequence_lens
_MOVING = frozenset(
    {
        *("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity"),
        *("Slice", "Gather", "Concat", "Split"),
    }
)


def takes_lengths(node: ir.Node) -> bool:
    """Whether a recurrence has the lengths of its sequences."""
    if node.op_type not in RECURRENT or len(node.inputs) <= _LENGTHS:
        return False
    return node.inputs[_LENGTHS] is not None


def sources(model: ir.Model, kept: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes that compute what the recurrences among these nodes read."""
    found: set[ir.Node] = set()
    for node in reversed(list(model.graph)):  # a recurrence may stand behind another one
        if node.op_type in RECURRENT and (node in kept or node in found):
            found |= set(_computed(node.inputs[0]))
    return found


def _computed(value: ir.Value | None) -> Iterator[ir.Node]:
    """The nodes that compute a value, before others only move it."""
    seen: set[ir.Value | None] = set()  # a Concat may read one value twice
    left = [value]
    while left:
        moved = left.pop()
        node = moved.producer() if moved is not None and moved not in seen else None
        seen.add(moved)
        if node is not None and node.op_type in _MOVING:
            left += node.inputs
        elif node is not None:
            yield node
