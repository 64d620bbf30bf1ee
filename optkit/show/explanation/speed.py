"""Rules that say why products are not faster. Each cost is the time that its change would gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape

from optkit.facts.documents.explanation import ExplainFinding, FindingCost, RecipeChange
from optkit.facts.evidence import Evidence
from optkit.facts.timed_layers import TimedLayer
from optkit.ground.devices import target
from optkit.show.explanation.quantization_gains import (
    added_behind,
    constant_ms,
    left_behind,
    ms_per_product,
    peak_ratio,
    slow,
)
from optkit.show.explanation.subject import Subject
from optkit.show.explanation.words import advice, modules, named, several

STEP = 16  # the bytes of codes that a tensor core reads at once
_CODES = ("int8", "uint8", "float8e4m3fn")
HEAVY = 0.25  # share of the bytes of all constants that the layers read


def left_in_float(subject: Subject) -> Iterator[ExplainFinding]:
    """A product in FP16 or FP32 that was planned in fewer bits, or lies between quantized products.

    It multiplies at the peak rate of the float type, reads a weight of twice the bytes, and its
    neighbours must write and read floats for it.
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
        noise = subject.fidelity.get(node)
        summed = noise is not None and noise.scales == "summed"  # the rule weight_axis reports it
        if summed or (planned is None and not between):
            continue
        dtype = _multiplies_in(subject, node)
        why, change = _why_in_float(subject, node, dtype)
        yield slow(
            subject,
            "left_in_float",
            (node,),
            left_behind(subject, node),
            what=f"{named([node])} computes in {dtype}"
            + (", between quantized layers" if between else f"; the plan is {planned}"),
            why=why,
            change=change,
            evidence=Evidence.PREDICTED,
        )


def _multiplies_in(subject: Subject, node: str) -> str:
    row, layers = subject.landed.get(node), subject.by_node[0]
    return str(row.dtype if row else layers[node].layer.dtype)


def _why_in_float(subject: Subject, node: str, dtype: str) -> tuple[str, RecipeChange]:
    """The reason why a product computes in float, and the change that would help."""
    row, patterns = subject.landed.get(node), _patterns(subject, node)
    reasons = {row.node: row.reason for row in subject.report.quantization}
    note = (row.note if row else None) or reasons.get(node)
    why = note or "the compiler did not choose an integer kernel for it"
    if patterns:
        why = f"the recipe keeps it in float: {named(patterns)}"
    if node in subject.planned:
        text = (
            f"keep it in {subject.baseline}: it runs in {dtype} anyway, and without its Q/DQ pair "
            "it has no rounding error"
        )
        return why, advice(text, to_float(subject, [node]))
    if not patterns:
        return why, advice(f"quantize it too, if possible; it is in float because: {why}")
    return why, advice(
        "remove the line of the recipe that keeps it in float",
        {("quantization", "nodes", pattern): subject.precision for pattern in patterns},
    )


def does_not_pay(subject: Subject) -> Iterator[ExplainFinding]:
    """The artifact is slower than its baseline: other kernels lose what quantized layers gain.

    Such a kernel has no product. It converts, or it computes what the baseline fuses into its
    products (bias, activation, sum): TensorRT-RTX writes the result of an integer product with
    scales per channel as floats, and requantizes it in a separate kernel. Its time counts with the
    product before it. The sum of these losses does not say which layers to keep in float, because
    a kernel remains as long as one of its neighbours reads codes. `optkit tune` answers that: it
    compiles each candidate.
    """
    speedup, latency = subject.result.speedup, subject.result.latency
    if subject.times is None or not subject.planned or speedup is None or latency is None:
        return
    baseline = subject.result.baseline
    if baseline is None or baseline.latency is None:
        return
    if not speedup.below(1):
        return
    behind = added_behind(subject)
    losses = _losses(subject, behind)
    nodes = tuple(sorted((n for n, loss in losses.items() if loss > 0), key=lambda n: -losses[n]))
    slower = f"{subject.precision} is slower than {subject.baseline}"
    losing = (
        f"{len(nodes)} of {several(len(losses), 'layer')} {'is' if len(nodes) == 1 else 'are'} "
        "slower, with the kernels that quantization added after them "
        f"({sum(behind.values()):.3g} ms in total)"
    )
    lost = latency.p50_ms - baseline.latency.p50_ms
    yield ExplainFinding(
        "does_not_pay",
        "speed",
        nodes=nodes,
        modules=modules(nodes),
        cost=FindingCost(lost / latency.p50_ms, "latency", speedup.evidence, ms=lost),
        what=f"{slower}: {losing}" if nodes else f"{slower}, but no single layer is slower",
        why=f"{subject.baseline} fuses bias, activation and sum into its products; here they run "
        "in separate kernels, with the quantization",
        change=advice(
            f"`optkit tune --target {subject.result.target}` finds the layers that are faster when "
            f"quantized; or deploy {subject.baseline}"
        ),
        limit=True,
    )


def _losses(subject: Subject, behind: Mapping[str, float]) -> dict[str, float]:
    """Quantized layer → the milliseconds that it takes more than in the baseline, together with
    the kernels `behind` it; negative if it takes less."""
    ours, theirs = subject.by_node
    return {
        node: ms_per_product(ours[node]) + behind.get(node, 0.0) - ms_per_product(theirs[node])
        for node, row in subject.landed.items()
        if row.landed and node in ours and node in theirs
    }


