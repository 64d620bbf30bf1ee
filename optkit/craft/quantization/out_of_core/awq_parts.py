"""AWQ within one part of a larger graph, and the transfer of its result to another form of the
graph.

`rescale` searches the factors and folds them into constants of the part. Then the same constants of
the same nodes get the same numbers in the other graph. This is exact: a value that other parts read
is an output of its part, and no factor may change an output.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.rescaling.rescale import RescaleSettings, rescale
from optkit.facts.assignment import Assignment
from optkit.ground import graph
from optkit.ground.statistics import Statistics


class Fold(NamedTuple):
    """The new content of input `place` of a node after a factor was folded into it."""

    node: str
    place: int
    numbers: np.ndarray


def scale_salient(
    part: ir.Model,
    statistics: Statistics,
    assignment: Assignment,
    rules: Rules,
    settings: RescaleSettings,
    *,
    codes: Collection[str],
    shared: Collection[str],
) -> list[Fold]:
    """Fold AWQ's factors into a part, in place, for the nodes of `assignment`.

    codes: nodes whose weights become codes; the result does not include their weights. shared:
    weights that other parts read too; they do not change. The weights of the part are loaded into
    memory.
    """
    kept = {str(v.name): v for n in part.graph for v in n.inputs if v is not None}
    fixed = [kept[name] for name in shared if name in kept]
    _widen(part, fixed)
    part.graph.outputs.extend(fixed)  # no factor may change an output of the graph
    before = {
        (node, index): (value, value.const_value)
        for node in part.graph
        for index, value in enumerate(node.inputs)
        if value is not None
    }
    rescale(part, statistics, assignment, rules, settings)
    del part.graph.outputs[len(part.graph.outputs) - len(fixed) :]
    return [
        Fold(str(node.name), index, tensor.numpy())
        for (node, index), old in before.items()
        if (tensor := _changed(node, index, *old)) and not (index == 1 and node.name in codes)
    ]


def _changed(
    node: ir.Node, index: int, value: ir.Value, tensor: ir.TensorProtocol | None
) -> ir.TensorProtocol | None:
    """The constant `tensor` that replaces `value`; None if it is the same."""
    now = node.inputs[index]
    same = now is None or (now is value and now.const_value is tensor)
    return None if same or now is None else now.const_value


def _widen(part: ir.Model, fixed: Collection[ir.Value]) -> None:
    """Weights before a Cast to FP32 become FP32, because factors are folded into stored numbers."""
    for node in list(part.graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        half = node.op_type == "Cast" and source is not None and source not in fixed
        if not half or source is None or result.dtype != ir.DataType.FLOAT or result in fixed:
            continue
        numbers, name = graph.array(source), str(result.name)
        if numbers is None or result.is_graph_output():
            continue
        result.name = None
        wide = graph.add_constant(part.graph, name, numbers.astype(np.float32))
        result.replace_all_uses_with(wide)
        part.graph.remove(node, safe=True)
        if not source.uses():
            part.graph.initializers.pop(str(source.name), None)
