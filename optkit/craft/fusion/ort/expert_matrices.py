"""The products of a mixture with the matrices of each row's expert, in floats or in codes.

y[s] = W[i[s]] x[s] + b[i[s]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import MICROSOFT
from optkit.craft.fusion.pattern import made_by, permutation, sides
from optkit.ground import graph

_LOOKUPS = ("Gather", "GatherND")


@dataclass(frozen=True)
class Matrices:
    """`product` multiplies `rows` [S, K] by the matrices `chosen` [S] or [S, 1] of `weight`.

    weight    float [E, N, K], or, `turned`, [E, K, N]; uint8 [E, N, K · bits / 8]
    scales    float [E, N, K / block] of codes
    bias      float [E, N]
    accuracy  as of MatMulNBits
    """

    product: ir.Node
    rows: ir.Value
    chosen: ir.Value
    weight: ir.Value
    scales: ir.Value | None
    bias: ir.Value | None
    turned: bool
    bits: int | None
    block: int
    accuracy: int

    @property
    def experts(self) -> int:
        return int(self.weight.shape[0])  # type: ignore[index, arg-type]

    @property
    def form(self) -> str:
        return "floats" if self.bits is None else f"{self.bits} bits"


def matrices(value: ir.Value | None) -> Matrices | None:
    """The product, with the bias of each expert, that computes a value [S, N]."""
    add = made_by(value, "Add")
    for product, bias in sides(add):
        lookup = made_by(bias, *_LOOKUPS)
        table = lookup.inputs[0] if lookup is not None else None
        found = _product(product, table)
        if found is not None and lookup is not None and graph.is_constant(table):
            return found if _same_rows(lookup.inputs[1], found.chosen) else None
    return _product(value, None)


def _product(value: ir.Value | None, bias: ir.Value | None) -> Matrices | None:
    squeezed = made_by(value, "Squeeze", "Reshape")
    product = made_by(squeezed.inputs[0], "MatMul") if squeezed is not None else None
    for place, (matrix, single) in enumerate(sides(product)):
        rows = made_by(single, "Unsqueeze", "Reshape")
        found = ExpertLookup.of(matrix, turned=place == 1)
        if product is None or rows is None or rows.inputs[0] is None or found is None:
            continue
        accuracy = int(product.metadata_props.get(graph.EXPERT_ACCURACY, 0))
        bits, block = found.bits, found.block
        stored = (found.weight, found.scales, bias, found.turned, bits, block, accuracy)
        return Matrices(product, rows.inputs[0], found.chosen, *stored)
    return None


class ExpertLookup(NamedTuple):
    """The matrices `chosen` of `weight`, as of `Matrices`."""

    weight: ir.Value
    chosen: ir.Value
    scales: ir.Value | None
    turned: bool
    bits: int | None
    block: int

    @classmethod
    def of(cls, matrix: ir.Value | None, *, turned: bool) -> ExpertLookup | None:
        """The lookup that finds a matrix; `turned`: it is the right operand."""
        turns = made_by(matrix, "Transpose")
        if turns is not None and permutation(turns) == [0, 2, 1]:
            matrix, turned = turns.inputs[0], not turned
        floats = made_by(matrix, *_LOOKUPS)
        node = floats or made_by(matrix, "GatherBlockQuantized", domain=MICROSOFT)
        weight, chosen = (None, None) if node is None else node.inputs[:2]
        if node is None or chosen is None or weight is None or not graph.is_constant(weight):
            return None
        if floats is not None:
            return (
                cls(weight, chosen, None, turned, None, 0) if graph.finds_matrices(node) else None
            )
        number = node.attributes.get_int
        found = cls(
            weight, chosen, node.inputs[2], turned, number("bits", 4), number("block_size", 128)
        )
        return None if turned else found


def _same_rows(one: ir.Value | None, other: ir.Value) -> bool:
    """Whether two lookups take the rows of the same experts."""
    return one is other or _flat(one) is _flat(other)


def _flat(value: ir.Value | None) -> ir.Value | None:
    node = made_by(value, "Unsqueeze", "Squeeze")
    while node is not None:
        value = node.inputs[0]
        node = made_by(value, "Unsqueeze", "Squeeze")
    return value


def stored(
    owner: ir.Graph, found: Matrices, block: int, order: np.ndarray | None
) -> list[ir.Value | None]:
    """Weight, scales of codes and bias as MoE and QMoE read them: by rows in this order, and with a
    scale for every `block` codes. They are computed expert by expert while the graph is saved."""

    def ordered(part: np.ndarray) -> np.ndarray:
        return part if order is None else np.ascontiguousarray(part[:, order])

    def floats(part: np.ndarray) -> np.ndarray:
        return ordered(part.transpose(0, 2, 1) if found.turned else part)

    def finer(part: np.ndarray) -> np.ndarray:
        return ordered(np.repeat(part, found.block // block, axis=2))

    bias = None if found.bias is None else _changed(owner, found.bias, ordered, order is None)
    if found.bits is None:
        return [_changed(owner, found.weight, floats, order is None and not found.turned), bias]
    assert found.scales is not None
    codes = _changed(owner, found.weight, ordered, order is None)
    scales = _changed(owner, found.scales, finer, order is None and found.block == block)
    return [codes, scales, bias]


def _changed(
    owner: ir.Graph, value: ir.Value, change: Callable[[np.ndarray], np.ndarray], same: bool
) -> ir.Value:
    """A constant whose parts of one expert are changed; the value itself if they stay the same."""
    if same:
        return value
    tensor = value.const_value
    assert tensor is not None
    sample = change(next(iter(graph.rows(tensor, 1))))
    known = ir.convenience.create_value_mapping(owner)
    name = graph.unique_name(f"{value.name}_by_expert", known)
    form = graph.TensorForm(name, tensor.dtype, (tensor.shape.numpy()[0], *sample.shape[1:]))

    def pieces() -> Iterator[tuple[np.ndarray]]:
        for part in graph.rows(tensor, 1):
            yield (np.ascontiguousarray(change(part)),)

    return graph.add_tensor(owner, *graph.computed([form], pieces))
