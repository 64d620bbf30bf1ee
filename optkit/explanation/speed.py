"""Rules that say why products are not faster. Each cost is what its change would win back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import escape

from optkit import codec, precisions
from optkit.devices import target
from optkit.evidence import Evidence
from optkit.explanation.finding import Change, Cost, Finding
from optkit.explanation.layer_times import (
    added_behind,
    constant_ms,
    left_behind,
    ms_per_product,
    peak_ratio,
    slow,
)
from optkit.explanation.subject import Subject
from optkit.explanation.words import modules, named, several
from optkit.measurement import Difference
from optkit.steps.attribute import TimedLayer

_STEP = 16  # codes that a tensor core reads at once
_CODES = ("int8", "uint8", "float8e4m3fn")
_HEAVY = 0.25  # of all bytes that the layers read of constants


def left_in_float(subject: Subject) -> Iterator[Finding]:
    """A product in FP16 or FP32 that was to be quantized, or stands between quantized ones.

    It multiplies at the carrier's peak, reads a weight of twice the bytes, and its neighbours write
    and read floats for its sake.
    """
    ours, theirs = subject.by_node
    quantized = {n for n, row in subject.landed.items() if row.landed}
    for node in ours:
        facts = subject.nodes.get(node)
        weighted = facts is not None and facts.weight_bytes and node in theirs
        if not weighted or node in quantized or subject.landing_unknown(node):
            continue
        planned = subject.planned.get(node)
        between = all(quantized & side for side in subject.neighbours(node))
        noise = subject.likeness.get(node)
        summed = noise is not None and noise.scales == "summed"  # has a rule of its own
        if summed or (planned is None and not between):
            continue
        dtype = _multiplies_in(subject, node)
        why, change = _why_in_float(subject, node, dtype)
        yield slow(
            subject, "left_in_float", (node,), left_behind(subject, node),
            what=f"{named([node])} multiplies in {dtype}"
            + (" between layers that multiply codes" if between else f", planned {planned}"),
            why=why, change=change,
            evidence=Evidence.PREDICTED,
        )  # fmt: skip


def _multiplies_in(subject: Subject, node: str) -> str:
    row, layers = subject.landed.get(node), subject.by_node[0]
    return str(row.dtype if row else layers[node].layer.dtype)


def _why_in_float(subject: Subject, node: str, dtype: str) -> tuple[str, Change]:
    """The reason that a product multiplies in floats, and what would change it."""
    row, patterns = subject.landed.get(node), _patterns(subject, node)
    reasons = {row.node: row.reason for row in subject.report.quantization}
    note = (row.note if row else None) or reasons.get(node)
    why = note or "the compiler found no integer form of it"
    if patterns:
        why = f"the recipe says so: {named(patterns)}"
    if node in subject.planned:
        text = f"it runs in {dtype} anyway: without its Q/DQ it is at least not rounded"
        return why, Change(text, to_float(subject, [node]))
    if not patterns:
        return why, Change(f"quantize it too, unless it is excluded: {why}")
    return why, Change(
        "take the line out that leaves it in float",
        {("quantization", "nodes", pattern): subject.precision for pattern in patterns},
    )


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
    if not codec.from_json(Difference, speedup.to_json()).below(1):
        return
    ours, theirs = subject.by_node
    behind = added_behind(subject)
    losses = {
        node: ms_per_product(ours[node]) + behind.get(node, 0.0) - ms_per_product(theirs[node])
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


def alignment(subject: Subject) -> Iterator[Finding]:
    """A product of codes on a GPU whose summed axis K is no multiple of 16.

    A tensor core reads a row of codes 16 bytes at a time, and only where every row begins at a
    multiple of them (NVIDIA, Matrix Multiplication Background User's Guide, section 4.1: INT8 is
    most efficient with K a multiple of 16). A kernel without that reads in smaller pieces, and may
    lose all that eight bits save; how much, no roofline knows. So the cost is the most it can be:
    what the product takes less than in the baseline.
    """
    if target(str(subject.result.target)).is_cpu:
        return
    ours, theirs = subject.by_node
    groups: dict[int, list[str]] = {}
    for node, row in subject.landed.items():
        facts = subject.nodes.get(node)
        summed = None if facts is None else facts.summed
        if not row.landed or summed is None or summed % _STEP == 0:
            continue
        if node in ours and node in theirs and ours[node].layer.dtype in _CODES:
            groups.setdefault(summed, []).append(node)
    for summed, nodes in groups.items():
        padded = -(-summed // _STEP) * _STEP
        gains = (ms_per_product(theirs[node]) - ms_per_product(ours[node]) for node in nodes)
        most = sum(max(gain, 0.0) for gain in gains)
        yield slow(
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
    ratio = peak_ratio(subject)
    bound = [
        one for one in subject.candidate
        if one.layer.products and one.layer.dtype in _CODES
        and one.compute_ms is not None and one.memory_ms is not None
        and one.compute_ms * ratio < one.memory_ms
    ]  # fmt: skip
    constant = sum(constant_ms(one) for one in bound)
    if not bound:
        return
    nodes = tuple(node for one in bound for node in one.layer.products)
    time = sum(one.ms for one in bound)
    batch = subject.result.latency.batch if subject.result.latency else None
    yield slow(
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
    layers = subject.candidate
    total = sum(one.layer.constant_bytes for one in layers)
    for one in layers:
        for tensor in one.layer.constants:
            size = tensor.bytes or 0
            wide = "float" in tensor.dtype and "8" not in tensor.dtype
            if not total or size < _HEAVY * total or not wide:
                continue
            nodes = one.layer.products or _heaviest(subject, one)
            ms = constant_ms(one) * size / max(one.layer.constant_bytes, 1)
            yield slow(
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


def to_float(subject: Subject, nodes: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Settings that leave these nodes in the baseline's precision."""
    return {("quantization", "nodes", escape(node)): subject.baseline for node in nodes}


def _heaviest(subject: Subject, one: TimedLayer) -> tuple[str, ...]:
    """The node of a layer that reads most bytes of constants."""
    facts = subject.nodes
    known = [node for node in one.layer.nodes if node in facts]
    return tuple(sorted(known, key=lambda node: -facts[node].weight_bytes)[:1])


def _patterns(subject: Subject, node: str) -> list[str]:
    """The recipe's patterns that leave a node in float."""
    own = subject.recipe["quantization"]["nodes"]
    return [p for p, name in own.items()
            if fnmatchcase(node, p) and not precisions.precision(name).quantized]  # fmt: skip
