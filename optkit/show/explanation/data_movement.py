"""Rules about kernels that compute nothing new: Q/DQ pairs that are not fused, layouts, casts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optkit.facts.documents.explanation import ExplainFinding, RecipeChange
from optkit.facts.timed_layers import TimedLayer
from optkit.show.explanation.quantization_gains import slow
from optkit.show.explanation.subject import Subject, connected
from optkit.show.explanation.words import advice, does, named, several

_AXES = ("Transpose", "ReorderInput", "ReorderOutput")
_REORDER = (
    "a Reorder stands between a convolution, which has its own layout here, and an operator that "
    "does not know it"
)
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def unfused_pairs(subject: Subject) -> Iterator[ExplainFinding]:
    """Kernels that dequantize values and quantize them again, or dequantize them only for a sum.

    A Q/DQ pair costs nothing if the compiler fuses both nodes: Q into the kernel before it, DQ into
    a kernel that reads codes. In separate kernels, or in one kernel with nothing between them, they
    read and write the value once more, and prevent the fusion of the kernels around them. (A single
    DequantizeLinear after the last integer kernel is necessary, and no fault.)
    """
    apart = [timed for timed in subject.candidate if subject.kind(timed) == "convert"]
    groups = [group for group in connected(apart) if _is_idle(subject, group)]
    groups += [
        [timed]
        for timed in subject.candidate
        if subject.kind(timed) == "other" and _there_and_back(subject, timed)
    ]
    for group in groups:
        if _is_first_term(subject, group):
            continue
        pairs = tuple(n for timed in group for n in timed.layer.nodes if subject.op(n) in _PAIR)
        around = _around(subject, group)
        yield slow(
            subject,
            "unfused_pair",
            pairs,
            sum(timed.ms for timed in group),
            what=f"a Q/DQ pair is not fused: it runs in {several(len(group), 'separate kernel')}"
            + (f", before {named(around)}" if around else ""),
            why="the value is dequantized for a node that is not a product, so the compiler can "
            "fuse neither Q nor DQ into a neighbour",
            change=_without_pair(subject, pairs, around),
        )


def layout(subject: Subject) -> Iterator[ExplainFinding]:
    """Kernels that only move data: reshapes that copy, transposes, concatenations, casts.

    A precision changes their time only by the width of an element, so they limit the speedup
    (Amdahl's law). All that reorder axes are one finding, and so are places with the same
    operators, for example one in each block of a transformer.
    """
    for key, group in _moving(subject).items():
        group.sort(key=lambda timed: -timed.ms)
        ops = tuple(dict.fromkeys(op for timed in group for op in sorted(subject.ops(timed))))
        why = "moving data takes the same time in every precision of the same width"
        if {"ReorderInput", "ReorderOutput"} & set(ops):
            why += f"; {_REORDER}"
        nodes = tuple(dict.fromkeys(n for timed in group for n in timed.layer.nodes))
        yield slow(
            subject,
            "layout",
            nodes,
            sum(timed.ms for timed in group),
            what=f"{several(len(group), 'kernel')} only {does(len(group), 'move')} data"
            + (f" ({', '.join(ops)})" if ops else "")
            + _places(subject, group, nodes),
            why=why,
            change=advice(
                "keep one order of the axes through the model, so that it needs no transposes"
                if key is _AXES
                else "change the model so that it needs fewer copies"
            ),
        )


def _moving(subject: Subject) -> dict[tuple[str, ...], list[TimedLayer]]:
    """The kernels that only move data, by the operators at their place; `_AXES`: all those that
    reorder axes."""
    moving = [timed for timed in subject.candidate if subject.kind(timed) == "layout"]
    alike: dict[tuple[str, ...], list[TimedLayer]] = {}
    for group in connected(moving):
        ops = tuple(sorted({op for timed in group for op in subject.ops(timed)}))
        alike.setdefault(_AXES if set(_AXES) & set(ops) else ops, []).extend(group)
    return alike


def casts(subject: Subject) -> Iterator[ExplainFinding]:
    """Kernels that only cast: in an FP16 build at the borders of nodes that stay in FP32, in an
    FP32 build the casts of the model itself."""
    why = "the model itself casts here: this build uses no float type except FP32"
    change = advice("remove the cast from the model, or compute the value in the type that is read")
    if subject.baseline != "fp32":
        why = (
            "a value passes between FP16 and FP32 nodes; `cast` in the report says which nodes "
            "stay in FP32, and why"
        )
        change = advice("scale the values of the model into the range of FP16 (up to 65504)")
    casting = [
        timed
        for timed in subject.candidate
        if subject.ops(timed) == {"Cast"} and not timed.layer.products
    ]
    for group in connected(casting):
        nodes = tuple(dict.fromkeys(n for timed in group for n in timed.layer.nodes))
        yield slow(
            subject,
            "cast",
            nodes,
            sum(timed.ms for timed in group),
            what=f"{several(len(group), 'kernel')} only {does(len(group), 'cast')}: {named(nodes)}",
            why=why,
            change=change,
        )


def _places(subject: Subject, group: list[TimedLayer], nodes: tuple[str, ...]) -> str:
    """The nodes of these kernels; if they have none, those that read what the kernels write."""
    if nodes:
        return f": {named(nodes)}"
    readers = _around(subject, group)
    return f", before {named(readers)}" if readers else ""


def _is_idle(subject: Subject, group: list[TimedLayer]) -> bool:
    """Whether the kernels dequantize an activation only to quantize it again, or for a sum."""
    ops = {op for timed in group if timed.layer.inputs for op in subject.ops(timed)}
    summed = any(subject.op(node) == "Add" for node in _around(subject, group))
    return "DequantizeLinear" in ops and ("QuantizeLinear" in ops or summed)


def _is_first_term(subject: Subject, group: list[TimedLayer]) -> bool:
    """Whether the pair is the first of two terms: a Sub makes the second of the value and of its
    dequantized codes."""
    pair = {node for timed in group for node in timed.layer.nodes}
    read = [set(subject.nodes[node].reads) for node in pair if subject.op(node) == "QuantizeLinear"]
    rests = [
        set(subject.nodes[node].reads)
        for node in _around(subject, group)
        if subject.op(node) == "Sub"
    ]
    return any(pair & rest and value <= rest for rest in rests for value in read)


def _there_and_back(subject: Subject, timed: TimedLayer) -> bool:
    """Whether a kernel quantizes and dequantizes with nothing between, and exists only for this:
    the baseline has its other nodes inside products, and it reads no integer product."""
    nodes = set(timed.layer.nodes)
    codes = {node for node in nodes if subject.op(node) == "QuantizeLinear"}
    back = [node for node in nodes if subject.op(node) == "DequantizeLinear"]
    idle = any(codes & set(subject.nodes[node].reads) for node in back)
    return idle and not subject.apart_in_baseline & nodes and not _is_needed(subject, timed)


def _is_needed(subject: Subject, timed: TimedLayer) -> bool:
    """Whether the kernel reads what a layer with an integer product writes."""
    integer = [
        other.layer
        for other in subject.candidate
        if any(map(subject.has_landed, other.layer.products))
    ]
    written = {t.name for layer in integer for t in layer.outputs}
    return any(t.name in written for t in timed.layer.inputs)


def _around(subject: Subject, group: list[TimedLayer]) -> tuple[str, ...]:
    """The other nodes in the kernels of a pair; if there are none, the nodes that read it."""
    inside = [n for timed in group for n in timed.layer.nodes if subject.op(n) not in _PAIR]
    written = {t.name for timed in group for t in timed.layer.outputs}
    readers = [
        n
        for timed in subject.candidate
        if timed not in group
        for n in timed.layer.nodes
        if any(t.name in written for t in timed.layer.inputs)
    ]
    return tuple(dict.fromkeys(inside or readers))


def _without_pair(subject: Subject, pairs: Iterable[str], around: Iterable[str]) -> RecipeChange:
    """The change that removes a pair. Placement puts pairs on shortcuts (the value that is added to
    a product); any other pair that no product reads was already in the graph."""
    nodes = subject.nodes
    made, waiting = set(), list(pairs)
    while waiting:
        name = waiting.pop()
        if name in nodes and nodes[name].op in _PAIR:
            waiting += nodes[name].reads
        else:
            made.add(name)
    added = any(subject.op(node) == "Add" for node in around)
    if added and not made & subject.planned.keys():
        key = ("quantization", "placement", "residual_adds")
        return advice("keep the shortcut in float", {key: False})
    return advice("remove the pair from the graph: no product reads its codes")
