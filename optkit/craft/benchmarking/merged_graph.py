"""Two graphs with the same inputs in one: the nodes of the second under new names, and copies of
its layers that read the values of the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.ground import graph

OURS = "compared/"  # the prefix of added names

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_CARRIES = frozenset(
    {_QUANTIZE, _DEQUANTIZE, "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool",
     "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)  # fmt: skip  # operators that compute the same on codes: what a product reads through them
_SUBGRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

_ENDS = {  # the codes at which QuantizeLinear saturates (ONNX)
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
    ir.DataType.FLOAT8E4M3FN: (-448, 448),
}


@dataclass(frozen=True)
class MergedGraph:
    """The candidate inside the graph of the reference: its nodes and values by their former
    names."""

    nodes: Mapping[str, ir.Node]
    values: Mapping[str, ir.Value]
    names: Mapping[ir.Value, str]

    def readers(self, quantize: ir.Node) -> tuple[str, ...]:
        """Names of the nodes that read the output of the pair; for a pair before another pair, the
        readers of the last one."""
        nodes = [node for half in dequantized(quantize) for node in half.outputs[0].consumers()]
        names = [
            name
            for node in nodes
            for name in (self.readers(node) if _is_half(node) else (own_name(node),))
        ]
        return tuple(dict.fromkeys(names))

    def reaches(self, quantize: ir.Node, products: Collection[str]) -> bool:
        """Whether one of these nodes reads the output of the pair, directly or after operators that
        only move data."""
        waiting, seen = [*dequantized(quantize)], set[ir.Node]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if own_name(node) in products:
                return True
            if node.op_type in _CARRIES:
                waiting += [use for value in node.outputs for use in value.consumers()]
        return False


def merge(model: ir.Model, other: ir.Model, taken: set[str]) -> MergedGraph:
    """Move the nodes of `other` behind those of `model`, under new names. `taken`: names of values
    that are in use."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    values = by_name(other)
    for value in other.graph.inputs:
        own = inputs.get(str(value.name))
        if own is None or own.dtype != value.dtype:
            raise InputRefused("the reference has another", where=f"input {value.name!r}")
        value.replace_all_uses_with(own)
        values[str(value.name)] = own
    nodes = {str(node.name): node for node in other.graph}
    axes = {dim for value in inputs.values() for dim in value.shape or ()}
    for one in ir.convenience.create_value_mapping(other.graph).values():
        if not one.is_graph_input() or one.graph is not other.graph:
            one.name = graph.claim_name(f"{OURS}{one.name}", taken)
            one.shape = _apart(one.shape, axes)
    for node in other.graph.all_nodes():
        node.name = f"{OURS}{node.name}"
    other.graph.outputs.clear()
    held = list(other.graph.initializers.values())
    other.graph.initializers.clear()
    other.graph.remove(list(nodes.values()))
    for value in held:
        model.graph.register_initializer(value)
    model.graph.extend(nodes.values())
    model.opset_imports.update(other.opset_imports)
    model.ir_version = max(model.ir_version, other.ir_version)
    return MergedGraph(nodes, values, {value: name for name, value in values.items()})


def _apart(shape: ir.Shape | None, axes: Collection[int | ir.SymbolicDim]) -> ir.Shape | None:
    """The shape without the names of sizes that the inputs do not give: how many numbers are not
    zero differs between the two graphs, and ONNX Runtime reuses buffers by names of sizes."""
    if shape is None:
        return None
    return ir.Shape([d if isinstance(d, int) or d in axes else None for d in shape])


class Copies:
    """Copies of the candidate's layers that read the values of the reference. `taken`: names of
    values that are in use."""

    def __init__(
        self,
        model: ir.Model,
        theirs: MergedGraph,
        computed: Mapping[str, ir.Value],
        taken: set[str],
    ) -> None:
        self._model, self._theirs, self._computed = model, theirs, computed
        self._taken = taken
        self._fixed = constants(model)
        self._made: dict[bool, dict[ir.Value, ir.Value]] = {True: {}, False: {}}

    def left_by(self, node: ir.Node) -> str | None:
        """The first value from the node on that the reference computes too."""
        value = node.outputs[0]
        while self._of_reference(value) is None:
            uses = value.consumers()
            if len(uses) != 1 or not uses[0].outputs:
                return None
            value = uses[0].outputs[0]
        return self._theirs.names[value]

    def layer(self, tensor: str, *, quantized: bool) -> ir.Value:
        """The value if only this layer is quantized. `quantized`: its pairs too, not only the codes
        of its weight."""
        return self._copied(self._theirs.values[tensor], quantized)

    def quantized(self) -> list[tuple[ir.Node, str, bool]]:
        """The QuantizeLinear nodes of pairs on values of the reference, the names of these values,
        and whether the value comes from another pair. (Codes that are an output, or that an integer
        operator reads, were in the graph before.)"""
        found: list[tuple[ir.Node, str, bool]] = []
        for node in self._theirs.nodes.values():
            if node.op_type != _QUANTIZE or not dequantized(node):
                continue
            value, again = node.inputs[0], False
            while value is not None and (before := _before_pair(value)) is not None:
                value, again = before, True
            if value is not None and self._of_reference(value) is not None:
                found.append((node, self._theirs.names[value], again))
        return found

    def pair(self, quantize: ir.Node) -> ir.Value:
        """The output of the pair for the reference's value."""
        return self._copied(dequantized(quantize)[0].outputs[0], True)

    def reads(self, tensor: str) -> tuple[str, ...]:
        """The values that the layer reads through a pair."""
        found: dict[str, None] = {}
        waiting = list(_inputs(self._theirs.values[tensor].producer()))
        while waiting:
            value = waiting.pop()
            node = value.producer()
            if node is None or value in self._fixed or self._of_reference(value) is not None:
                continue
            waiting += _inputs(node)
            if node.op_type == _QUANTIZE and node.inputs[0] is not None:
                found.setdefault(self._theirs.names[node.inputs[0]])
        return tuple(found)

    def _of_reference(self, value: ir.Value) -> ir.Value | None:
        name = self._theirs.names.get(value)
        return None if value in self._fixed else self._computed.get(str(name))

    def _copied(self, value: ir.Value, quantized: bool) -> ir.Value:
        def stands_for(one: ir.Value) -> ir.Value | None:
            if one in self._fixed:
                return one
            if not quantized and (source := _before_pair(one)) is not None:
                return self._of_reference(source)
            return self._of_reference(one)

        nodes: list[ir.Node] = []
        prefix = "alone/" if quantized else "weights/"
        found = copied(value, stands_for, nodes, self._made[quantized], prefix, self._taken)
        self._model.graph.extend(nodes)
        return found


