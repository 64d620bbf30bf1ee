"""Graphs that continue with the best of many values (TopK: the queries of a detector), compared on
the same choice.

Two graphs that compute the same function may order values that are equal but for rounding
otherwise. Then their rows have other places, and every row looks wrong. So one graph gets the
choice of the other one as an input, and has to find it as good as its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.facts.tensors import Feed
from optkit.ground import graph


def choices(model: ir.Model) -> list[str]:
    """The names of the indices that its TopK return."""
    return [str(node.outputs[1].name) for node in model.graph if node.op_type == "TopK"]


@dataclass(frozen=True)
class GivenChoices:
    """A graph that reads its choices. `inputs`: name of the indices → name of the input; `own`: of
    the indices → the values that TopK would return; `taken`: of the indices → the values at the
    given indices; `axes`: of the indices → the axis along which it chooses."""

    model: ir.Model
    inputs: Mapping[str, str]
    own: Mapping[str, str]
    taken: Mapping[str, str]
    axes: Mapping[str, int]

    def agrees(self, outputs: Feed, indices: Feed, tolerance: float) -> bool:
        """Whether the given indices choose as well as TopK does: different ones, whose values are
        in its order but for this share of the largest value."""
        for name, given in indices.items():
            in_order = np.sort(given, axis=self.axes[name])
            own, taken = (outputs[values[name]] for values in (self.own, self.taken))
            apart = np.abs(own.astype(np.float64) - taken).max(initial=0.0)
            if (np.diff(in_order, axis=self.axes[name]) == 0).any():
                return False
            if not apart <= tolerance * np.abs(own).max(initial=0.0):
                return False
        return True


def given_choices(model: ir.Model, names: Collection[str]) -> GivenChoices:
    """A copy of the graph in which these indices of TopK are inputs. Outputs of the graph that TopK
    itself returns stay its own."""
    copy = model.clone()
    inputs, own, taken, axes = (
        dict[str, str](),
        dict[str, str](),
        dict[str, str](),
        dict[str, int](),
    )
    for node in list(copy.graph):
        if node.op_type != "TopK" or (name := str(node.outputs[1].name)) not in names:
            continue
        values, indices = node.outputs
        axes[name] = node.attributes.get_int("axis", -1)
        fed = ir.Value(
            name=f"{name}.given", shape=indices.shape, type=ir.TensorType(ir.DataType.INT64)
        )
        gather = ir.node(
            "GatherElements", [node.inputs[0], fed], {"axis": axes[name]}, name=f"{name}.gather"
        )
        gather.outputs[0].name = f"{name}.taken"
        gather.outputs[0].type, gather.outputs[0].shape = values.type, values.shape
        copy.graph.inputs.append(fed)
        copy.graph.insert_after(node, gather)
        for old, new in ((values, gather.outputs[0]), (indices, fed)):
            for reader, place in tuple(old.uses()):
                reader.replace_input_with(place, new)
        inputs[name], own[name], taken[name] = str(fed.name), str(values.name), f"{name}.taken"
    return GivenChoices(
        graph.expose(copy, [*own.values(), *taken.values()]), inputs, own, taken, axes
    )
