"""Products that read codes which are in memory only piece by piece, or not at all.

DequantizeLinear   codes, scales and zero points in front of the product, as the product lies
MatMulNBits        the product itself (com.microsoft): everything by rows of the turned matrix
MatMulBnb4         the same for NF4

The forms are those that `writer` gives to numbers in memory. Here they are tensors: computed while
the graph is saved (`streamed`), or stored already (`layerwise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.errors import InputRefused
from optkit.placement import PlacementRules
from optkit.precisions import NumberFormat
from optkit.quantization.numerics import formats
from optkit.quantization.placement import weighted_nodes
from optkit.quantization.placement.block_size import fitting_block
from optkit.quantization.placement.weighted_nodes import constant
from optkit.quantization.qdq import nbits

_OPSET = 1  # of com.microsoft


@dataclass(frozen=True)
class Coding:
    """How a matrix [K, N] that is summed over K is written as codes.

    `format`: with its block size. `turned`: the product reads [N, K]. `carrier`: the dtype of
    scales. `accuracy`: the level of MatMulNBits; None: a DequantizeLinear, or for NF4 MatMulBnb4.
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
        """That of a MatMul's or Gemm's weight; `block_size`: the one that the user wants."""
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
        if self.format.dtype == "nf4":
            return "MatMulBnb4"
        return "DequantizeLinear" if self.accuracy is None else "MatMulNBits"

    @property
    def by_columns(self) -> bool:
        """Whether the parts of one column after the other are the parts in order; else it is those
        of one block of rows after the other."""
        return self.turned or self.op != "DequantizeLinear"

    @property
    def block(self) -> int:
        assert self.format.block_size is not None
        return self.format.block_size

    def forms(self) -> list[graph.Form]:
        """What is stored; the names are endings."""
        (k, n), fmt = self.size, self.format
        blocks = -(-k // self.block)
        scale, byte = ir.DataType.from_numpy(self.carrier), ir.DataType.UINT8
        if self.op == "MatMulBnb4":
            packed = graph.Form("quantized", byte, (-(-n * k // 2),))
            return [packed, graph.Form("scale", scale, (n * blocks,))]
        if self.op == "MatMulNBits":
            packed = graph.Form("quantized", byte, (n, blocks, self.block * fmt.bits // 8))
            forms = [packed, graph.Form("scale", scale, (n, blocks))]
            zero = graph.Form("zero_point", byte, (n, -(-blocks * fmt.bits // 8)))
            return forms if fmt.symmetric else [*forms, zero]
        kind = ir.DataType.from_numpy(formats.storage(fmt))
        size, groups = ((n, k), (n, blocks)) if self.turned else ((k, n), (blocks, n))
        return [
            graph.Form("quantized", kind, size),
            graph.Form("scale", scale, groups),
            graph.Form("zero_point", kind, groups),
        ]

    def parts(
        self, codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """One array per form of codes [k, n], scales and zero points [blocks, n]: of the matrix, or
        of a piece of it (of an even number of columns where two codes share a byte)."""
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


class CodedGraph:
    """A graph whose products get codes for their constant weights, in place. `finish` drops what
    nobody reads any more."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._first = model.graph[0]
        self._values = graph.value_names(model)
        self._nodes = {str(node.name) for node in model.graph.all_nodes()}
        self._left: list[ir.Value] = []

    def add(
        self, name: str, coding: Coding, tensors: Sequence[ir.TensorProtocol], dtype: ir.DataType
    ) -> Codes:
        """Keep the tensors of the weight `name`, one per form, for products that multiply `dtype`.
        They get names that are free here."""
        values = []
        for form, tensor in zip(coding.forms(), tensors, strict=True):
            tensor.name = self._claim(f"{name}_{form.name}")
            values.append(graph.add_tensor(self._graph, tensor))
        if coding.op != "DequantizeLinear":
            return Codes(coding, tuple(values))
        held = self._dequantized(f"{name}_dequantized", values, coding)
        if held.dtype != dtype:
            held = self._first_of("Cast", [held], {"to": dtype.value}, f"{name}_held", held)
            held.type = ir.TensorType(dtype)
        return Codes(coding, (held,))

    def read(self, node: ir.Node, codes: Codes) -> None:
        """Let the node multiply by the codes instead of the weight that it reads."""
        self._left += [value for value in node.inputs[1:2] if value is not None]
        if codes.coding.op == "DequantizeLinear":
            node.replace_input_with(1, codes.values[0])
            return
        bias = node.inputs[2] if weighted_nodes.has_bias(node) else None
        node.resize_inputs(1 + len(codes.values))
        for index, value in enumerate(codes.values, 1):
            node.replace_input_with(index, value)
        node.op_type, node.domain = codes.coding.op, "com.microsoft"
        self._graph.opset_imports.setdefault("com.microsoft", _OPSET)
        node.attributes.clear()
        for name, number in codes.coding.attributes().items():
            node.attributes[name] = ir.AttrInt64(name, number)
        if bias is not None:
            self._add_behind(node, bias)

    def give(self, node: ir.Node, index: int, numbers: np.ndarray) -> None:
        """Let input `index` of the node be a constant with these numbers, in the dtype it had."""
        old = node.inputs[index]
        assert old is not None and old.dtype is not None
        held = numbers.astype(old.dtype.numpy())
        name = self._claim(f"{old.name}_rescaled")
        node.replace_input_with(index, graph.add_constant(self._graph, name, held))
        self._left.append(old)

    def finish(self) -> None:
        """Drop the float weights that nobody reads any more."""
        graph.remove_unread(self._graph, self._left)

    def _dequantized(self, name: str, parts: list[ir.Value], coding: Coding) -> ir.Value:
        result = self._first_of("DequantizeLinear", parts, coding.attributes(), name, parts[0])
        result.type = parts[1].type
        return result

    def _first_of(
        self, op: str, inputs: list[ir.Value], attributes: dict[str, int], name: str, like: ir.Value
    ) -> ir.Value:
        """The result, of the shape of `like`, of a node ahead of all that may read it."""
        name = self._claim(name)
        node = ir.node(op, inputs, attributes, name=self._free(name))
        node.outputs[0].name, node.outputs[0].shape = name, like.shape
        self._graph.insert_before(self._first, node)
        return node.outputs[0]

    def _add_behind(self, node: ir.Node, bias: ir.Value) -> None:
        """The bias of a Gemm behind the product, of which it may be more than a row."""
        result = node.outputs[0]
        name, uses = str(result.name), list(result.uses())
        result.name = self._claim(f"{name}_product")
        add = ir.node("Add", [result, bias], name=self._free(f"{name}_sum"))
        total = add.outputs[0]
        total.name, total.type, total.shape = name, result.type, result.shape
        for use in uses:
            use.node.replace_input_with(use.idx, total)
        self._graph.insert_after(node, add)
        for index, output in enumerate(self._graph.outputs):
            if output is result:
                self._graph.outputs[index] = total

    def _claim(self, name: str) -> str:
        return graph.claim_name(name, self._values)

    def _free(self, name: str) -> str:
        return graph.claim_name(name, self._nodes)


@dataclass(frozen=True)
class Codes:
    """What `CodedGraph.add` kept: several nodes may read it."""

    coding: Coding
    values: tuple[ir.Value, ...]


def read_dtype(node: ir.Node) -> ir.DataType:
    """The dtype in which a product reads its weight."""
    weight = node.inputs[1]
    assert weight is not None
    if weight.dtype is None:
        raise InputRefused("its dtype is unknown", where=f"tensor {weight.name!r}")
    return weight.dtype
