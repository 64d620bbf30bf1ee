"""A graph whose products read codes that are in memory only in pieces, or not at all.

The forms are those of `qdq.writer`. Here the codes are tensors that are computed while the graph is
saved (`streamed`), or that are already in a file (`layerwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.out_of_core.awq_parts import Fold
from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.placement.weighted_nodes import constant, known_dtype
from optkit.craft.quantization.qdq.coding import Coding
from optkit.craft.quantization.qdq.insertion import QuantizedNode
from optkit.facts.assignment import Assignment
from optkit.facts.precisions import Precision
from optkit.ground import graph

Place = tuple[Hashable, ir.DataType]
"""How a weight is read: the identity of its codes, and the dtype in which products read it."""

_UNSIMULATED = (
    "too large to be written a second time, so there is no simulation of this graph: accuracy and "
    "fidelity are those of the graph as ONNX Runtime runs it on a CPU, mostly in FP32, where a "
    "value beyond the range of half precision may stay finite"
)


def unsimulated(carrier: np.dtype | type) -> tuple[str, ...]:
    """The warning that nothing simulates a graph whose values between products have this dtype."""
    return () if np.dtype(carrier) == np.float32 else (_UNSIMULATED,)


class CodedNode(NamedTuple):
    """A node that multiplies by codes."""

    op: str
    precision: Precision
    block: int
    place: Place

    def logged(self, scales: tuple[float, float]) -> QuantizedNode:
        """The node for the log. `scales`: the smallest and the largest scale of its weight."""
        return QuantizedNode(self.op, self.precision.name, scales, self.block, None)


@dataclass(frozen=True)
class Codings:
    """How the weights of an assignment are coded; `carrier`: the dtype of scales."""

    assignment: Assignment
    rules: Rules
    block_size: int | None  # the block size that the user requests
    carrier: np.dtype

    def nodes(self, model: ir.Model) -> list[ir.Node]:
        """The nodes of the graph whose weights become codes."""
        planned = self.assignment.quantized()
        return [node for node in model.graph if node.name in planned]

    def of(self, node: ir.Node) -> Coding:
        rules = self.rules[self.assignment.nodes[str(node.name)]]
        return Coding.of(node, rules, self.block_size, self.carrier)

    def write(
        self,
        model: ir.Model,
        key: Callable[[ir.Node], Hashable],
        tensors: Callable[[ir.Node, Place], Sequence[ir.TensorProtocol]],
        folds: Iterable[Fold] = (),
    ) -> dict[str, CodedNode]:
        """Let the assigned nodes read codes, and other nodes their folded constants, in place.

        key: equal for nodes that read the same codes. tensors: one per form of the coding, called
        once per place. Float weights without readers are removed.
        """
        coded: dict[str, CodedNode] = {}
        if not (nodes := self.nodes(model)):
            return coded
        writer = _CodedGraph(model)
        named = {str(node.name): node for node in model.graph}
        for fold in folds:
            writer.replace_constant(named[fold.node], fold.place, fold.numbers)
        values: dict[Place, Sequence[ir.Value]] = {}
        for node in nodes:
            coding, place = self.of(node), (key(node), known_dtype(node.inputs[1]))
            name, precision = str(node.name), self.assignment.nodes[str(node.name)]
            coded[name] = CodedNode(node.op_type, precision, coding.block, place)
            if place not in values:
                weight = str(constant(node).name)
                values[place] = writer.add(weight, coding, tensors(node, place), place[1])
            writer.read(node, coding, values[place])
        writer.finish()
        return coded


class _CodedGraph:
    """Adds codes to one graph under free names. `finish` removes what has no readers."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._first = model.graph[0]
        self._names = graph.FreeNames(model)
        self._replaced: list[ir.Value] = []

    def add(
        self, name: str, coding: Coding, tensors: Sequence[ir.TensorProtocol], dtype: ir.DataType
    ) -> Sequence[ir.Value]:
        """Add the tensors of the weight `name`, one per form, for products that multiply in
        `dtype`. Returns the values that the products read."""
        values = []
        for form, tensor in zip(coding.forms(), tensors, strict=True):
            tensor.name = self._names.value(f"{name}_{form.name}")
            values.append(graph.add_tensor(self._graph, tensor))
        if coding.op != "DequantizeLinear":
            return values
        floats = self._at_front(
            "DequantizeLinear", values, coding.attributes(), f"{name}_dequantized"
        )
        floats.type = values[1].type
        if floats.dtype != dtype:
            floats = self._at_front("Cast", [floats], {"to": dtype.value}, f"{name}_held")
            floats.type = ir.TensorType(dtype)
        return [floats]

    def read(self, node: ir.Node, coding: Coding, values: Sequence[ir.Value]) -> None:
        """Let the node multiply by the codes instead of the weight that it reads."""
        self._replaced += [value for value in node.inputs[1:2] if value is not None]
        if coding.op == "DequantizeLinear":
            node.replace_input_with(1, values[0])
        elif (bias := coding.read_by(node, values)) is not None:
            self._add_behind(node, bias)

    def replace_constant(self, node: ir.Node, index: int, numbers: np.ndarray) -> None:
        """Replace input `index` of the node by a constant with these numbers, in the same dtype."""
        old = node.inputs[index]
        assert old is not None and old.dtype is not None
        name = self._names.value(f"{old.name}_rescaled")
        new = graph.add_constant(self._graph, name, numbers.astype(old.dtype.numpy()))
        node.replace_input_with(index, new)
        self._replaced.append(old)

    def finish(self) -> None:
        graph.remove_unread(self._graph, self._replaced)

    def _at_front(
        self, op: str, inputs: Sequence[ir.Value], attributes: dict[str, int], name: str
    ) -> ir.Value:
        """The result of a new node, in the shape of its first input. The node comes before all
        nodes that may read it."""
        name = self._names.value(name)
        node = ir.node(op, inputs, attributes, name=self._names.node(name))
        node.outputs[0].name, node.outputs[0].shape = name, inputs[0].shape
        self._graph.insert_before(self._first, node)
        return node.outputs[0]

    def _add_behind(self, node: ir.Node, bias: ir.Value) -> None:
        """Add the bias of a Gemm after the product. The bias may have more than one row."""
        result = node.outputs[0]
        name, uses = str(result.name), list(result.uses())
        result.name = self._names.value(f"{name}_product")
        add = ir.node("Add", [result, bias], name=self._names.node(f"{name}_sum"))
        total = add.outputs[0]
        total.name, total.type, total.shape = name, result.type, result.shape
        for use in uses:
            use.node.replace_input_with(use.idx, total)
        self._graph.insert_after(node, add)
        graph.replace_output(self._graph, result, total)
