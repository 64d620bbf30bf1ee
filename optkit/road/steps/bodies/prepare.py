from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.rescaling import factors
from optkit.craft.quantization.rescaling import rescale as rescaling
from optkit.craft.quantization.rescaling.outlier_channels import split_outliers
from optkit.craft.quantization.rescaling.smoothquant import MOST_PRODUCTS
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.ground.recipe.sections import Effort
from optkit.ground.statistics import load, save
from optkit.road.steps.bodies.comparison import TOLERANCE, Feeds, difference
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import FACTORS, GRAPH, STATISTICS
from optkit.road.steps.fuse import FusedGraph
from optkit.road.steps.prepare import Prepare

# multiply-accumulates by which one candidate is judged
_PRODUCTS: dict[Effort, int] = {
    "fast": MOST_PRODUCTS >> 4,
    "balanced": MOST_PRODUCTS >> 2,
    "best": MOST_PRODUCTS,
}


def run(step: Prepare, out: Path, progress: Progress) -> FusedGraph:
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
    split: list[rescaling.RescaleEntry] = []
    if settings.outlier_channels == "auto":
        split, statistics = split_outliers(model, statistics, assignment, scheme.rules, wishes)
    log, statistics = rescaling.rescale(model, statistics, assignment, scheme.rules, wishes)
    log = replace(log, entries=(*split, *log.entries))
    graph.save(model, out / GRAPH)
    save(statistics, out / STATISTICS)
    factors.save(log.factors, out / FACTORS)
    made = FusedGraph(log=log.to_json(), max_error=None, **vars(signature(model)))
    if log.counts.keys() <= {"declined"}:
        return replace(made, max_error=0.0)
    if not step.compare:
        return replace(made, warnings=(str(step.uncompared), *_noted(split)))
    progress("comparing with the graph as it was", 0.8)
    feeds = Feeds(step.random, None if step.samples is None else step.samples.path)
    name, error = difference(step.graph.path / GRAPH, out / GRAPH, feeds)
    if error <= TOLERANCE:
        return replace(made, max_error=error, warnings=_noted(split))
    # the rewrite is exact except for rounding, but this graph amplifies rounding, so the original
    # is used
    plain = graph.load(step.graph.path / GRAPH)
    graph.save(plain, out / GRAPH)
    save(load(step.statistics.path / STATISTICS), out / STATISTICS)
    told = f"output {name!r} moved by {error:.2e} of its largest value: not smoothed or equalized"
    log = rescaling.RescaleLog(())
    factors.save(log.factors, out / FACTORS)
    return FusedGraph(log=log.to_json(), max_error=0.0, warnings=(told,), **vars(signature(plain)))


def _noted(split: Sequence[rescaling.RescaleEntry]) -> tuple[str, ...]:
    """A note about the activations whose outlier channels are multiplied in float."""
    if not split:
        return ()
    more = len(split) - 1
    some = f"{split[0].value!r} and {more} more" if more else f"{split[0].value!r}"
    note = (
        f"the outlier channels of {some} are multiplied in float, beside the others in int8; "
        "`--set quantization.outlier_channels=off` forbids it"
    )
    return (note,)