def alignment(subject: Subject) -> Iterator[ExplainFinding]:
    """A quantized product on a GPU whose summed dimension K is not a multiple of 16.

    A tensor core reads a row of codes 16 bytes at a time, and only if every row begins at a
    multiple of 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide, section 4.1: INT8
    is most efficient with K a multiple of 16). Without alignment a kernel reads smaller pieces, and
    may lose all the time that eight bits save. A roofline cannot say how much. So the cost is an
    upper bound: the time that the product saves compared with the baseline.
    """
    if target(str(subject.result.target)).is_cpu:
        return
    ours, theirs = subject.by_node
    groups: dict[int, list[str]] = {}
    for node, row in subject.landed.items():
        facts = subject.nodes.get(node)
        summed = None if facts is None else facts.summed
        if not row.landed or summed is None or summed % STEP == 0:
            continue
        if node in ours and node in theirs and ours[node].layer.dtype in _CODES:
            groups.setdefault(summed, []).append(node)
    for summed, nodes in groups.items():
        padded = -(-summed // STEP) * STEP
        gains = (ms_per_product(theirs[node]) - ms_per_product(ours[node]) for node in nodes)
        most = sum(max(gain, 0.0) for gain in gains)
        yield slow(
            subject,
            "alignment",
            tuple(nodes),
            most,
            what=f"the summed dimension K of {named(nodes)} is {summed}, not a multiple of "
            f"{STEP}; the cost given is an upper bound",
            why=f"a tensor core reads {STEP} bytes at a time; rows of {summed} bytes are not "
            "aligned",
            change=advice(
                f"make this width of the model a multiple of {STEP} ({summed} → {padded}), and "
                "pad the weights with zeros"
            ),
            evidence=Evidence.PREDICTED,
        )


def memory_bound(subject: Subject) -> Iterator[ExplainFinding]:
    """Quantized products that memory bandwidth limits.

    Even at the peak rate of the baseline's type they would multiply faster than memory delivers.
    So eight bits help only because fewer bytes are read. A batch of twice the size halves the time
    to read the weights per sample.
    """
    if subject.times is None or subject.times.evidence is not Evidence.PREDICTED:
        return
    ratio = peak_ratio(subject)
    bound = [
        timed
        for timed in subject.candidate
        if timed.layer.products
        and timed.layer.dtype in _CODES
        and timed.compute_ms is not None
        and timed.memory_ms is not None
        and timed.compute_ms * ratio < timed.memory_ms
    ]
    constant = sum(constant_ms(timed) for timed in bound)
    if not bound:
        return
    nodes = tuple(node for timed in bound for node in timed.layer.products)
    time = sum(timed.ms for timed in bound)
    batch = subject.result.latency.batch if subject.result.latency else 1
    yield slow(
        subject,
        "memory_bound",
        nodes,
        constant / 2,
        what=f"memory bandwidth limits {several(len(bound), 'product')}: {time:.3g} ms in total, "
        f"of which reading the weights takes {constant:.3g} ms",
        why=f"at batch {batch} it would limit them in {subject.baseline} too; faster arithmetic "
        "does not help",
        change=advice(
            f"use a larger batch{subject.tuned_for(2 * batch)}, which reads the weights once "
            "for more samples, or weights of fewer bits (int4)"
        ),
        limit=True,
    )


def heavy_weights(subject: Subject) -> Iterator[ExplainFinding]:
    """A float tensor that has a quarter or more of the bytes of all constants."""
    layers = subject.candidate
    total = sum(timed.layer.constant_bytes for timed in layers)
    for timed in layers:
        for tensor in timed.layer.constants:
            size = tensor.bytes or 0
            wide = "float" in tensor.dtype and "8" not in tensor.dtype
            if not total or size < HEAVY * total or not wide:
                continue
            nodes = timed.layer.products or _heaviest(subject, timed)
            ms = constant_ms(timed) * size / max(timed.layer.constant_bytes, 1)
            yield slow(
                subject,
                "heavy_weight",
                nodes,
                ms / 2,
                what=f"{named(nodes)} reads {size / 2**20:.3g} MiB of {tensor.dtype}, "
                f"{size / total:.0%} of all weights",
                why="this float tensor has more bytes than quantization saved in the others",
                change=advice(
                    "quantize it, or store the embedding table in 8 bits",
                    {}
                    if subject.recipe.quantization.embeddings
                    else {("quantization", "embeddings"): True},
                ),
            )


def to_float(subject: Subject, nodes: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Settings that keep these nodes in the precision of the baseline."""
    return {("quantization", "nodes", escape(node)): subject.baseline for node in nodes}


def _heaviest(subject: Subject, timed: TimedLayer) -> tuple[str, ...]:
    """The node of a layer that reads the most bytes of constants."""
    facts = subject.nodes
    known = [node for node in timed.layer.nodes if node in facts]
    return tuple(sorted(known, key=lambda node: -facts[node].weight_bytes)[:1])


def _patterns(subject: Subject, node: str) -> list[str]:
    """The patterns of the recipe that keep a node in float."""
    patterns = subject.recipe.quantization.nodes
    return [p for p, chosen in patterns.items() if fnmatchcase(node, p) and not chosen.quantized]