def copied(
    value: ir.Value,
    stands_for: Callable[[ir.Value], ir.Value | None],
    nodes: list[ir.Node],
    made: dict[ir.Value, ir.Value],
    prefix: str,
    taken: set[str],
) -> ir.Value:
    """A copy of the node that computes the value, and of the nodes before it, down to values that
    something `stands_for`. The new nodes are added to `nodes` in order. Their names begin with
    `prefix` and are none of `taken`, as those of nodes are: two layers may read a value that only
    their own graph has. `made`: the copies of earlier calls."""
    if value in made:
        return made[value]
    node = value.producer()
    if node is None:
        raise InputRefused("no node of the reference computes it", where=f"tensor {value.name!r}")
    inputs = [
        None
        if one is None
        else stands_for(one) or copied(one, stands_for, nodes, made, prefix, taken)
        for one in node.inputs
    ]
    outputs = [
        ir.Value(
            name=graph.claim_name(f"{prefix}{one.name}", taken), shape=one.shape, type=one.type
        )
        for one in node.outputs
    ]
    nodes.append(
        ir.Node(
            node.domain,
            node.op_type,
            inputs,
            node.attributes.values(),
            outputs=outputs,
            name=graph.claim_name(f"{prefix}{node.name}", taken),
        )
    )
    made |= dict(zip(node.outputs, outputs, strict=True))
    return made[value]


def _is_half(node: ir.Node) -> bool:
    return node.op_type == _QUANTIZE and bool(dequantized(node))


def own_name(node: ir.Node) -> str:
    return str(node.name).removeprefix(OURS)


def dequantized(quantize: ir.Node) -> list[ir.Node]:
    """The DequantizeLinear nodes that read the codes of a QuantizeLinear."""
    return [use for use in quantize.outputs[0].consumers() if use.op_type == _DEQUANTIZE]


def range_of(quantize: ir.Node) -> tuple[float, float] | None:
    """The values of the lowest and the highest code of a pair; None without a single known
    scale."""
    scale = graph.array(quantize.inputs[1])
    zero = graph.array(quantize.inputs[2]) if len(quantize.inputs) > 2 else None
    ends = _ENDS.get(ir.DataType.UINT8 if zero is None else ir.DataType.from_numpy(zero.dtype))
    if scale is None or scale.size != 1 or ends is None:
        return None
    offset = 0.0 if zero is None else float(zero.astype(np.float64).reshape(()))
    low, high = ((end - offset) * float(scale.reshape(())) for end in ends)
    return low, high


def by_name(model: ir.Model) -> dict[str, ir.Value]:
    """The values of the main graph by name."""
    return dict(ir.convenience.create_value_mapping(model.graph, include_subgraphs=False))


def constants(model: ir.Model) -> set[ir.Value]:
    """The values that do not depend on any input."""
    found = set(model.graph.initializers.values())
    for node in model.graph:
        read = list(_inputs(node))
        closed = not any(a.type in _SUBGRAPHS for a in node.attributes.values())
        if closed and all(value in found for value in read):
            found |= set(node.outputs)
    return found


def _before_pair(value: ir.Value) -> ir.Value | None:
    """The value before the Q/DQ pair that computes this value; None if there is no pair."""
    node = value.producer()
    if node is None or node.op_type != _DEQUANTIZE or node.inputs[0] is None:
        return None
    before = node.inputs[0].producer()
    return before.inputs[0] if before is not None and before.op_type == _QUANTIZE else None


def _inputs(node: ir.Node | None) -> list[ir.Value]:
    return [] if node is None else [value for value in node.inputs if value is not None]
