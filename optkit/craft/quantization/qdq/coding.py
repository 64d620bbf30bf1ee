"""How a weight that is quantized in blocks is stored, and the product that reads it.

DequantizeLinear   codes, scales and zero points before the product, in the layout of the product
MatMulNBits        the product itself (com.microsoft); everything by rows of the transposed matrix
MatMulBnb4         the same for NF4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import format_codes
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.block_size import fitting_block
from optkit.craft.quantization.placement.weighted_nodes import constant
from optkit.craft.quantization.qdq import nbits
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

_MICROSOFT, _VERSION = "com.microsoft", 1


@dataclass(frozen=True)
class Coding:
    """How a matrix [K, N] that is summed over K is written as codes.

    `format`: with its block size. `turned`: the product reads [N, K]. `carrier`: the dtype of
    scales. `accuracy`: the accuracy level of MatMulNBits; None: a DequantizeLinear, or MatMulBnb4
    for NF4.
    """

    size: tuple[int, int]
    format: NumberFormat
    turned: bool
    carrier: np.dtype
    accuracy: int | None

    @classmethod
    def of(
        cls, node: ir.Node, rules: PlacementRules, block_size: int | None, carrier: np.dtype
    ) -> Coding:
        """The coding of the weight of a MatMul or Gemm. `block_size`: the size that the user
        requests."""
        shape = constant(node).shape
        assert shape is not None
        k = weighted_nodes.summed(node)
        block = fitting_block(node, rules, block_size)
        return cls(
            (k, int(np.prod(shape.numpy())) // k),
            replace(rules.weight_of(node.op_type), block_size=block),
            weighted_nodes.summed_axis(node) == 1,
            carrier,
            rules.nbits_accuracy,
        )

    @property
    def op(self) -> str:
        if self.format.is_table:
            return "MatMulBnb4"
        return "DequantizeLinear" if self.accuracy is None else "MatMulNBits"

    @property
    def by_columns(self) -> bool:
        """Whether the stored tensors are in the order of the columns, so that a piece is a range of
        columns. Otherwise they are in the order of the rows, and a piece is a range of blocks of
        rows."""
        return self.turned or self.op != "DequantizeLinear"

    @property
    def block(self) -> int:
        assert self.format.block_size is not None
        return self.format.block_size

    def forms(self) -> list[graph.TensorForm]:
        """The stored tensors; the keys are endings of their names."""
        (k, n), fmt = self.size, self.format
        blocks = -(-k // self.block)
        scale, byte = ir.DataType.from_numpy(self.carrier), ir.DataType.UINT8
        if self.op == "MatMulBnb4":
            packed = graph.TensorForm("quantized", byte, (-(-n * k // 2),))
            return [packed, graph.TensorForm("scale", scale, (n * blocks,))]
        if self.op == "MatMulNBits":
            packed = graph.TensorForm("quantized", byte, (n, blocks, self.block * fmt.bits // 8))
            forms = [packed, graph.TensorForm("scale", scale, (n, blocks))]
            zero = graph.TensorForm("zero_point", byte, (n, -(-blocks * fmt.bits // 8)))
            return forms if fmt.symmetric else [*forms, zero]
        kind = ir.DataType.from_numpy(format_codes.storage(fmt))
        size, groups = ((n, k), (n, blocks)) if self.turned else ((k, n), (blocks, n))
        return [
            graph.TensorForm("quantized", kind, size),
            graph.TensorForm("scale", scale, groups),
            graph.TensorForm("zero_point", kind, groups),
        ]

    def parts(
        self, codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """The stored arrays, one per form, from codes [k, n], scales and zero points [blocks, n].
        These are of the whole matrix or of a piece of it (with an even number of columns, if two
        codes share a byte)."""
        held = scale.astype(self.carrier)
        if self.op == "DequantizeLinear":
            parts = (codes, held, zero_point)
            return tuple(part.T for part in parts) if self.turned else parts
        if self.op == "MatMulBnb4":
            return nbits.pack_bnb4(codes.T), held.T.reshape(-1)
        packed = nbits.pack(codes.T, self.format, self.block), np.ascontiguousarray(held.T)
        if self.format.symmetric:
            return packed
        return *packed, nbits.pack_zero_points(zero_point.T, self.format)

    def attributes(self) -> dict[str, int]:
        (k, n), block = self.size, self.block
        if self.op == "MatMulBnb4":
            return {"K": k, "N": n, "block_size": block, "quant_type": 1}
        if self.op == "MatMulNBits":
            return nbits.attributes(n, k, self.format.bits, block, self.accuracy or 0)
        return {"axis": 1 if self.turned else 0, "block_size": block}

    def read_by(self, node: ir.Node, values: Sequence[ir.Value]) -> ir.Value | None:
        """Change the node into the product that reads these values, one per form. Returns the bias
        of a Gemm, because the new operator has no bias input."""
        bias = node.inputs[2] if weighted_nodes.has_bias(node) else None
        node.resize_inputs(1 + len(values))
        for index, value in enumerate(values, 1):
            node.replace_input_with(index, value)
        node.op_type, node.domain = self.op, _MICROSOFT
        assert isinstance(node.graph, ir.Graph)
        node.graph.opset_imports.setdefault(_MICROSOFT, _VERSION)
        node.attributes.clear()
        node.attributes.update({n: ir.AttrInt64(n, v) for n, v in self.attributes().items()})
        return bias
