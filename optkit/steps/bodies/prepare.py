from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from optkit import graph
from optkit.execute.step import Progress
from optkit.quantization.placement.assign import assign
from optkit.quantization.rescaling import factors
from optkit.quantization.rescaling import rescale as rescaling
from optkit.quantization.rescaling.smoothquant import MOST_PRODUCTS
from optkit.recipe.schema import Effort
from optkit.statistics import load, save
from optkit.steps.bodies.comparison import TOLERANCE, Feeds, difference
from optkit.steps.bodies.signature import signature
from optkit.steps.files import FACTORS, GRAPH, STATISTICS
from optkit.steps.fuse import Fused
from optkit.steps.prepare import Prepare

# multiply-accumulates by which one candidate is judged
_PRODUCTS: dict[Effort, int] = {
    "fast": MOST_PRODUCTS >> 4,
    "balanced": MOST_PRODUCTS >> 2,
    "best": MOST_PRODUCTS,
}


def run(step: Prepare, out: Path, progress: Progress) -> Fused:
    progress("smoothing and equalizing", 0.1)
    model = graph.load(step.graph.path / GRAPH)
    statistics = load(step.statistics.path / STATISTICS)
    scheme, settings = step.scheme, step.settings.settings
    assignment = assign(model, scheme, statistics, settings.nodes)
    alpha: Any = {"auto": "search"}.get(str(settings.smooth), settings.smooth)
    wishes = rescaling.RescaleSettings(
        alpha=alpha,
        salient=settings.weights == "awq",
        block_size=settings.block_size,
        equalize=settings.equalize,
        carrier=scheme.dtype,
        products=_PRODUCTS[settings.effort],
        second_terms=settings.two_term == "auto",
        leave=frozenset(name for name in assignment.nodes if settings.is_two_term(name)),
    )
    log, statistics = rescaling.rescale(model, statistics, assignment, scheme.rules, wishes)
    graph.save(model, out / GRAPH)
    save(statistics, out / STATISTICS)
    factors.save(log.factors, out / FACTORS)
    made = Fused(log=log.to_json(), max_error=None, **signature(model)._asdict())
    if log.counts.keys() <= {"declined"}:
        return replace(made, max_error=0.0)
    if not step.compare:
        return replace(made, warnings=(str(step.uncompared),))
    progress("comparing with the graph as it was", 0.8)
    feeds = Feeds(step.random, None if step.samples is None else step.samples.path)
    name, error = difference(step.graph.path / GRAPH, out / GRAPH, feeds)
    if error <= TOLERANCE:
        return replace(made, max_error=error)
    # the rewrite is exact except for rounding, but this graph amplifies rounding, so the original
    # is used
    plain = graph.load(step.graph.path / GRAPH)
    graph.save(plain, out / GRAPH)
    save(load(step.statistics.path / STATISTICS), out / STATISTICS)
    told = f"output {name!r} moved by {error:.2e} of its largest value: not smoothed or equalized"
    log = rescaling.RescaleLog(())
    factors.save(log.factors, out / FACTORS)
    return Fused(log=log.to_json(), max_error=0.0, warnings=(told,), **signature(plain)._asdict())
