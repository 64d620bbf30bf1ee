"""What quantization gained in the products that landed, and what it could gain in the others.

The estimate for a product that was not quantized, or did not land, is its time in the baseline,
multiplied by the median ratio of the products that landed: time in the candidate, with the kernels
after them, over time in the baseline.
"""

from __future__ import annotations

from math import inf
from statistics import median

from optkit.facts.documents.explanation import ExplainFinding, FindingCost, RecipeChange, Rule
from optkit.facts.evidence import Evidence
from optkit.facts.timed_layers import TimedLayer
from optkit.show.explanation.subject import Subject
from optkit.show.explanation.words import modules

LEAST = 0.01
"""The least share of a finding. Layer times differ by this much even between good runs."""

_HALF = 0.5  # of the time in FP16: the ratio that is assumed for eight bits if no layer landed


def slow(
    subject: Subject,
    rule: Rule,
    nodes: tuple[str, ...],
    ms: float,
    *,
    what: str,
    why: str,
    change: RecipeChange,
    evidence: Evidence | None = None,
    limit: bool = False,
) -> ExplainFinding:
    assert subject.times is not None
    known = evidence or subject.times.evidence
    ms = max(ms, 0.0)
    cost = FindingCost(subject.share(ms), "layers", known, ms=ms)
    return ExplainFinding(rule, "speed", what, why, nodes, modules(nodes), cost, change, limit)


def left_behind(subject: Subject, node: str) -> float:
    """Milliseconds by which a product exceeds the estimate from the layers that landed."""
    ours, theirs = subject.by_node
    if node not in ours or node not in theirs:
        return 0.0
    return max(ms_per_product(ours[node]) - promised(subject) * ms_per_product(theirs[node]), 0.0)


def ms_per_product(timed: TimedLayer) -> float:
    """Milliseconds of a layer, divided by the number of its products."""
    return timed.ms / max(len(timed.layer.products), 1)


def promised(subject: Subject) -> float:
    """Time of a landed layer, with the kernels added after it, over its time in the baseline: the
    median, at most 1."""
    (ours, theirs), behind = subject.by_node, added_behind(subject)
    ratios = [
        (ms_per_product(ours[n]) + behind.get(n, 0.0)) / ms_per_product(theirs[n])
        for n, row in subject.landed.items()
        if row.landed and n in ours and n in theirs and theirs[n].ms
    ]
    return min(median(ratios), 1.0) if ratios else _HALF


def peak_ratio(subject: Subject) -> float:
    """How many times faster the quantized type multiplies than the type of the baseline."""
    ours, theirs = subject.by_node
    ratios = [
        before / now
        for node, timed in ours.items()
        if node in theirs and timed.layer.products == theirs[node].layer.products
        if (now := timed.compute_ms) and (before := theirs[node].compute_ms)
    ]
    return max(ratios, default=inf)


def constant_ms(timed: TimedLayer) -> float:
    """The part of a layer's memory time that reads its constants, in milliseconds."""
    moved = timed.layer.bytes_moved or 0
    size = timed.layer.constant_bytes + moved
    return (timed.memory_ms or 0.0) * timed.layer.constant_bytes / size if size else 0.0


def added_behind(subject: Subject) -> dict[str, float]:
    """Product → milliseconds of the kernels that quantization added after it."""
    apart = subject.apart_in_baseline
    makers = {t.name: timed for timed in subject.candidate for t in timed.layer.outputs}
    added: dict[str, float] = {}
    for timed in subject.candidate:
        if timed.layer.products or not subject.ops(timed) or apart & set(timed.layer.nodes):
            continue
        sources = (makers[t.name] for t in timed.layer.inputs if t.name in makers)
        product = next((n for maker in sources for n in maker.layer.products), None)
        if product is not None:
            added[product] = added.get(product, 0.0) + timed.ms
    return added
