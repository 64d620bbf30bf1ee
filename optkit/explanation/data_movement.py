"""Rules about kernels that compute nothing new: Q/DQ pairs of their own, layouts, casts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optkit.explanation.finding import Change, Finding
from optkit.explanation.layer_times import slow
from optkit.explanation.subject import Subject, connected
from optkit.explanation.words import named, several
from optkit.steps.attribute import TimedLayer

_PAIR = ("QuantizeLinear", "DequantizeLinear")


def unfused_pairs(subject: Subject) -> Iterator[Finding]:
    """Kernels that turn codes into floats and back, or for a sum.

    A Q/DQ pair costs nothing where compilers absorb both halves: Q into the kernel in front, DQ
    into one that reads codes. Left in kernels of their own, or in one kernel with nothing between
    them, they read and write the value once more, and keep the kernels around from joining. (Where
    integers end for good, one DequantizeLinear is what it takes.)
    """
    apart = [one for one in subject.candidate if subject.kind(one) == "convert"]
    groups = [group for group in connected(apart) if _is_idle(subject, group)]
    groups += [[one] for one in subject.candidate
               if subject.kind(one) == "other" and _there_and_back(subject, one)]  # fmt: skip
    for group in groups:
        pairs = tuple(n for one in group for n in one.layer.nodes if subject.op(n) in _PAIR)
        around = _around(subject, group)
        yield slow(
            subject, "unfused_pair", pairs, sum(one.ms for one in group),
            what=f"a Q/DQ pair runs in {several(len(group), 'kernel')} of its own"
            + (f", in front of {named(around)}" if around else ""),
            why="codes become floats for a reader that does not multiply them; neither half of the "
            "pair is absorbed by a neighbour",
            change=_without_pair(subject, pairs, around),
        )  # fmt: skip


def layout(subject: Subject) -> Iterator[Finding]:
    """Kernels that only move: reshapes that copy, transposes, concatenations, casts.

    No precision makes them faster but by the width of an element. Whoever multiplies less
    (Amdahl's law) is bound by them.
    """
    moving = [one for one in subject.candidate if subject.kind(one) == "layout"]
    for group in connected(moving):
        nodes = tuple(dict.fromkeys(n for one in group for n in one.layer.nodes))
        ops = sorted({op for one in group for op in subject.ops(one)})
        yield slow(
            subject, "layout", nodes, sum(one.ms for one in group),
            what=f"data is only moved in {several(len(group), 'kernel')}"
            + (f" ({', '.join(ops)})" if ops else "") + (f": {named(nodes)}" if nodes else ""),
            why="moving bytes takes the same time in every precision of that width",
            change=Change("write the model so that layouts meet: fewer transposes and copies"),
        )  # fmt: skip


def casts(subject: Subject) -> Iterator[Finding]:
    """Kernels that only cast: in a build with an FP16 carrier the borders of what was left in FP32,
    in one that computes in FP32 casts of the model's own."""
    why = "the model casts here; nothing in this build computes in another float than FP32"
    change = Change("take the cast out of the model, or give it the type that is read")
    if subject.baseline != "fp32":
        why = (
            "a value crosses between FP16 and FP32; the report's `cast` says which nodes were left "
            "in FP32, and why"
        )
        change = Change("scale the model's values into the reach of FP16 (65504)")
    casting = [one for one in subject.candidate
               if subject.ops(one) == {"Cast"} and not one.layer.products]  # fmt: skip
    for group in connected(casting):
        nodes = tuple(dict.fromkeys(n for one in group for n in one.layer.nodes))
        yield slow(
            subject, "cast", nodes, sum(one.ms for one in group),
            what=f"{several(len(group), 'kernel')} only cast: {named(nodes)}", why=why,
            change=change,
        )  # fmt: skip


def _is_idle(subject: Subject, group: list[TimedLayer]) -> bool:
    """Whether conversions dequantize an activation only to quantize it again, or for a sum."""
    ops = {op for one in group if one.layer.inputs for op in subject.ops(one)}
    summed = any(subject.op(node) == "Add" for node in _around(subject, group))
    return "DequantizeLinear" in ops and ("QuantizeLinear" in ops or summed)


def _there_and_back(subject: Subject, timed: TimedLayer) -> bool:
    """Whether a kernel quantizes and dequantizes with nothing between, and would not be there
    without: the baseline has all else inside its products, and no integer product needs it."""
    nodes = set(timed.layer.nodes)
    codes = {node for node in nodes if subject.op(node) == "QuantizeLinear"}
    back = [node for node in nodes if subject.op(node) == "DequantizeLinear"]
    idle = any(codes & set(subject.nodes[node].reads) for node in back)
    return idle and not subject.apart_in_baseline & nodes and not _is_needed(subject, timed)


def _is_needed(subject: Subject, timed: TimedLayer) -> bool:
    """Whether the kernel reads what a layer with an integer product writes."""
    integer = [other.layer for other in subject.candidate
               if any(map(subject.has_landed, other.layer.products))]  # fmt: skip
    written = {t.name for layer in integer for t in layer.outputs}
    return any(t.name in written for t in timed.layer.inputs)


def _around(subject: Subject, group: list[TimedLayer]) -> tuple[str, ...]:
    """What shares a kernel with the pair; where nothing does, what reads it."""
    inside = [n for one in group for n in one.layer.nodes if subject.op(n) not in _PAIR]
    written = {t.name for one in group for t in one.layer.outputs}
    readers = [n for one in subject.candidate if one not in group for n in one.layer.nodes
               if any(t.name in written for t in one.layer.inputs)]  # fmt: skip
    return tuple(dict.fromkeys(inside or readers))


def _without_pair(subject: Subject, pairs: Iterable[str], around: Iterable[str]) -> Change:
    """A rule of placement puts pairs on shortcuts, the value that a product is added to; any other
    pair that nobody multiplies came with the graph."""
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
        return Change("leave the shortcut in float", {key: False})
    return Change("take the pair out of the graph: no product reads its codes")
