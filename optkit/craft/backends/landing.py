"""Planned and landed nodes: which nodes the compiler really multiplies in their planned precision,
counted in ONNX nodes.

    values and weights quantized   landed: the first input of the fused layer has the planned dtype
    only weights quantized         landed: the layer that multiplies reads the weight in this dtype.
                                   If a separate kernel converts a weight to floats before the
                                   product, it has not landed: it is moved three times

If the compiler does not report the dtype in which a node multiplies, its landing is unknown:
neither landed nor missed. Builds and measurements do not depend on landing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optkit.facts.engines import UNKNOWN_DTYPE, FusedLayer, Landing, LandingRow
from optkit.facts.precisions import Precision

if TYPE_CHECKING:  # the rules of a backend must be available without loading a graph library
    import onnx_ir as ir

_APART = "dequantized by a kernel of its own"
_NOT_TOLD = "the compiler does not tell what it multiplies in"
# the other names of a dtype: codes of both signs multiply in the same kernels
_ALIKE = {"int8": ("int8", "uint8"), "int4": ("int4", "uint4")}


# operators of ONNX Runtime into which a MatMul, a Gemm or an LSTM may have been changed
_FUSED = (
    *("FusedGemm", "MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4", "MoE", "QMoE"),
    "DynamicQuantizeLSTM",
)


def products(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes that multiply (Conv, MatMul, Gemm, ...), by name. A node that replaces several is
    in it under each of their names."""
    from optkit.ground import graph

    multiplying = (*graph.WEIGHTED, *_FUSED)
    found = [node for node in model.graph.all_nodes() if node.op_type in multiplying]
    return {name: node for node in found for name in graph.names_in(str(node.name))}


def landing(
    layers: Sequence[FusedLayer] | None,
    nodes: Mapping[str, ir.Node],
    planned: Mapping[str, Precision],
) -> Landing:
    """Compare the plan with the layers. `layers`: None if optkit does not understand the compiler's
    list; `nodes`: from `products`; `planned`: quantized node → precision."""
    from optkit.ground import graph

    if layers is None:
        rows = tuple(
            LandingRow(name, nodes[name].op_type, str(one), None, None, None, _NOT_TOLD)
            for name, one in planned.items()
        )
        return _counted(rows, ())
    home = {node: layer for layer in layers for node in layer.products}
    alone = {tensor.name: layer for layer in layers if not layer.inputs for tensor in layer.outputs}
    rows = tuple(_row(name, nodes[name].op_type, planned[name], home, alone) for name in planned)
    activations = tuple(
        _row(name, node.op_type, None, home, alone)
        for name, node in nodes.items()
        if node.op_type == "MatMul" and graph.constant_weight(node) is None
    )
    return _counted(rows, activations)


def _counted(rows: tuple[LandingRow, ...], activations: tuple[LandingRow, ...]) -> Landing:
    return Landing(
        planned=len(rows),
        landed=sum(row.landed is True for row in rows),
        by_dtype=dict(Counter(row.dtype or UNKNOWN_DTYPE for row in rows)),
        rows=rows,
        activations=activations,
        unknown=sum(row.landed is None for row in rows),
    )


def _row(
    name: str,
    op: str,
    precision: Precision | None,
    home: Mapping[str, FusedLayer],
    alone: Mapping[str, FusedLayer],
) -> LandingRow:
    """`precision`: the planned one; None: both operands are activations. `home`: the layer that
    multiplies each node; `alone`: by output, the layers that read only constants."""
    layer, wanted, planned = home.get(name), _wanted(precision), str(precision or "")
    if layer is None:
        return LandingRow(name, op, planned, False, None, None)
    of_weight = precision is not None and precision.weight_codes_only
    dtype = (layer.weight_dtype or layer.dtype) if of_weight else layer.dtype
    if dtype is None:
        return LandingRow(name, op, planned, None, None, layer.name, _NOT_TOLD)
    makers = (alone[tensor.name] for tensor in layer.inputs if tensor.name in alone)
    unpacked = any(tensor.dtype in wanted for maker in makers for tensor in maker.constants)
    landed = dtype in wanted
    note = _APART if unpacked and not landed else None
    return LandingRow(name, op, planned, landed, dtype, layer.name, note)


def _wanted(scheme: Precision | None) -> tuple[str, ...]:
    """The dtypes that count as a precision; none for MatMuls of two activations."""
    if scheme is None or scheme.weights is None:
        return ()
    multiplied = scheme.weights if scheme.weight_codes_only else scheme.activations
    codes = (multiplied or scheme.weights).dtype
    return _ALIKE.get(codes, (codes,))
