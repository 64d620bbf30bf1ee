"""Rules that say why an artifact is not faster. Each cost is what its change would win back.

A layer that was not quantized, or did not land, would take what those that landed take: the median
over these of their time in the candidate, with the kernels behind them, over that in the baseline,
times its own in the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import escape
from math import inf
from statistics import median

from optkit import precisions
from optkit.devices import target
from optkit.documents.explanation import Rule
from optkit.evidence import Evidence
from optkit.explanation.finding import Change, Cost, Finding
from optkit.explanation.subject import Subject, connected
from optkit.explanation.words import modules, named, several
from optkit.measurement import Difference
from optkit.steps.attribute import TimedLayer

LEAST = 0.01
"""Of the whole: what costs less is not told. Layer times of a good run differ by that much."""

_HALF = 0.5  # of the time in FP16: what eight bits promise where no layer landed to tell
_STEP = 16  # codes that a tensor core reads at once
_CODES = ("int8", "uint8", "float8e4m3fn")
_HEAVY = 0.25  # of all bytes that the layers read of constants


def unfused_pairs(subject: Subject) -> Iterator[Finding]:
    """Kernels that turn codes into floats and back, or for a sum.

    A Q/DQ pair costs nothing where compilers absorb both halves: Q into the kernel in front, DQ
    into one that reads codes. Left in kernels of their own, or in one kernel with nothing between
    them, they read and write the value once more, and keep the kernels around from joining. (Where
    integers end for good, one DequantizeLinear is what it takes.)
    """
    if subject.times is None:
        return
    apart = [one for one in subject.times.candidate if subject.kind(one) == "convert"]
    groups = [group for group in connected(apart) if _is_idle(subject, group)]
    groups += [[one] for one in subject.times.candidate
               if subject.kind(one) == "other" and _there_and_back(subject, one)]  # fmt: skip
    for group in groups:
        pairs = tuple(n for one in group for n in one.layer.nodes if _op(subject, n) in _PAIR)
        around = _around(subject, group)
        yield _slow(
            subject, "unfused_pair", pairs, sum(one.ms for one in group),
            what=f"a Q/DQ pair runs in {several(len(group), 'kernel')} of its own"
            + (f", in front of {named(around)}" if around else ""),
            why="codes become floats for a reader that does not multiply them; neither half of the "
            "pair is absorbed by a neighbour",
            change=_without_pair(subject, pairs, around),
        )  # fmt: skip


def left_in_float(subject: Subject) -> Iterator[Finding]:
    """A product in FP16 or FP32 that was to be quantized, or stands between quantized ones.

    It multiplies at the carrier's peak, reads a weight of twice the bytes, and its neighbours write
    and read floats for its sake.
    """
    if subject.times is None:
        return
    ours, theirs = subject.by_node
    quantized = {n for n, row in subject.landed.items() if row.landed}
    reasons = {row.node: row.reason for row in subject.report.quantization}
    for node in ours:
        facts = subject.times.nodes.get(node)
        if subject.landing_unknown(node):  # neither landed nor missed
            continue
        if node in quantized or facts is None or not facts.weight_bytes or node not in theirs:
            continue
        planned = subject.planned.get(node)
        between = all(quantized & side for side in subject.neighbours(node))
        if planned is None and not between:
            continue
        row, noise = subject.landed.get(node), subject.likeness.get(node)
        if noise is not None and noise.scales == "summed":  # told by its own rule, with its noise
            continue
        note, dtype = (row.note, row.dtype) if row else (None, ours[node].layer.dtype)
        own = _patterns(subject, node)
        why = (
            f"the recipe says so: {named(own)}"
            if own
            else (note or reasons.get(node) or "the compiler found no integer form of it")
        )
        if own and planned is None:
            change = Change("take the line out that leaves it in float", {
                ("quantization", "nodes", pattern): subject.precision for pattern in own
            })  # fmt: skip
        elif planned is None:
            change = Change(f"quantize it too, unless it is excluded: {why}")
        else:
            change = Change(
                f"it runs in {dtype} anyway: without its Q/DQ it is at least not rounded",
                to_float(subject, [node]),
            )
        yield _slow(
            subject, "left_in_float", (node,), left_behind(subject, node),
            what=f"{named([node])} multiplies in {dtype}"
            + (" between layers that multiply codes" if between else f", planned {planned}"),
            why=why, change=change,
            evidence=Evidence.PREDICTED,
        )  # fmt: skip


def does_not_pay(subject: Subject) -> Iterator[Finding]:
    """The whole is slower than its baseline: what quantized layers gain, other kernels lose.

    Such a kernel has no product in it, only conversions and what the baseline computes inside its
    products (bias, activation, sum): TensorRT-RTX writes what an integer product with scales per
    channel leaves as floats and requantizes it apart. It is counted with the product it follows.
    Which layers to leave in float is no sum of these losses: a kernel stays as long as one of its
    neighbours wants codes. A search that compiles each candidate answers that.
    """
    speedup, latency = subject.result.speedup, subject.result.latency
    if subject.times is None or not subject.planned or speedup is None or latency is None:
        return
    baseline = subject.result.baseline
    if baseline is None or baseline.latency is None:
        return
    if not Difference.from_json(speedup.to_json()).below(1):
        return
    ours, theirs = subject.by_node
    behind = _behind(subject)
    losses = {
        node: _each(ours[node]) + behind.get(node, 0.0) - _each(theirs[node])
        for node, row in subject.landed.items()
        if row.landed and node in ours and node in theirs
    }
    nodes = tuple(sorted((n for n, loss in losses.items() if loss > 0), key=lambda n: -losses[n]))
    slower = f"{subject.precision} is slower than {subject.baseline}"
    losing = (
        f"{len(nodes)} of {several(len(losses), 'layer')} lose, with the kernels behind them, "
        f"which take {sum(behind.values()):.3g} ms in all"
    )
    lost = latency.p50_ms - baseline.latency.p50_ms
    yield Finding(
        "does_not_pay", "speed", nodes=nodes, modules=modules(nodes),
        cost=Cost(
            lost / latency.p50_ms, "latency", speedup.evidence, ms=lost
        ),
        what=f"{slower}: {losing}" if nodes else f"{slower}, though no layer is",
        why=f"{subject.baseline} computes inside its products what runs apart here: bias, "
        "activation, sum, and the step to codes",
        change=Change(
            f"`optkit tune --target {subject.result.target}` finds the layers that pay; or "
            f"deploy {subject.baseline}"
        ),
        limit=True,
    )  # fmt: skip


def layout(subject: Subject) -> Iterator[Finding]:
    """Kernels that only move: reshapes that copy, transposes, concatenations, casts.

    No precision makes them faster but by the width of an element. Whoever multiplies less
    (Amdahl's law) is bound by them.
    """
    if subject.times is None:
        return
    moving = [one for one in subject.times.candidate if subject.kind(one) == "layout"]
    for group in connected(moving):
        nodes = tuple(dict.fromkeys(n for one in group for n in one.layer.nodes))
        ops = sorted({op for one in group for op in subject.ops(one)})
        yield _slow(
            subject, "layout", nodes, sum(one.ms for one in group),
            what=f"data is only moved in {several(len(group), 'kernel')}"
            + (f" ({', '.join(ops)})" if ops else "") + (f": {named(nodes)}" if nodes else ""),
            why="moving bytes takes the same time in every precision of that width",
            change=Change("write the model so that layouts meet: fewer transposes and copies"),
        )  # fmt: skip


def casts(subject: Subject) -> Iterator[Finding]:
    """Kernels that only cast: in a build with an FP16 carrier the borders of what was left in FP32,
    in one that computes in FP32 casts of the model's own."""
    if subject.times is None:
        return
    why = "the model casts here; nothing in this build computes in another float than FP32"
    change = Change("take the cast out of the model, or give it the type that is read")
    if subject.baseline != "fp32":
        why = (
            "a value crosses between FP16 and FP32; the report's `cast` says which nodes were left "
            "in FP32, and why"
        )
        change = Change("scale the model's values into the reach of FP16 (65504)")
    casting = [one for one in subject.times.candidate
               if subject.ops(one) == {"Cast"} and not one.layer.products]  # fmt: skip
    for group in connected(casting):
        nodes = tuple(dict.fromkeys(n for one in group for n in one.layer.nodes))
        yield _slow(
            subject, "cast", nodes, sum(one.ms for one in group),
            what=f"{several(len(group), 'kernel')} only cast: {named(nodes)}", why=why,
            change=change,
        )  # fmt: skip


def alignment(subject: Subject) -> Iterator[Finding]:
    """A product of codes on a GPU whose summed axis K is no multiple of 16.

    A tensor core reads a row of codes 16 bytes at a time, and only where every row begins at a
    multiple of them (NVIDIA, Matrix Multiplication Background User's Guide, section 4.1: INT8 is
    most efficient with K a multiple of 16). A kernel without that reads in smaller pieces, and may
    lose all that eight bits save; how much, no roofline knows. So the cost is the most it can be:
    what the product takes less than in the baseline.
    """
    if subject.times is None or target(str(subject.result.target)).is_cpu:
        return
    ours, theirs = subject.by_node
    groups: dict[int, list[str]] = {}
    for node, row in subject.landed.items():
        facts = subject.times.nodes.get(node)
        summed = None if facts is None else facts.summed
        if not row.landed or summed is None or summed % _STEP == 0:
            continue
        if node in ours and node in theirs and ours[node].layer.dtype in _CODES:
            groups.setdefault(summed, []).append(node)
    for summed, nodes in groups.items():
        padded = -(-summed // _STEP) * _STEP
        most = sum(max(_each(theirs[node]) - _each(ours[node]), 0.0) for node in nodes)
        yield _slow(
            subject, "alignment", tuple(nodes), most,
            what=f"{named(nodes)} {'sums' if len(nodes) == 1 else 'sum'} over {summed} codes, no "
            f"multiple of {_STEP}; what that costs is at most this",
            why=f"a tensor core reads {_STEP} bytes at a time; rows of {summed} are not aligned",
            change=Change(
                f"give the model a width that is a multiple of {_STEP} ({summed} → {padded}), the "
                "weights filled up with zeros"
            ),
            evidence=Evidence.PREDICTED,
        )  # fmt: skip


def memory_bound(subject: Subject) -> Iterator[Finding]:
    """Quantized products that wait for bytes: even at the carrier's peak they would multiply faster
    than memory delivers, so that eight bits help by what they leave out of memory, no more.

    What a larger batch shares is the weights: twice the batch, half of their time per sample.
    """
    if subject.times is None or subject.times.evidence is not Evidence.PREDICTED:
        return
    ratio = _peak_ratio(subject)
    bound = [
        one for one in subject.times.candidate
        if one.layer.products and one.layer.dtype in _CODES
        and one.compute_ms is not None and one.memory_ms is not None
        and one.compute_ms * ratio < one.memory_ms
    ]  # fmt: skip
    constant = sum(_constant_ms(one) for one in bound)
    if not bound:
        return
    nodes = tuple(node for one in bound for node in one.layer.products)
    time = sum(one.ms for one in bound)
    batch = subject.result.latency.batch if subject.result.latency else None
    yield _slow(
        subject, "memory_bound", nodes, constant / 2,
        what=f"{several(len(bound), 'product')} wait for memory: {time:.3g} ms, of which weights "
        f"{constant:.3g} ms",
        why=f"at batch {batch} they would wait in {subject.baseline} too; multiplying faster does "
        "not help",
        change=Change(
            "a larger batch shares the weights (`axes: {batch: {opt: ...}}`), or fewer bits of "
            "them (int4)"
        ),
        limit=True,
    )  # fmt: skip


def heavy_weights(subject: Subject) -> Iterator[Finding]:
    """One stored tensor that is a quarter of all bytes or more, in floats."""
    if subject.times is None:
        return
    layers = subject.times.candidate
    total = sum(one.layer.constant_bytes for one in layers)
    for one in layers:
        for tensor in one.layer.constants:
            size = tensor.bytes or 0
            if (
                not total
                or size < _HEAVY * total
                or "float" not in tensor.dtype
                or "8" in tensor.dtype
            ):
                continue
            nodes = one.layer.products or _heaviest(subject, one)
            ms = _constant_ms(one) * size / max(one.layer.constant_bytes, 1)
            yield _slow(
                subject, "heavy_weight", nodes, ms / 2,
                what=f"{named(nodes)} reads {size / 2**20:.3g} MiB of {tensor.dtype}, "
                f"{size / total:.0%} of all weights",
                why="one tensor in floats outweighs what quantizing the others saved",
                change=Change(
                    "quantize it, or store the table in 8 bits",
                    {} if subject.recipe["quantization"]["embeddings"]
                    else {("quantization", "embeddings"): True},
                ),
            )  # fmt: skip


def left_behind(subject: Subject, node: str) -> float:
    """Milliseconds that a product takes beyond what the layers that landed promise."""
    ours, theirs = subject.by_node
    if node not in ours or node not in theirs:
        return 0.0
    return max(_each(ours[node]) - _promised(subject) * _each(theirs[node]), 0.0)


def to_float(subject: Subject, nodes: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Settings that leave these nodes in the baseline's precision."""
    return {("quantization", "nodes", escape(node)): subject.baseline for node in nodes}


_PAIR = ("QuantizeLinear", "DequantizeLinear")


def _slow(
    subject: Subject, rule: Rule, nodes: tuple[str, ...], ms: float, *, what: str, why: str,
    change: Change, evidence: Evidence | None = None, limit: bool = False,
) -> Finding:  # fmt: skip
    assert subject.times is not None
    known = evidence or subject.times.evidence
    ms = max(ms, 0.0)
    cost = Cost(subject.share(ms), "layers", known, ms=ms)
    return Finding(rule, "speed", what, why, nodes, modules(nodes), cost, change, limit)


def _op(subject: Subject, node: str) -> str | None:
    facts = subject.times.nodes.get(node) if subject.times else None
    return facts.op if facts else None


def _is_idle(subject: Subject, group: list[TimedLayer]) -> bool:
    """Whether conversions dequantize an activation only to quantize it again, or for a sum."""
    ops = {op for one in group if one.layer.inputs for op in subject.ops(one)}
    summed = any(_op(subject, node) == "Add" for node in _around(subject, group))
    return "DequantizeLinear" in ops and ("QuantizeLinear" in ops or summed)


def _there_and_back(subject: Subject, one: TimedLayer) -> bool:
    """Whether a kernel quantizes and dequantizes with nothing between, and would not be there
    without: the baseline has all else inside its products, and no integer product needs it."""
    halves = {n: _op(subject, n) for n in one.layer.nodes}
    codes = {n for n, op in halves.items() if op == "QuantizeLinear"}
    times = subject.times
    facts = times.nodes if times else {}
    idle = any(codes & set(facts[n].reads) for n, op in halves.items() if op == "DequantizeLinear")
    if not idle or times is None:
        return False
    own = {n for t in times.baseline if not t.layer.products for n in t.layer.nodes}
    needing = {t.name for other in times.candidate for t in other.layer.outputs
               if any(subject.has_landed(n) for n in other.layer.products)}  # fmt: skip
    return not own & halves.keys() and not any(t.name in needing for t in one.layer.inputs)


def _around(subject: Subject, group: list[TimedLayer]) -> tuple[str, ...]:
    """What shares a kernel with the pair; where nothing does, what reads it."""
    inside = [n for one in group for n in one.layer.nodes if _op(subject, n) not in _PAIR]
    written = {t.name for one in group for t in one.layer.outputs}
    layers = subject.times.candidate if subject.times else ()
    readers = [n for one in layers if one not in group for n in one.layer.nodes
               if any(t.name in written for t in one.layer.inputs)]  # fmt: skip
    return tuple(dict.fromkeys(inside or readers))


def _without_pair(subject: Subject, pairs: Iterable[str], around: Iterable[str]) -> Change:
    """A rule of placement puts pairs on shortcuts, the value that a product is added to; any other
    pair that nobody multiplies came with the graph."""
    nodes = subject.times.nodes if subject.times else {}
    made, waiting = set(), list(pairs)
    while waiting:
        name = waiting.pop()
        if name in nodes and nodes[name].op in _PAIR:
            waiting += nodes[name].reads
        else:
            made.add(name)
    added = any(_op(subject, node) == "Add" for node in around)
    if added and not made & subject.planned.keys():
        key = ("quantization", "placement", "residual_adds")
        return Change("leave the shortcut in float", {key: False})
    return Change("take the pair out of the graph: no product reads its codes")


def _behind(subject: Subject) -> dict[str, float]:
    """Product → milliseconds of the kernels that quantizing added behind it."""
    times = subject.times
    assert times is not None
    own = {n for one in times.baseline if not one.layer.products for n in one.layer.nodes}
    makers = {t.name: one for one in times.candidate for t in one.layer.outputs}
    found: dict[str, float] = {}
    for one in times.candidate:
        if one.layer.products or not subject.ops(one) or own & set(one.layer.nodes):
            continue
        made = (makers[t.name] for t in one.layer.inputs if t.name in makers)
        product = next((n for maker in made for n in maker.layer.products), None)
        if product is not None:
            found[product] = found.get(product, 0.0) + one.ms
    return found


def _heaviest(subject: Subject, one: TimedLayer) -> tuple[str, ...]:
    """The node of a layer that reads most bytes of constants."""
    facts = subject.times.nodes if subject.times else {}
    known = [node for node in one.layer.nodes if node in facts]
    return tuple(sorted(known, key=lambda node: -facts[node].weight_bytes)[:1])


def _each(one: TimedLayer) -> float:
    """Milliseconds of a layer for each of the products in it."""
    return one.ms / max(len(one.layer.products), 1)


def _promised(subject: Subject) -> float:
    """Time of a landed layer, with what runs behind it, over its time in the baseline: the median,
    at most 1."""
    (ours, theirs), behind = subject.by_node, _behind(subject)
    ratios = [
        (_each(ours[n]) + behind.get(n, 0.0)) / _each(theirs[n])
        for n, row in subject.landed.items()
        if row.landed and n in ours and n in theirs and theirs[n].ms
    ]
    return min(median(ratios), 1.0) if ratios else _HALF


def _peak_ratio(subject: Subject) -> float:
    """How many times faster the quantized numbers multiply than the baseline's."""
    ours, theirs = subject.by_node
    ratios = [
        before / now
        for node, one in ours.items()
        if node in theirs and one.layer.products == theirs[node].layer.products
        if (now := one.compute_ms) and (before := theirs[node].compute_ms)
    ]
    return max(ratios, default=inf)


def _constant_ms(one: TimedLayer) -> float:
    """Of the milliseconds that its bytes take, those of its constants."""
    moved = one.layer.bytes_moved or 0
    size = one.layer.constant_bytes + moved
    return (one.memory_ms or 0.0) * one.layer.constant_bytes / size if size else 0.0


def _patterns(subject: Subject, node: str) -> list[str]:
    """The recipe's patterns that leave a node in float."""
    own = subject.recipe["quantization"]["nodes"]
    return [p for p, name in own.items()
            if fnmatchcase(node, p) and not precisions.precision(name).quantized]  # fmt: skip
