"""Planned against real: which nodes the compiler really multiplies in the precision they were
assigned, counted in ONNX nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optkit.runtime import FusedLayer, Landing, LandingRow

if TYPE_CHECKING:  # asking a backend for its rules loads no graph library
    import onnx_ir as ir

# dtypes that count as having landed, by precision name
_LANDED = {"int8": ("int8", "uint8")}


def products(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes that multiply (Conv, MatMul, Gemm, ...), by name."""
    from optkit import graph

    return {str(n.name): n for n in model.graph.all_nodes() if n.op_type in graph.WEIGHTED}


def landing(
    layers: Sequence[FusedLayer], nodes: Mapping[str, ir.Node], planned: Mapping[str, str]
) -> Landing:
    """Compare. `nodes`: from `products`; `planned`: node name → precision name, quantized ones."""
    from optkit import graph

    home = {node: layer for layer in layers for node in layer.products}
    rows = tuple(_row(name, nodes[name].op_type, planned[name], home) for name in planned)
    activations = tuple(
        _row(name, node.op_type, "", home)
        for name, node in nodes.items()
        if node.op_type == "MatMul" and graph.constant_weight(node) is None
    )
    return Landing(
        planned=len(rows),
        landed=sum(row.landed for row in rows),
        by_dtype=dict(Counter(row.dtype or "unknown" for row in rows)),
        rows=rows,
        activations=activations,
    )


def _row(name: str, op: str, precision: str, home: Mapping[str, FusedLayer]) -> LandingRow:
    layer = home.get(name)
    dtype = layer.dtype if layer else None
    landed = dtype in _LANDED.get(precision, ())
    return LandingRow(name, op, precision, landed, dtype, layer.name if layer else None)
