"""Reading a graph backwards from a node: what rules ask of the values they look at."""

from __future__ import annotations

import onnx_ir as ir

from optkit import graph


def made_by(value: ir.Value | None, *ops: str, domain: str = "") -> ir.Node | None:
    """The node that makes `value`, if it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in ops and node.domain == domain else None


def chain(value: ir.Value | None, *ops: str) -> list[ir.Node] | None:
    """The nodes that make `value` one behind the other, the last first, each from input 0 of the
    one before it, if they are these operators: chain(v, "Reshape", "Transpose")."""
    nodes: list[ir.Node] = []
    for op in ops:
        node = made_by(value, op)
        if node is None or not node.inputs:
            return None
        nodes.append(node)
        value = node.inputs[0]
    return nodes


def sole_readers(value: ir.Value, *ops: str) -> list[ir.Node] | None:
    """The nodes that alone read `value` and each other's first result, if they are these."""
    nodes: list[ir.Node] = []
    for op in ops:
        node = reader(value, op)
        if node is None:
            return None
        nodes.append(node)
        value = node.outputs[0]
    return nodes


def read_once(value: ir.Value) -> bool:
    """One node reads it, at one input, and it is no graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def reader(value: ir.Value, *ops: str) -> ir.Node | None:
    """The only node that reads `value`, if it is one of these operators."""
    if not read_once(value):
        return None
    node = next(iter(value.uses())).node
    return node if node.op_type in ops and node.domain == "" else None


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant that holds only one."""
    numbers = graph.array(value)
    return float(numbers.item()) if numbers is not None and numbers.size == 1 else None


def scaled(
    value: ir.Value | None, *, until: ir.Value | None = None
) -> tuple[ir.Value | None, float]:
    """(x, s) where `value` is s · x; s is 1 if nothing scales it. `until` is not looked into."""
    node, scale = made_by(value, "Mul", "Div"), 1.0
    while node is not None and value is not until:
        index = 0 if node.op_type == "Div" or scalar(node.inputs[1]) is not None else 1
        source, factor = operands(node, index)
        number = scalar(factor)
        if number is None or (node.op_type == "Div" and number == 0):
            break
        scale = scale / number if node.op_type == "Div" else scale * number
        value, node = source, made_by(source, "Mul", "Div")
    return value, scale


def of_float_product(value: ir.Value | None) -> bool:
    """A float32 MatMul with a constant weight makes it: no product of codes, which adds its bias
    itself."""
    product = made_by(value, "MatMul")
    if product is None or product.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    return graph.is_constant(product.inputs[1])


def biased_product(add: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """(product, bias) where an Add puts one constant per feature behind a product of floats."""
    for index in (0, 1):
        product, bias = operands(add, index)
        numbers, shape = graph.array(bias), product.shape if product is not None else None
        if product is None or bias is None or numbers is None or shape is None:
            continue
        if of_float_product(product) and numbers.ndim == 1 and numbers.size == shape[-1]:
            return product, bias
    return None


def operands(node: ir.Node, index: int) -> tuple[ir.Value | None, ir.Value | None]:
    """Input `index` of a node with two inputs, and the other one."""
    return node.inputs[index], node.inputs[1 - index]


def permutation(node: ir.Node) -> list[int] | None:
    """Of a Transpose; None where it follows from a rank that is not known."""
    order = node.attributes.get("perm")
    if order is not None:
        return list(order.as_ints())
    source = node.inputs[0]
    rank = len(source.shape) if source is not None and source.shape is not None else None
    return None if rank is None else list(reversed(range(rank)))


def dims(value: ir.Value | None, rank: int) -> list[int | ir.SymbolicDim] | None:
    """The dimensions of a value of this rank; None for another or an unknown one."""
    if value is None or value.shape is None or len(value.shape) != rank:
        return None
    return list(value.shape.dims)


def ints(value: ir.Value | None) -> list[int] | None:
    """A constant of integers as a flat list."""
    numbers = graph.array(value)
    return None if numbers is None else [int(number) for number in numbers.reshape(-1)]


def known_equal(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Two dimensions are the same number, or the same named axis."""
    return a == b and a != ir.SymbolicDim(None)
