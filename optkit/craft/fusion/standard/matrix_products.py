"""Products in the form whose weight can be quantized: x W + b with one matrix W [K, N] on the
right, and one number of b per column.

    α A B + β C             A (α B) + β C                     Gemm
    Aᵀ B                    Transpose(A) B                    Gemm with transA
    W x                     (xᵀ Wᵀ)ᵀ                          Gemm and MatMul, any rank of W
    x W + C                 Add(x W, C)                       Gemm, C not one number per column
    x w                     Squeeze(x W), W [K, 1]            MatMul, w [K]
    x W, W [B, K, N]        Transpose(Reshape(x [W₁ … W_B]))  MatMul, x of rank ≤ 2
                            Concat(x₁ W₁, …, x_B W_B)         MatMul, x [..., B, M, K]
    Conv(Transpose(x))      Transpose(x W + b)                Conv of one row, beside a Transpose

In floats these forms are slower or equally fast, so only a graph that is quantized gets them. The
last one leaves floats, where an integer convolution of ONNX Runtime rounds its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import made_by, permutation, reader
from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES, Decline, Rule, remove, replace
from optkit.ground import graph

_ROWS = [0, 2, 1]  # from the layout of convolutions to that of products, and back
_MOST_MATRICES = 16  # each of them becomes a product

Attributes = Mapping[str, int | float | Sequence[int]]


@dataclass(frozen=True)
class _Found:
    """A product to be rewritten, its weight, and what it becomes."""

    node: ir.Node
    weight: ir.Value
    rewrite: Callable[[ir.Node, ir.Value], str]


def check_gemm(node: ir.Node) -> _Found | None:
    place = graph.constant_weight(node)
    if place is None or node.domain != "":
        return None
    index, weight = place
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if alpha != 1 or (has_bias and beta != 1):
        return _Found(node, weight, _fold_factors)
    if index == 0:
        return _Found(node, weight, _turn_gemm)
    if node.attributes.get_int("transA", 0):
        return _Found(node, weight, _turn_input)
    if has_bias and not _per_column(node, weight):
        return _Found(node, weight, _add_apart)
    return None


def check_matmul(node: ir.Node) -> _Found | Decline | None:
    place = graph.constant_weight(node)
    if place is None or node.domain != "":
        return None
    index, weight = place
    other, read = node.inputs[1 - index], node.inputs[index]
    if read is None or read.shape is None or other is None:
        return None
    rank = len(read.shape)
    if index == 1 and rank == 2:
        return None
    if other.shape is None:
        return Decline("the rank of its activation is not known")
    if rank == 1:
        return _Found(node, weight, _column if index == 1 else _turn_row)
    if index == 0:
        return _Found(node, weight, _turn_matmul)
    return _check_stack(node, weight, read, other)


def _check_stack(
    node: ir.Node, weight: ir.Value, read: ir.Value, other: ir.Value
) -> _Found | Decline:
    if weight is not read or not isinstance(read.shape, ir.Shape) or other.shape is None:
        return Decline("its stacked weights are not read directly")
    *stacked, _, _ = read.shape.numpy()
    if len(other.shape) <= 2:
        return _Found(node, weight, _side_by_side)
    if set(stacked) == {1}:
        return _Found(node, weight, _only_one)
    if len(stacked) > 1 or other.shape[-3] != stacked[0]:
        return Decline("its stacked weights do not lie along one static axis of its activation")
    if stacked[0] > _MOST_MATRICES:
        return Decline(f"{stacked[0]} stacked weights would be as many products")
    return _Found(node, weight, _one_by_one)


def check_conv(node: ir.Node) -> _Found | None:
    """A convolution [B, I, T] of kernel 1 whose input is transposed before it, or whose result is
    behind it, so that the product of rows needs no further Transpose."""
    place = graph.constant_weight(node)
    if place is None or place[1] is not node.inputs[1] or place[1].shape is None:
        return None
    kernel, attributes = place[1].shape.numpy()[2:], node.attributes
    steps = [*attributes.get_ints("strides", [1]), attributes.get_int("group", 1)]
    if list(kernel) != [1] or steps != [1, 1] or any(attributes.get_ints("pads", [])):
        return None
    behind = reader(node.outputs[0], "Transpose")
    beside = (made_by(node.inputs[0], "Transpose"), behind)
    swapped = any(each is not None and permutation(each) == _ROWS for each in beside)
    return _Found(node, place[1], _as_rows) if swapped else None


def rewrite(found: _Found) -> str:
    return found.rewrite(found.node, found.weight)


def _fold_factors(node: ir.Node, weight: ir.Value) -> str:
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    for name in ("alpha", "beta"):
        node.attributes.pop(name, None)
    index = 1 if graph.constant_weight(node) == (1, weight) else 0
    if alpha != 1:
        scaled = _scaled(node, index, alpha) if node.inputs[index] is weight else None
        place = index if scaled is not None else 1 - index
        node.replace_input_with(place, scaled or _times(node, 1 - index, alpha))
    if len(node.inputs) > 2 and node.inputs[2] is not None and beta != 1:
        if beta == 0:
            node.resize_inputs(2)
        else:
            node.replace_input_with(2, _scaled(node, 2, beta) or _times(node, 2, beta))
    return f"alpha {alpha:g} and beta {beta:g} into its operands"


def _scaled(node: ir.Node, index: int, factor: float) -> ir.Value | None:
    """A constant operand times a number; None if it is computed, overflows, or is large and read
    elsewhere too."""
    value = node.inputs[index]
    numbers = graph.array(value)
    if numbers is None or value is None:
        return None
    shared = len(value.uses()) > 1 or value.is_graph_output() or not value.is_initializer()
    if shared and numbers.nbytes > GROWTH_LIMIT_BYTES:
        return None
    with np.errstate(over="ignore"):
        product = (numbers.astype(np.float64) * factor).astype(numbers.dtype)
    if not np.isfinite(product).all() and np.isfinite(numbers).all():
        return None
    if shared:
        return graph.new_constant(graph.owner(node), f"{value.name}.scaled", product)
    value.const_value = ir.Tensor(product, name=value.name)
    return value


def _times(node: ir.Node, index: int, factor: float) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    dtype = (value.dtype or ir.DataType.FLOAT).numpy()
    number = graph.new_constant(graph.owner(node), f"{node.name}.factor", np.array(factor, dtype))
    return _before(node, "Mul", [value, number])


def _as_rows(node: ir.Node, weight: ir.Value) -> str:
    source, numbers, owner = node.inputs[0], graph.array(weight), graph.owner(node)
    assert source is not None and numbers is not None
    turned = {"perm": _ROWS}
    matrix = graph.new_constant(owner, f"{weight.name}.matrix", numbers[:, :, 0].T.copy())
    rows = _before(node, "Transpose", [source], turned)
    product = _before(node, "MatMul", [rows, matrix], name=str(node.name))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        product = _before(node, "Add", [product, node.inputs[2]])
    _end(node, "Transpose", [product], turned)
    return "its kernel of 1 as a matrix"


def _turn_input(node: ir.Node, weight: ir.Value) -> str:
    source = node.inputs[0]
    assert source is not None
    node.replace_input_with(0, _before(node, "Transpose", [source], {"perm": [1, 0]}))
    node.attributes.pop("transA")
    return "transA as a Transpose before it"


def _turn_gemm(node: ir.Node, weight: ir.Value) -> str:
    """op(W) op(x) + C = (op(x)ᵀ op(W)ᵀ + Cᵀ)ᵀ"""
    left, right, *rest = node.inputs
    assert left is not None and right is not None
    turned = {name: node.attributes.get_int(name, 0) for name in ("transA", "transB")}
    inputs = [right, left]
    if rest and rest[0] is not None:
        inputs.append(_turned_bias(node, rest[0]))
    attributes = {"transA": 1 - turned["transB"], "transB": 1 - turned["transA"]}
    product = _before(node, "Gemm", inputs, attributes, name=str(node.name))
    _end(node, "Transpose", [product], {"perm": [1, 0]})
    return "its weight to the right"


def _turned_bias(node: ir.Node, bias: ir.Value) -> ir.Value:
    rank = None if bias.shape is None else len(bias.shape)
    if rank == 2:
        return _before(node, "Transpose", [bias], {"perm": [1, 0]})
    if rank == 0:
        return bias
    shape = graph.new_constant(graph.owner(node), f"{node.name}.column", np.array([-1, 1]))
    return _before(node, "Reshape", [bias, shape])


def _add_apart(node: ir.Node, weight: ir.Value) -> str:
    left, right, bias = node.inputs[:3]
    attributes = {"transB": node.attributes.get_int("transB", 0)}
    product = _before(node, "Gemm", [left, right], attributes, name=str(node.name))
    _end(node, "Add", [product, bias])
    return "its bias as an Add behind it"


def _turn_matmul(node: ir.Node, weight: ir.Value) -> str:
    left, right = node.inputs[:2]
    assert left is not None and right is not None
    assert left.shape is not None and right.shape is not None
    turned = _before(node, "Transpose", [left], _swap(len(left.shape)))
    if len(right.shape) == 1:
        node.replace_input_with(0, right)
        node.replace_input_with(1, turned)
        return "its weight to the right"
    source = _before(node, "Transpose", [right], _swap(len(right.shape)))
    product = _before(node, "MatMul", [source, turned], name=str(node.name))
    rank = max(len(left.shape), len(right.shape))
    _end(node, "Transpose", [product], _swap(rank))
    return "its weight to the right"


def _turn_row(node: ir.Node, weight: ir.Value) -> str:
    """w x = Squeeze(xᵀ W), W [K, 1]"""
    left, right = node.inputs[:2]
    assert right is not None and right.shape is not None
    if len(right.shape) > 1:
        right = _before(node, "Transpose", [right], _swap(len(right.shape)))
    node.replace_input_with(0, right)
    node.replace_input_with(1, left)
    return "its weight to the right"


def _column(node: ir.Node, weight: ir.Value) -> str:
    source, row = node.inputs[:2]
    last = graph.new_constant(graph.owner(node), f"{node.name}.last", np.array([-1]))
    column = _before(node, "Unsqueeze", [row, last])
    product = _before(node, "MatMul", [source, column], name=str(node.name))
    _end(node, "Squeeze", [product, last])
    return "its weight as a column"


def _side_by_side(node: ir.Node, weight: ir.Value) -> str:
    source, numbers = node.inputs[0], graph.array(weight)
    assert source is not None and source.shape is not None and numbers is not None
    *stacked, summed, columns = numbers.shape
    beside = np.moveaxis(numbers, -2, 0).reshape(summed, -1)
    owner = graph.owner(node)
    matrix = graph.new_constant(owner, f"{weight.name}.beside", beside)
    product = _before(node, "MatMul", [source, matrix], name=str(node.name))
    rows = [-1] if len(source.shape) == 2 else []
    shape = graph.new_constant(
        owner, f"{node.name}.stack", np.array([*rows, *stacked, columns], np.int64)
    )
    if not rows:
        _end(node, "Reshape", [product, shape])
    else:
        apart = _before(node, "Reshape", [product, shape])
        rank = len(stacked)
        _end(node, "Transpose", [apart], {"perm": [*range(1, rank + 1), 0, rank + 1]})
    return f"its {np.prod(stacked)} weights side by side"


def _only_one(node: ir.Node, weight: ir.Value) -> str:
    source, numbers, owner = node.inputs[0], graph.array(weight), graph.owner(node)
    assert source is not None and source.shape is not None and numbers is not None
    more = numbers.ndim - len(source.shape)
    if more > 0:
        axes = graph.new_constant(owner, f"{node.name}.axes", np.arange(more))
        node.replace_input_with(0, _before(node, "Unsqueeze", [source, axes]))
    matrix = numbers.reshape(numbers.shape[-2:])
    node.replace_input_with(1, graph.new_constant(owner, f"{weight.name}.matrix", matrix))
    return "its weight as a matrix"


def _one_by_one(node: ir.Node, weight: ir.Value) -> str:
    source, numbers = node.inputs[0], graph.array(weight)
    assert source is not None and source.shape is not None and numbers is not None
    count, owner, axis = len(numbers), graph.owner(node), len(source.shape) - 3
    sizes = graph.new_constant(owner, f"{node.name}.sizes", np.ones(count, np.int64))
    split = ir.node(
        "Split",
        [source, sizes],
        {"axis": axis},
        num_outputs=count,
        name=_free_name(owner, f"{node.name}.split"),
    )
    owner.insert_before(node, split)
    for index, part in enumerate(split.outputs):
        part.name = graph.unique_name(
            f"{source.name}.{index}", ir.convenience.create_value_mapping(owner)
        )
    products: list[ir.Value | None] = []
    for index, part in enumerate(split.outputs):
        matrix = graph.new_constant(owner, f"{weight.name}.{index}", numbers[index])
        products.append(_before(node, "MatMul", [part, matrix], name=f"{node.name}.{index}"))
    _end(node, "Concat", products, {"axis": axis})
    return f"one product for each of its {count} weights"


def _swap(rank: int) -> Attributes:
    return {"perm": [*range(rank - 2), rank - 1, rank - 2]}


def _per_column(node: ir.Node, weight: ir.Value) -> bool:
    bias, read = node.inputs[2], node.inputs[1]
    numbers = graph.array(bias)
    if numbers is None or read is None or read.shape is None:
        return False
    columns = read.shape[0 if node.attributes.get_int("transB", 0) else 1]
    return all(size == 1 for size in numbers.shape[:-1]) and numbers.size in (1, columns)


def _before(
    node: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    attributes: Attributes | None = None,
    name: str | None = None,
) -> ir.Value:
    """The result of a new node before `node`. `name`: that of `node`, which is then removed."""
    owner = graph.owner(node)
    name = name or _free_name(owner, f"{node.name}.{op}")
    made = ir.node(op, inputs, dict(attributes or {}), name=name)
    known = ir.convenience.create_value_mapping(owner)
    result, old = made.outputs[0], node.outputs[0]
    result.name = graph.unique_name(f"{old.name}.{op}", known)
    result.type = old.type
    owner.insert_before(node, made)
    return result


def _end(
    node: ir.Node, op: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None
) -> None:
    """A new node in the place of `node`, which computes its result."""
    result = node.outputs[0]
    output = _before(node, op, inputs, attributes)
    output.shape = result.shape
    name = result.name
    replace(result, output)
    output.name = name
    remove(node)


def _free_name(owner: ir.Graph, name: str) -> str:
    return graph.unique_name(name, {str(node.name) for node in owner.all_nodes()})


plain_gemm: Rule[_Found] = Rule("plain_gemm", frozenset({"Gemm"}), check_gemm, rewrite)
plain_matmul: Rule[_Found] = Rule("plain_matmul", frozenset({"MatMul"}), check_matmul, rewrite)
plain_conv: Rule[_Found] = Rule("plain_conv", frozenset({"Conv"}), check_conv, rewrite)
