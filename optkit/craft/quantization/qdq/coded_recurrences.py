"""LSTMs with weights in 8 bits (com.microsoft.DynamicQuantizeLSTM).

The kernel rounds the input of all steps with one scale, and the state before each step with one, at
run time, so only weights have codes. Each row of a gate has its own scale: with one scale for a
whole matrix, as ONNX Runtime's `quantize_dynamic` has it by default, a speaker encoder
(Resemblyzer) loses 10 dB.

    LSTM(x, W [D, 4H, I], R [D, 4H, H], …)
    DynamicQuantizeLSTM(x, Wᵀ [D, I, 4H], Rᵀ [D, H, 4H], …, scales [D, 4H], zero points [D, 4H], …)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.placement.recurrent_cells import cell_weights
from optkit.craft.quantization.rounding.rtn import WeightCodes, round_to_nearest
from optkit.facts.errors import located
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

_MICROSOFT, _VERSION = "com.microsoft", 1
_INPUTS = 8  # of an LSTM, peepholes included


def quantize_recurrences(
    model: ir.Model, formats: Mapping[str, NumberFormat]
) -> dict[str, tuple[float, float]]:
    """Write LSTMs with codes, in place; they keep their names. `formats`: of their weights, by name
    of the node. Returns the smallest and the largest scale of each. Raises InputRefused for a
    weight that is not finite."""
    names, done = graph.FreeNames(model), {}
    for node in [node for node in model.graph if node.name in formats]:
        made, done[str(node.name)] = coded_cell(model, node, formats[str(node.name)], names)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            graph.replace_output(model.graph, old, new)
            old.replace_all_uses_with(new)
            old.name, new.name = f"{new.name}.unread", old.name
        before = [value for value in node.inputs[1:3] if value is not None]
        model.graph.remove(node, safe=True)
        made.name = node.name
        graph.remove_unread(model.graph, before)
    return done


def coded_cell(
    model: ir.Model, node: ir.Node, fmt: NumberFormat, names: graph.FreeNames
) -> tuple[ir.Node, tuple[float, float]]:
    """A cell with codes before an LSTM, which reads what it reads; its outputs have names of their
    own. And the smallest and the largest of its scales."""
    stored = cell_weights(node)
    assert stored is not None
    inputs = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    scales: list[np.ndarray] = []
    for place, weight in enumerate(stored, 1):
        codes = _codes(weight, fmt)
        scale = np.stack([one.scale.scale for one in codes]).astype(np.float32)
        numbers = {
            "quantized": np.stack([one.codes for one in codes]),
            "scale": scale,
            "zero_point": np.zeros(scale.shape, np.int8),
        }
        inputs[place], *both = (
            graph.add_constant(model.graph, names.value(f"{weight.name}_{what}"), array)
            for what, array in numbers.items()
        )
        inputs += both
        scales.append(scale.ravel())
    made = ir.node(
        "DynamicQuantizeLSTM",
        inputs,
        {key: value for key, value in node.attributes.items() if key != "layout"},
        domain=_MICROSOFT,
        name=names.node(f"{node.name}_quantized"),
        outputs=[
            ir.Value(
                name=one.name and names.value(f"{one.name}_coded"), type=one.type, shape=one.shape
            )
            for one in node.outputs
        ],
    )
    model.graph.insert_before(node, made)
    model.graph.opset_imports.setdefault(_MICROSOFT, _VERSION)
    model.opset_imports.setdefault(_MICROSOFT, _VERSION)
    all_scales = np.concatenate(scales)
    return made, (float(all_scales.min()), float(all_scales.max()))


def _codes(weight: ir.Value, fmt: NumberFormat) -> list[WeightCodes]:
    """Of each direction [inputs, 4 · hidden]."""
    numbers = graph.array(weight)
    assert numbers is not None
    with located(f"weight {weight.name!r}"):
        return [round_to_nearest(one.T, fmt, np.float32) for one in numbers]
