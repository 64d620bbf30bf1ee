"""Nodes and constants: names, the weight that a node multiplies, and the check that numbers are
finite."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.ground.graph.weights import blocks, spread

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators that multiply by a weight; the ones that may be quantized and whose MACs count."""

_WEIGHT_INPUTS = {"Conv": (1,), "ConvTranspose": (1,), "MatMul": (1, 0), "Gemm": (1, 0)}
_TRANSPARENT = ("Transpose", "DequantizeLinear", "QuantizeLinear", "Cast", "Identity")
_BLOCK_BYTES = 4 << 20
_PARAMETRIC = (*WEIGHTED, "BatchNormalization", "LayerNormalization", "GroupNormalization")
_CHOOSING = ("Where", "Min", "Max", "Clip", "Pad", "Equal", "ScatterND", "ScatterElements")
"""Operators that take a constant's numbers as they are, and compute nothing with them."""


def array(value: ir.Value | None) -> np.ndarray | None:
    """The numbers of a constant value, else None."""
    if value is None:
        return None
    tensor = _constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def is_constant(value: ir.Value | None) -> bool:
    return value is not None and _constant_tensor(value) is not None


def constant_weight(node: ir.Node) -> tuple[int, ir.Value] | None:
    """(input index, constant) of the weight that a Conv, ConvTranspose, MatMul or Gemm multiplies.

    It follows Transpose, Q/DQ, Cast and Identity back to the stored tensor. None for other
    operators, and for a product of two activations.
    """
    for index in _WEIGHT_INPUTS.get(node.op_type, ()):
        value = node.inputs[index] if index < len(node.inputs) else None
        while value is not None:
            if is_constant(value):
                return index, value
            producer = value.producer()
            through = producer is not None and producer.op_type in _TRANSPARENT
            value = producer.inputs[0] if through and producer is not None else None
    return None


def ensure_names(model: ir.Model) -> None:
    """Give every node a unique name; names that are already unique do not change."""
    taken: set[str] = set()
    for node in model.graph.all_nodes():
        node.name = unique_name(node.name or f"{node.op_type}_{len(taken)}", taken)
        taken.add(node.name)


