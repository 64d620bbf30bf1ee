"""Cuts a graph into consecutive parts, so that only the weights of one part are in memory.

    inputs ──► part 0 ── crossing values ──► part 1 ── crossing values ──► … ──► outputs

Small values that follow from the inputs (masks, positions) do not cross: every part that reads one
computes it again. The same holds for the layout operators and casts between a stored weight and its
product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import onnx_ir as ir

from optkit.facts.errors import InputRefused, OptkitError
from optkit.ground.graph.nodes import constant_weight, is_constant

_LITTLE = 4 << 20  # bytes of constants from which a value that is computed again may be computed


class GraphPart(NamedTuple):
    """Consecutive nodes. `reads`: names of the values of earlier parts that this part or later ones
    read. `leaves`: names of the values of this part and earlier ones that later parts read."""

    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    leaves: tuple[str, ...]


def beginning(model: ir.Model, count: int) -> ir.Model:
    """A copy with the first `count` nodes; its outputs are the values that none of these reads."""
    copy = model.clone()
    nodes = list(copy.graph)
    kept, others = set(nodes[:count]), nodes[count:]
    values = [value for node in nodes[:count] for value in node.outputs]
    copy.graph.outputs[:] = [v for v in values if v.name and not kept.intersection(v.consumers())]
    copy.graph.remove(others, safe=True)
    return copy


def cut(model: ir.Model, places: Iterable[int]) -> list[GraphPart]:
    """The parts between the borders before the nodes with the numbers `places` of the main
    graph."""
    nodes = list(model.graph)
    borders = sorted({0, len(nodes), *(p for p in places if 0 <= p <= len(nodes))})
    crossing = dict(zip(borders, _crossing(nodes, borders), strict=True))
    return [
        GraphPart(
            tuple(str(node.name) for node in nodes[start:stop]),
            tuple(str(value.name) for value in crossing[start]),
            tuple(str(value.name) for value in crossing[stop]),
        )
        for start, stop in pairwise(borders)
    ]


def places(model: ir.Model, most: int) -> list[int]:
    """Borders between parts. Each part reads at most `most` bytes of weights, or has one node that
    reads more. A border is the place with the fewest crossing values within the last half of the
    bytes of its part."""
    nodes = list(model.graph)
    costs = _costs(nodes)
    counts = [len(values) for values in _crossing(nodes, range(len(nodes) + 1))]
    cuts, start = [], 0
    while start < len(nodes):
        candidates, held = [], 0
        for place in range(start, len(nodes)):
            if held and held + costs[place] > most:
                break
            held += costs[place]
            candidates.append((place + 1, held))
        if candidates[-1][0] == len(nodes):
            break
        late = [place for place, size in candidates if size >= held / 2]
        start = min(late, key=lambda place: (counts[place], -place))
        cuts.append(start)
    return cuts


def between(model: ir.Model, reads: Collection[str], wanted: Sequence[str]) -> ir.Model:
    """A copy of the graph that computes the values `wanted` from the inputs of the graph and from
    the values `reads`, which become inputs.

    Raises OptkitError for a name that the graph does not have, InputRefused for a value of unknown
    type.
    """
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    for name in (*reads, *wanted):
        if name not in values:
            raise OptkitError(f"the graph has no value {name!r}", where="part")
        if values[name].type is None:
            raise InputRefused("its type is not known", where=f"tensor {name!r}")
    inputs = [*model.graph.inputs, *(values[name] for name in reads)]
    outputs = [values[name] for name in dict.fromkeys(wanted)]
    if outputs:
        part = ir.convenience.extract(model.graph, inputs, outputs)
    else:  # which `extract` refuses
        versions = model.graph.opset_imports
        part = ir.GraphView(inputs, [], nodes=[], opset_imports=versions, name="part").clone()
    return ir.Model(part, ir_version=model.ir_version, metadata_props=dict(model.metadata_props))


def _crossing(nodes: Sequence[ir.Node], borders: Iterable[int]) -> Iterator[list[ir.Value]]:
    """For each border, the values that are computed before it (in rising order) and read after
    it."""
    again = _made_anew(nodes)
    made_at: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(nodes):
        if node not in again:
            made_at |= dict.fromkeys(node.outputs, index)
    for index, node in enumerate(nodes):
        last |= {value: index for value in _reads(node) if value in made_at}
    for border in borders:
        yield [value for value, at in made_at.items() if at < border <= last.get(value, -1)]


def _made_anew(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """The nodes that every part repeats if it needs them: nodes that depend only on constants, and
    nodes without a weight that depend on inputs and on small constants."""
    bytes_of = _Bytes()
    recomputed: set[ir.Node] = set()
    for node in nodes:
        read = list(_reads(node))
        known = [value for value in read if bytes_of.is_known(value)]
        producers = [value.producer() for value in read if value not in known]
        if any(producer is not None and producer not in recomputed for producer in producers):
            continue
        little = sum(map(bytes_of, known)) <= _LITTLE and constant_weight(node) is None
        if len(known) == len(read) or little:
            recomputed.add(node)
        if len(known) == len(read):
            bytes_of.add(node, read)
    return recomputed


def _costs(nodes: Sequence[ir.Node]) -> list[int]:
    """Bytes of stored constants that each node reads; zero for a node that depends only on
    constants."""
    bytes_of = _Bytes()
    costs = []
    for node in nodes:
        read = list(_reads(node))
        known = [value for value in read if bytes_of.is_known(value)]
        leads = len(known) == len(read)
        if leads:
            bytes_of.add(node, read)
        costs.append(0 if leads else sum(map(bytes_of, known)))
    return costs


class _Bytes:
    """Bytes of the constants from which a value is computed; None if it depends on anything
    else."""

    def __init__(self) -> None:
        self._made: dict[ir.Value, int] = {}

    def __call__(self, value: ir.Value) -> int:
        if value in self._made:
            return self._made[value]
        return 0 if value.const_value is None else value.const_value.nbytes

    def is_known(self, value: ir.Value) -> bool:
        return value in self._made or is_constant(value)

    def add(self, node: ir.Node, read: Iterable[ir.Value]) -> None:
        self._made |= dict.fromkeys(node.outputs, sum(map(self, read)))


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the node reads, also in its subgraphs."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = [attribute.as_graph()]
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies = list(attribute.as_graphs())
        else:
            continue
        for body in bodies:
            inner_values = {v for inner in body for v in inner.outputs} | set(body.inputs)
            inner_values |= set(body.initializers.values())
            yield from (v for inner in body for v in _reads(inner) if v not in inner_values)
            yield from (v for v in body.outputs if v not in inner_values)
