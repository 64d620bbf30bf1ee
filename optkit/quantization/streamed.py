"""Weight-only quantization of a model larger than memory: codes are computed while they are saved.

    w (data file) ── rows ──► scale, codes = round_to_nearest(block of rows) ──► data file

For schemes that need no data, in which the numbers of one weight follow from that weight alone. The
codes and scales are those that `decide` finds and `qdq.apply` writes; only nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.assignment import Assignment
from optkit.errors import located
from optkit.precision import NumberFormat
from optkit.quantization import formats, operands
from optkit.quantization.blocks import fitting_block
from optkit.quantization.qdq import QuantizedNode, QuantLog
from optkit.quantization.rtn import Quantized, round_to_nearest
from optkit.quantization.scales import Search
from optkit.quantization.sites import Rules
from optkit.recipe import Quantization

_UNSIMULATED = "too large to be written a second time: there is no FP32 simulation of this graph"
_NUMBERS = 1 << 20  # of a weight that are quantized at a time
_SEARCH: dict[str, Search] = {"rtn": "absmax", "auto": "mse", "mse": "mse"}


def is_for(
    model: ir.Model,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    learned: bool = False,
) -> bool:
    """Whether the planned weights are so large that they lie in data files, and all are quantized
    by a scheme that can go block by block: integer codes, no data, no solver. `learned`: second
    moments are known, which "auto" solves with."""
    if settings.weights == "auto" and learned:
        return False
    planned = assignment.quantized()
    weights = {_constant(node) for node in model.graph if node.name in planned}
    formats_ = [rules[name].weight for name in set(planned.values())]
    return (
        sum(w.const_value.nbytes for w in weights if w.const_value) >= graph.INLINE_LIMIT
        and settings.weights in _SEARCH
        and all(rules[name].activation is None for name in planned.values())
        and all(fmt.is_integer and fmt.granularity == "block" for fmt in formats_)
    )


def quantize(
    source: Path,
    out: Path,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    carrier: np.dtype | type,
) -> QuantLog:
    """The carrier graph in file `source`, quantized into the new file `out`, whatever its size.

    Raises InputRefused for a weight that is not finite or a graph that is not valid.
    """
    model = graph.load(source)
    made = apply(model, assignment, rules, settings, carrier=carrier)
    graph.save(model, out)
    graph.check(out)
    return replace(made.log(), warnings=(_UNSIMULATED,))


@dataclass
class Streaming:
    """What `apply` put into the graph. `log` is known when the graph has been saved."""

    nodes: dict[str, tuple[str, str, _Weight]] = field(default_factory=dict)

    def log(self) -> QuantLog:
        told = {
            name: QuantizedNode(op, precision, weight.span, weight.format.block_size, None)
            for name, (op, precision, weight) in self.nodes.items()
        }
        weights = {id(weight): weight for _, _, weight in self.nodes.values()}.values()
        return QuantLog(told, {}, sum(weight.clamped for weight in weights), ())


def apply(
    model: ir.Model,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    carrier: np.dtype | type,
) -> Streaming:
    """Put DequantizeLinear in front of the assigned nodes of the carrier graph, in place, on codes
    that `graph.save` computes. A weight that is not finite raises InputRefused then."""
    planned = assignment.quantized()
    search = _SEARCH[settings.weights]
    names = graph.value_names(model)
    done: dict[tuple[ir.Value, NumberFormat, int], tuple[_Weight, ir.Value]] = {}
    made = Streaming()
    first = model.graph[0]
    for node in [node for node in model.graph if node.name in planned]:
        precision = planned[str(node.name)]
        constant = _constant(node)
        fmt = rules[precision].weight
        fmt = replace(fmt, block_size=fitting_block(node, rules[precision], settings.block_size))
        axis = operands.summed_axis(node) ^ operands.is_turned(node)
        if (constant, fmt, axis) not in done:
            weight = _Weight(constant, fmt, axis, np.dtype(carrier), search)
            done[constant, fmt, axis] = weight, _dequantize(model.graph, first, weight, names)
        weight, value = done[constant, fmt, axis]
        _read(node, constant, value, names)
        made.nodes[str(node.name)] = node.op_type, precision, weight
    for constant, *_ in done:
        if not constant.uses() and not constant.is_graph_output():
            model.graph.initializers.pop(str(constant.name), None)
    return made


@dataclass(eq=False)
class _Weight:
    """A stored matrix, and what has been seen of its scales."""

    constant: ir.Value
    format: NumberFormat
    axis: int  # that blocks run along
    carrier: np.dtype
    search: Search
    span: tuple[float, float] = (0.0, 0.0)
    clamped: int = 0

    def tensors(self, names: set[str]) -> list[ir.TensorProtocol]:
        """Codes, scales and zero points."""
        shape = tuple(self._tensor.shape.numpy())
        block = self.format.block_size
        assert block is not None
        scales = tuple(-(-n // block) if i == self.axis else n for i, n in enumerate(shape))
        codes = ir.DataType.from_numpy(np.dtype(formats.storage(self.format)))
        kinds = (
            ("quantized", codes, shape),
            ("scale", ir.DataType.from_numpy(self.carrier), scales),
            ("zero_point", codes, scales),
        )
        forms = [
            graph.Form(graph.claim_name(f"{self.constant.name}_{what}", names), dtype, dims)
            for what, dtype, dims in kinds
        ]
        return graph.computed(forms, self._pieces)

    def _pieces(self) -> Iterator[tuple[np.ndarray, ...]]:
        block, (_, columns) = self.format.block_size, self._tensor.shape.numpy()
        assert block is not None
        rows = max(_NUMBERS // columns // block, 1) * block
        self.span, self.clamped = (np.inf, 0.0), 0
        with located(f"weight {self.constant.name!r}"):
            for found in graph.spread(self._quantize, graph.rows(self._tensor, rows)):
                scale = found.scale.scale
                parts = (found.codes, scale.astype(self.carrier), found.scale.zero_point)
                self.clamped += found.scale.clamped
                self.span = (
                    min(self.span[0], float(scale.min())),
                    max(self.span[1], float(scale.max())),
                )
                yield tuple(part if self.axis == 0 else part.T for part in parts)

    def _quantize(self, rows: np.ndarray) -> Quantized:
        held = rows.astype(self.carrier, copy=False)
        by_columns = held if self.axis == 0 else held.T
        return round_to_nearest(by_columns, self.format, self.carrier, search=self.search)

    @property
    def _tensor(self) -> ir.TensorProtocol:
        assert self.constant.const_value is not None
        return self.constant.const_value


def _dequantize(main: ir.Graph, first: ir.Node, weight: _Weight, names: set[str]) -> ir.Value:
    parts = [graph.add_tensor(main, part) for part in weight.tensors(names)]
    name = graph.claim_name(f"{weight.constant.name}_dequantized", names)
    attributes = {"axis": weight.axis, "block_size": weight.format.block_size}
    node = ir.node("DequantizeLinear", parts, attributes, name=name)
    result = node.outputs[0]
    result.name, result.type, result.shape = name, parts[1].type, weight.constant.shape
    main.insert_before(first, node)
    return result


def _read(node: ir.Node, constant: ir.Value, value: ir.Value, names: set[str]) -> None:
    """Let the node read `value` for the constant, through Transposes of its own (if any)."""
    found = graph.constant_weight(node)
    assert found is not None and node.graph is not None
    chain: list[ir.Node] = []
    walk = node.inputs[found[0]]
    while walk is not None and walk is not constant:
        producer = walk.producer()
        assert producer is not None
        if producer.op_type == "Transpose":
            chain.append(producer)
        walk = producer.inputs[0]
    for transpose in reversed(chain):
        name = graph.claim_name(f"{value.name}_transposed", names)
        copy = ir.Node("", "Transpose", [value], transpose.attributes.values(), name=name)
        copy.outputs[0].name, copy.outputs[0].type = name, value.type
        copy.outputs[0].shape = transpose.outputs[0].shape
        node.graph.insert_before(node, copy)
        value = copy.outputs[0]
    node.replace_input_with(found[0], value)
    for left in chain:  # from the node upwards
        if not any(out.uses() or out.is_graph_output() for out in left.outputs):
            node.graph.remove(left, safe=True)


def _constant(node: ir.Node) -> ir.Value:
    found = graph.constant_weight(node)
    assert found is not None
    return found[1]
