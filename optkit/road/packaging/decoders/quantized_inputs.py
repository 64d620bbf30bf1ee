"""How the graph of an artifact quantizes the input of a product, and what else it quantizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.qdq.weight_reader import scalar
from optkit.facts.errors import UsageError
from optkit.ground import graph

_INTEGER = "MatMulIntegerToFloat"
_FP4 = "TRT_FP4DynamicQuantize"
_QUANTIZE = ("QuantizeLinear", "DynamicQuantizeLinear", _FP4)
_SCALE, _ZERO_POINT = 2, 4  # of the input of a MatMulIntegerToFloat


@dataclass(frozen=True)
class QuantizedInput:
    """The input of a product in codes of a `dtype` of ONNX.

    scale       of the tensor; of NVFP4, of the scales that the kernel computes for blocks
    zero_point  0 if it is symmetric
    """

    dtype: str
    scale: np.ndarray
    zero_point: int


def quantized_input(product: ir.Node) -> QuantizedInput | None:
    """None: it reads floats. Raises UsageError for a form that is not known."""
    if product.op_type == _INTEGER:
        value, scale, zero = (product.inputs[at] for at in (0, _SCALE, _ZERO_POINT))
        return _static(value, scale, zero)
    node = _behind_casts(product.inputs[0])
    if node is None or node.op_type != "DequantizeLinear":
        return None
    codes = node.inputs[0]
    quantize = None if codes is None else codes.producer()
    if quantize is not None and quantize.op_type == _FP4:
        return QuantizedInput("float4e2m1", scalar(quantize.inputs[1]), 0)
    return _static(codes, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)


def check_others(model: graph.Graph, products: Collection[ir.Node]) -> None:
    """Raises UsageError if something else than these products reads quantized activations."""
    for node in model.graph:
        if node.op_type not in _QUANTIZE:
            continue
        for reader in _readers(node.outputs[0]):
            if reader not in products:
                raise UsageError(
                    "its input is quantized, and the format quantizes inputs of linear layers only",
                    where=f"node {reader.name!r}",
                    hint="keep the product that it is for in floats: `quantization: {nodes: "
                    "{NAME: fp32}}`, fp16 on a GPU; the report lists the names. If it is a term of "
                    "a sum, `quantization: {two_term: []}`",
                )


def _static(
    codes: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
) -> QuantizedInput:
    assert codes is not None and codes.dtype is not None
    point = 0 if zero is None else float(scalar(zero))
    return QuantizedInput(codes.dtype.name.lower(), scalar(scale), int(point))


def _behind_casts(value: ir.Value | None) -> ir.Node | None:
    """The node that computes a value, before changes of its dtype."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _readers(codes: ir.Value) -> Iterator[ir.Node]:
    """The nodes that compute with codes, or with the floats that these stand for."""
    for use in codes.uses():
        if use.node.op_type in ("DequantizeLinear", "Cast"):
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node
