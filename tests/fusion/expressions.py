"""Graphs of elementwise operators, written as expressions of their input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

Term = "Expression | float"


class Expression:
    """A value, to which operators apply; a number becomes a constant."""

    def __init__(self, value: ir.Value, nodes: list[ir.Node]) -> None:
        self.value, self.nodes = value, nodes

    def op(self, name: str, *others: Term) -> Expression:
        inputs = [self.value, *(self._value(other) for other in others)]
        node = ir.node(name, inputs, name=f"{name}_{len(self.nodes)}")
        node.outputs[0].name = f"{name}_{len(self.nodes)}.out"
        self.nodes.append(node)
        return Expression(node.outputs[0], self.nodes)

    def _value(self, term: Term) -> ir.Value:
        if isinstance(term, Expression):
            return term.value
        assert self.value.dtype is not None or self.nodes
        dtype = self.nodes[0].inputs[0].dtype if self.nodes else self.value.dtype
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(term, dtype.numpy()))})
        constant.name = f"Constant_{len(self.nodes)}"
        constant.outputs[0].name = f"Constant_{len(self.nodes)}.out"
        constant.outputs[0].dtype = dtype
        self.nodes.append(constant)
        return constant.outputs[0]

    def _of(self, number: Term) -> Expression:
        return Expression(self._value(number), self.nodes)

    def __add__(self, other: Term) -> Expression:
        return self.op("Add", other)

    def __radd__(self, other: Term) -> Expression:
        return self._of(other).op("Add", self)

    def __sub__(self, other: Term) -> Expression:
        return self.op("Sub", other)

    def __rsub__(self, other: Term) -> Expression:
        return self._of(other).op("Sub", self)

    def __mul__(self, other: Term) -> Expression:
        return self.op("Mul", other)

    def __rmul__(self, other: Term) -> Expression:
        return self._of(other).op("Mul", self)

    def __truediv__(self, other: Term) -> Expression:
        return self.op("Div", other)

    def __rtruediv__(self, other: Term) -> Expression:
        return self._of(other).op("Div", self)

    def __neg__(self) -> Expression:
        return self.op("Neg")


def e(x: Expression) -> Expression:
    return x.op("Exp")


def where(holds: Expression, a: Term, b: Term) -> Expression:
    return holds.op("Where", a, b)


def written(
    form: Callable[[Expression], Expression],
    *,
    also: str | None = None,
    dtype: ir.DataType = ir.DataType.FLOAT,
) -> ir.Model:
    """x [5, 6, 7] → y = form(x). `also`: the result of the first of these operators is an output
    too."""
    x = ir.Value(name="x", shape=ir.Shape([5, 6, 7]), type=ir.TensorType(dtype))
    nodes: list[ir.Node] = []
    first = ir.node("Identity", [x], name="first")
    first.outputs[0].name = "first.out"
    nodes.append(first)
    last = form(Expression(first.outputs[0], nodes)).op("Identity")
    outputs = [last.value]
    outputs += [n.outputs[0] for n in nodes if n.op_type == also][:1]
    for value in outputs:
        value.type, value.shape = ir.TensorType(dtype), ir.Shape([5, 6, 7])
    body = ir.Graph([x], outputs, nodes=nodes, opset_imports={"": 21}, name="g")
    return graph.infer_shapes(ir.Model(body, ir_version=10))
