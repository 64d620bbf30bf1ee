"""Embedding tables in 8 bits: one scale per row, rounded to nearest.

    table[V, D] ── Gather ──►      codes[V, D] ── Gather ── Cast ── Mul ──►
                                   scale[V, 1] ── Gather ─────────────┘

Each row is looked up and scaled separately, so a lookup reads a quarter of the bytes, and the table
is never dequantized as a whole. Scale: absolute maximum of the row / 127.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

# numbers in a table: for smaller tables, three more nodes cost more than they save
_SMALLEST = 1 << 14
_FORMAT = NumberFormat("int8", "channel", symmetric=True)


def quantize_embeddings(model: ir.Model) -> dict[str, int]:
    """Store float32 tables that are read only by row lookups in 8 bits, in place.

    Returns table → number of its rows. A table with another reader (tied output weights) does not
    change.
    """
    names = graph.FreeNames(model)
    rows_of_table = {}
    for table in list(model.graph.initializers.values()):
        numbers, lookups = graph.array(table), _lookups(table)
        if not lookups or numbers is None:
            continue
        scale = scales.weight_scale(numbers, 0, _FORMAT, np.float32)
        codes = scales.quantize(numbers, scale, _FORMAT, 0)
        parts = {"quantized": codes, "scale": scale.scale[:, None]}
        c, s = (
            graph.add_constant(model.graph, names.value(f"{table.name}_{ending}"), part)
            for ending, part in parts.items()
        )
        for lookup in lookups:
            _rewrite(model.graph, lookup, c, s, names)
        rows_of_table[str(table.name)] = len(numbers)
        model.graph.initializers.pop(str(table.name))
    return rows_of_table


def _lookups(table: ir.Value) -> list[ir.Node]:
    """The Gathers that read the table by rows, if nothing else reads it."""
    shape = table.shape
    if table.is_graph_output() or table.is_graph_input() or table.dtype != ir.DataType.FLOAT:
        return []
    if shape is None or len(shape) != 2 or int(np.prod(shape.numpy())) < _SMALLEST:
        return []
    uses = list(table.uses())
    by_rows = all(
        use.node.op_type == "Gather"
        and use.idx == 0
        and use.node.attributes.get_int("axis", 0) == 0
        for use in uses
    )
    return [use.node for use in uses] if by_rows else []


def _rewrite(
    owner: ir.Graph, lookup: ir.Node, codes: ir.Value, scale: ir.Value, names: graph.FreeNames
) -> None:
    index, result = lookup.inputs[1], lookup.outputs[0]
    name = str(result.name)

    def node(op: str, inputs: list[ir.Value | None], what: str, dtype: ir.DataType) -> ir.Node:
        label, kind = names.node(f"{lookup.name}_{what}"), ir.TensorType(dtype)
        output = ir.Value(name=names.value(f"{name}_{what}"), type=kind)
        return ir.node(op, inputs, outputs=[output], name=label)

    rows = node("Gather", [codes, index], "codes", ir.DataType.INT8)
    cast = node("Cast", [rows.outputs[0]], "wide", ir.DataType.FLOAT)
    cast.attributes.add(ir.AttrInt64("to", ir.DataType.FLOAT.value))
    steps = node("Gather", [scale, index], "scale", ir.DataType.FLOAT)
    product = ir.node(
        "Mul",
        [cast.outputs[0], steps.outputs[0]],
        outputs=[ir.Value(type=result.type)],
        name=str(lookup.name),
    )
    for each in (rows, cast, product):
        each.outputs[0].shape = result.shape
    owner.insert_after(lookup, [rows, cast, steps, product])
    result.replace_all_uses_with(product.outputs[0], replace_graph_outputs=True)
    owner.remove(lookup, safe=True)
    product.outputs[0].name = name
