"""Islands of integer convolutions that are too small to pay for their borders.

An integer convolution saves time for each multiplication. At the border of an island, where floats
become codes or codes floats, every element is converted, and ONNX Runtime changes the layout as
well (integer convolutions read NHWC, float ones blocks of channels). A sum is free in a float
convolution and an operator of its own in integers. How long each takes is measured for each
instruction set (`KernelSpeeds`), so an island that costs more than it saves is known.

    float ── Q ──► Conv ──► Conv ──► Add ── DQ ──► float        an island of two convolutions
                                      ▲
    float ─────────── Q ──────────────┘                         three borders
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod

import onnx_ir as ir

from optkit.craft.quantization.placement.qdq_placement import tail
from optkit.craft.quantization.placement.weighted_nodes import computed, is_depthwise
from optkit.facts.placement import ConvKind, ConvSpeed, KernelSpeeds
from optkit.ground.statistics import Statistics

# Speeds are those of one core, and a conversion hardly uses a second one:
# docs/studies/cpu_speed.md
MARGIN = 1.5
_THIN = 16  # channels: of fewer in and out, ONNX Runtime's integer kernels compute the rest in vain
_Size = Callable[[ir.Value], int | None]
_KEEPS_CODES = frozenset({"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})


@dataclass
class Island:
    """`macs` and `results`: multiply-adds of its convolutions, and elements of their results, by
    their kind; `borders`: elements that are converted; `sums`: elements of the sums behind its
    convolutions. All per sample. `known`: all sizes are."""

    nodes: list[str] = field(default_factory=list)
    macs: Counter[ConvKind] = field(default_factory=Counter)
    results: Counter[ConvKind] = field(default_factory=Counter)
    borders: dict[ir.Value, int] = field(default_factory=dict)
    sums: dict[ir.Node, int] = field(default_factory=dict)
    known: bool = True

    def add(self, convolution: ir.Node, size: _Size) -> None:
        results, kind = size(convolution.outputs[0]), conv_kind(convolution)
        macs = _macs_per_result(convolution)
        self.known &= results is not None and macs is not None
        self.nodes.append(str(convolution.name))
        self.macs[kind] += (results or 0) * (macs or 0)
        self.results[kind] += results or 0
        self.sums |= {sum_: size(sum_.outputs[0]) or 0 for sum_ in _sums(convolution)}

    def add_border(self, value: ir.Value, size: _Size) -> None:
        elements = size(value)
        self.known &= elements is not None
        self.borders[value] = elements or 0

    def saved(self, speeds: KernelSpeeds) -> float:
        """Milliseconds that its convolutions save in integers, per sample on one core. Negative
        where they are slower."""
        kinds: dict[ConvKind, ConvSpeed] = {
            "conv": speeds.conv,
            "thin_conv": speeds.thin_conv or speeds.conv,
            "grouped_conv": speeds.grouped_conv,
            "depthwise_conv": speeds.depthwise_conv,
        }
        return sum(
            speed.saved_ms(self.macs[kind], self.results[kind]) for kind, speed in kinds.items()
        )

    def spent(self, speeds: KernelSpeeds) -> float:
        """Milliseconds that its borders and sums cost in integers, per sample on one core."""
        return sum(map(speeds.conversion.ms, self.borders.values())) + sum(
            map(speeds.sum.ms, self.sums.values())
        )


def islands(
    model: ir.Model, integer: Collection[str], statistics: Statistics | None = None
) -> list[Island]:
    """The islands of the convolutions with these names, at the sizes in the graph, or on average in
    the calibration samples of which there are `statistics`. A convolution whose sizes are not known
    (an image of any size) makes its island unknown, which is left out."""
    size = partial(_elements, statistics=statistics)
    convolutions = {node: node for node in model.graph if node.name in integer}
    joined = dict(convolutions)

    def root(node: ir.Node) -> ir.Node:
        while joined[node] is not node:
            node = joined[node]
        return node

    borders: list[tuple[ir.Node, ir.Value]] = []
    for node in convolutions:
        for value in _read(node):
            makers = _makers(value, joined)
            for maker in makers or ():
                joined[root(maker)] = root(node)
            if makers is None:
                borders.append((node, value))
        borders += [(node, value) for value in _left(node, joined)]
    found: dict[ir.Node, Island] = defaultdict(Island)
    for node in convolutions:
        found[root(node)].add(node, size)
    for node, value in borders:
        found[root(node)].add_border(value, size)
    return [island for island in found.values() if island.known]


def pays(island: Island, speeds: KernelSpeeds) -> bool:
    """Whether integers save by a margin more than they cost."""
    return island.saved(speeds) > MARGIN * island.spent(speeds)


def float_results(model: ir.Model, integer: Collection[str]) -> set[ir.Value]:
    """The results of integer convolutions (with these names) of which floats are made."""
    convolutions = {node for node in model.graph if node.name in integer}
    return {value for node in convolutions for value in _left(node, convolutions)}


def slower_in_floats(
    node: ir.Node, speeds: KernelSpeeds | None, statistics: Statistics | None = None
) -> float:
    """Nanoseconds per sample that a convolution takes longer in floats where its result is read as
    floats. Without speeds, or for sizes that are not known, multiply-adds of one result."""
    island, size = Island(), partial(_elements, statistics=statistics)
    island.add(node, size)
    island.add_border(tail(node), size)
    if speeds is None or not island.known:
        return float(_macs_per_result(node) or 0)
    return 1e6 * (island.saved(speeds) - island.spent(speeds))


def conv_kind(node: ir.Node) -> ConvKind:
    if is_depthwise(node):
        return "depthwise_conv"
    if node.attributes.get_int("group", 1) > 1:
        return "grouped_conv"
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    return "thin_conv" if shape is not None and max(shape.numpy()[:2]) < _THIN else "conv"


def between_codes(
    model: ir.Model, integer: Collection[str], candidates: Collection[str]
) -> set[str]:
    """Those of the candidates (a part of `integer`) that read codes of convolutions in `integer`
    and whose codes such convolutions read."""
    inside = {node for node in model.graph if node.name in integer}
    kept = {node for node in inside if node.name in candidates}
    while outside := {
        node
        for node in kept
        if _makers(next(_read(node)), inside) is None or any(_left(node, inside))
    }:
        kept -= outside
        inside -= outside
    return {str(node.name) for node in kept}


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """What an integer convolution reads in codes: its input, and the other operand of a sum that
    fuses with it."""
    assert node.inputs[0] is not None
    yield node.inputs[0]
    for sum_ in _sums(node):
        yield from (v for v in sum_.inputs if v is not None and v is not tail(node))


def _sums(node: ir.Node) -> list[ir.Node]:
    readers = list(tail(node).consumers())
    alone = len(readers) == 1 and readers[0].op_type == "Add" and len(computed(readers[0])) == 2
    return readers if alone else []


def _makers(value: ir.Value, integer: Collection[ir.Node]) -> list[ir.Node] | None:
    """The convolutions whose codes a value is made of; None if it is made of floats."""
    node = value.producer()
    if node is None:
        return None
    if node in integer:
        return [node]
    operands = computed(node)
    if node.op_type in ("Relu", "Clip", *_KEEPS_CODES):
        return _makers(operands[0], integer)
    if node.op_type in ("Add", "Concat"):
        made = [_makers(operand, integer) for operand in operands]
        known = [maker for makers in made if makers is not None for maker in makers]
        every = all(makers is not None for makers in made)
        # the other operand of a sum is converted for it
        return known if known and (every or node.op_type == "Add") else None
    return None


def _left(node: ir.Node, integer: Collection[ir.Node]) -> Iterator[ir.Value]:
    """The result of the convolution, or of its sum, if a float operator reads it."""
    sums = _sums(node)
    value = tail(sums[0]) if sums else tail(node)
    if not _stays_in_codes(value, integer):
        yield value


def _stays_in_codes(value: ir.Value, integer: Collection[ir.Node]) -> bool:
    return not value.is_graph_output() and all(
        _takes_codes(reader, integer) for reader in value.consumers()
    )


def _takes_codes(node: ir.Node, integer: Collection[ir.Node]) -> bool:
    """Whether the operator reads codes. A concatenation, or a sum that no convolution fuses with,
    gets codes as its result, and so reads codes, only for operators after it that read codes."""
    if node in integer or node.op_type in ("MatMul", "Gemm"):
        return True
    if node.op_type in _KEEPS_CODES:
        return _stays_in_codes(node.outputs[0], integer)
    makers = None
    if node.op_type in ("Add", "Concat"):
        makers = _makers(node.outputs[0], integer)
    if makers is None:
        return False
    return any(node in _sums(maker) for maker in makers) or _stays_in_codes(tail(node), integer)


def _macs_per_result(node: ir.Node) -> int | None:
    weight = node.inputs[1]
    if weight is None or weight.shape is None:
        return None
    return prod(int(each) for each in weight.shape.numpy()[1:])


def _elements(value: ir.Value, statistics: Statistics | None) -> int | None:
    """Of one sample; None if a size other than that of the batch is not known."""
    if value.shape is not None:
        sizes = [size for size in list(value.shape)[1:] if isinstance(size, int)]
        if len(sizes) == len(value.shape) - 1:
            return prod(sizes)
    seen = None if statistics is None else statistics.values.get(str(value.name))
    if statistics is None or seen is None or not seen.count:
        return None
    return (seen.count + seen.excluded) // statistics.samples
