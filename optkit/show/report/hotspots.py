"""Where the time of a call goes: the fused layers by their time, the costliest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optkit.facts.documents.report import Report
from optkit.facts.evidence import Evidence
from optkit.show.explanation.words import named
from optkit.show.report.layers import LayerRow

_FIRST = 8  # the layers that are not folded


@dataclass(frozen=True)
class Hotspot:
    """A fused layer with its time. `name`: its ONNX nodes, or its own name if it names none;
    `share`: of the time of all layers; `baseline`: the milliseconds that the same products, or the
    same nodes, take in the baseline; None if they are in no layer, or with others."""

    name: str
    layer: LayerRow
    ms: float
    share: float
    baseline: float | None


@dataclass(frozen=True)
class SharedWork:
    """The milliseconds of all layers that do the same work, in the baseline and in the candidate;
    None where no layer does this work. `share`: of the time of all layers of the candidate."""

    work: str
    baseline: float | None
    candidate: float | None
    share: float


@dataclass(frozen=True)
class Hotspots:
    """`first`: the costliest layers; `others`: the rest, in the same order. `total`, `baseline`:
    milliseconds of all layers, of the candidate and of the baseline."""

    evidence: Evidence
    note: str
    total: float
    baseline: float
    first: Sequence[Hotspot]
    others: Sequence[Hotspot]
    works: Sequence[SharedWork]

    @property
    def share(self) -> float:
        """The share of the costliest layers in the time of all."""
        return sum(one.share for one in self.first)


def hotspots(
    report: Report, ours: Sequence[LayerRow], theirs: Sequence[LayerRow]
) -> Hotspots | None:
    """None if the times of the layers are not known, or are not those of these layers."""
    times = report.layer_times
    if times is None:
        return None
    spent, before = times.milliseconds.engine, times.milliseconds.baseline
    total = sum(spent)
    if len(spent) != len(ours) or len(before) != len(theirs) or not total:
        return None
    there = _Baseline(theirs, before)
    rows = [
        Hotspot(
            named(layer.products or layer.nodes) or layer.name,
            layer,
            ms,
            ms / total,
            there.milliseconds(layer),
        )
        for layer, ms in zip(ours, spent, strict=True)
    ]
    rows.sort(key=lambda row: -row.ms)
    works = _works(ours, spent, theirs, before)
    return Hotspots(
        times.evidence, times.note, total, sum(before), rows[:_FIRST], rows[_FIRST:], works
    )


class _Baseline:
    """The time of the baseline, by product and by the nodes of a layer."""

    def __init__(self, layers: Sequence[LayerRow], spent: Sequence[float]) -> None:
        self._products: dict[str, float] = {}
        self._nodes: dict[frozenset[str], float] = {}
        for layer, ms in zip(layers, spent, strict=True):
            self._products |= dict.fromkeys(layer.products, ms / max(len(layer.products), 1))
            self._nodes[frozenset(layer.nodes)] = ms

    def milliseconds(self, layer: LayerRow) -> float | None:
        if not layer.products:
            return self._nodes.get(frozenset(layer.nodes)) if layer.nodes else None
        known = [self._products[node] for node in layer.products if node in self._products]
        return sum(known) if len(known) == len(layer.products) else None


def _works(
    ours: Sequence[LayerRow],
    spent: Sequence[float],
    theirs: Sequence[LayerRow],
    before: Sequence[float],
) -> list[SharedWork]:
    """Time by the work that layers do, the costliest first."""
    candidate, baseline, total = _by_work(ours, spent), _by_work(theirs, before), sum(spent)
    rows = []
    for work in dict.fromkeys((*candidate, *baseline)):
        ms = candidate.get(work)
        rows.append(SharedWork(work, baseline.get(work), ms, (ms or 0.0) / total))
    return sorted(rows, key=lambda row: -max(row.candidate or 0.0, row.baseline or 0.0))


def _by_work(layers: Sequence[LayerRow], spent: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for layer, ms in zip(layers, spent, strict=True):
        found[layer.work] = found.get(layer.work, 0.0) + ms
    return found