def unique_name(name: str, taken: Collection[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, … that is not taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def claim_name(name: str, taken: set[str]) -> str:
    """`unique_name`, which also marks the name as taken."""
    free = unique_name(name, taken)
    taken.add(free)
    return free


def value_names(model: ir.Model) -> set[str]:
    """The names of all values, including those in subgraphs; a new value must have another name."""
    values = (ir.convenience.create_value_mapping(graph) for graph in model.graphs())
    return {name for known in values for name in known}


class FreeNames:
    """Names that no value and no node of a model has, including subgraphs. Each name is returned
    once."""

    def __init__(self, model: ir.Model) -> None:
        self._values = value_names(model)
        self._nodes = {str(node.name) for node in model.graph.all_nodes()}

    def value(self, name: str) -> str:
        return claim_name(name, self._values)

    def node(self, name: str) -> str:
        return claim_name(name, self._nodes)


def replace_output(owner: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Replace `old` by `new` wherever it is an output of the graph."""
    for index, output in enumerate(owner.outputs):
        if output is old:
            owner.outputs[index] = new


def read_instead(node: ir.Node, value: ir.Value) -> None:
    """Let all readers of a node's only output read `value`. An output of the graph keeps its name,
    which the result of an Identity gets."""
    result, parent = node.outputs[0], owner(node)
    if not result.is_graph_output():
        result.replace_all_uses_with(value)
        return
    identity = ir.node("Identity", [value], name=str(node.name))
    kept = identity.outputs[0]
    kept.name, kept.type, kept.shape = result.name, result.type, result.shape
    parent.insert_before(node, identity)
    replace_output(parent, result, kept)
    result.name = f"{result.name}.unread"
    result.replace_all_uses_with(kept)


def new_constant(owner: ir.Graph, name: str, numbers: np.ndarray) -> ir.Value:
    """A new initializer with a free name that begins with this one."""
    taken = ir.convenience.create_value_mapping(owner)
    return add_constant(owner, unique_name(name, taken), numbers)


def add_constant(graph: ir.Graph, name: str, numbers: np.ndarray) -> ir.Value:
    """A new initializer. The caller guarantees that no value has this name."""
    return add_tensor(graph, ir.Tensor(np.asarray(numbers, order="C"), name=name))


def add_tensor(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """A new initializer with the name of the tensor, which no value has."""
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def owner(node: ir.Node) -> ir.Graph:
    """The graph that a node is in (optkit inlines functions when it reads a file)."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def remove_unread(owner: ir.Graph, values: Iterable[ir.Value]) -> None:
    """Remove the values without readers, and the chains of nodes that compute only these."""
    for value in values:
        walk: ir.Value | None = value
        while walk is not None and not walk.uses() and not walk.is_graph_output():
            producer = walk.producer()
            if producer is None:
                owner.initializers.pop(str(walk.name), None)
                break
            if any(each.uses() or each.is_graph_output() for each in producer.outputs):
                break
            walk = producer.inputs[0]
            if producer.graph is not None:  # not removed with the chain of another value
                owner.remove(producer, safe=True)


def check_finite(model: ir.Model) -> None:
    """Raise InputRefused with the name of the tensor if a weight has NaN or infinity.

    They are allowed in masks, limits and fills: a constant of only 0, NaN and ±inf that is not the
    parameter of a layer, or one that is only chosen from. Weights are read in blocks, on several
    threads.
    """
    constants: list[ir.Value] = []
    for graph in model.graphs():
        constants += graph.initializers.values()
        constants += [n.outputs[0] for n in graph if n.op_type == "Constant"]
    for value, bad in zip(constants, spread(_count_bad, constants), strict=True):
        if bad and not _is_fill(value):
            raise _not_finite(value, bad)


def _count_bad(value: ir.Value) -> int:
    """The number of NaN and infinite numbers of a float constant. Floats of 8 bits saturate.

    In every IEEE format these are the numbers whose exponent is all ones. So their bits without the
    sign are at least those of infinity.
    """
    tensor = _constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth <= 8:
        return 0
    unsigned = np.dtype(f"u{tensor.dtype.bitwidth // 8}")
    infinity = np.array(np.inf, tensor.dtype.numpy()).view(unsigned)[()]
    magnitude = unsigned.type(np.iinfo(unsigned).max >> 1)
    return sum(
        int(np.count_nonzero((block.view(unsigned) & magnitude) >= infinity))
        for block in blocks(tensor, _BLOCK_BYTES)
    )


def _is_fill(value: ir.Value) -> bool:
    tensor = _constant_tensor(value)
    assert tensor is not None
    readers = {node.op_type for node in _readers(value)}
    if not readers.isdisjoint(_PARAMETRIC):
        return False
    return (bool(readers) and readers <= {*_CHOOSING}) or all(
        bool((~np.isfinite(block) | (block == 0)).all()) for block in blocks(tensor, _BLOCK_BYTES)
    )


def _readers(value: ir.Value) -> set[ir.Node]:
    """The nodes that read the numbers of a value, also transposed or in another dtype."""
    found: set[ir.Node] = set()
    for node in value.consumers():
        moved = node.op_type in _TRANSPARENT
        found |= _readers(node.outputs[0]) if moved else {node}
    return found


def _not_finite(value: ir.Value, bad: int) -> InputRefused:
    users = ", ".join(sorted({str(n.name) for n in _readers(value)})[:3]) or "nothing"
    tensor = _constant_tensor(value)
    size = tensor.size if tensor is not None else bad
    return InputRefused(
        f"{bad} of {size} numbers are NaN or infinite (used by {users})",
        where=f"tensor {value.name!r}",
        hint="the checkpoint is damaged or training diverged; export a sound one. Fills that "
        "torch.where chooses may be NaN or infinite",
    )


def _constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    if value.is_graph_input():
        return None  # an initializer that is also an input is only a default
    if value.is_initializer():
        return value.const_value
    return ir.convenience.get_const_tensor(value)
