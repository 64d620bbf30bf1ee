"""The placement rules of a job: those of its backend, with the placement of its recipe."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from optkit.facts.errors import Impossible
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground import runtimes
from optkit.ground.recipe import Placement
from optkit.road.pipeline.job import Job

# Calibration observes every value that any backend may quantize with these precisions, so all
# targets share statistics. All precisions share them too: the others quantize no further values.
_BACKENDS = tuple(runtimes.BACKENDS)
_LEARNED = (PRECISIONS["int8"], PRECISIONS["fp8"])


def families_of(job: Job) -> tuple[dict[Precision, PlacementRules], ...]:
    """The placement rules of all backends, each once."""
    families: list[dict[Precision, PlacementRules]] = []
    for name in _BACKENDS:
        rules = _learned_rules(runtimes.backend(name), job)
        if rules and rules not in families:
            families.append(rules)
    return tuple(families)


def _learned_rules(backend: runtimes.Backend, job: Job) -> dict[Precision, PlacementRules]:
    """Precision → placement rules, for the precisions whose values calibration observes and that
    the backend runs on the job's target."""
    rules = {}
    for scheme in _LEARNED:
        with suppress(Impossible):
            rules[scheme] = backend.rules(job.target, scheme)
    return rules


def rules_of(backend: runtimes.Backend, job: Job) -> dict[Precision, PlacementRules]:
    """Precision → placement rules, of the job's precision and those that its recipe gives to nodes,
    with the recipe's placement; and the backend's rules for the precision of the last layers.
    Raises Impossible."""
    rules = {scheme: backend.rules(job.target, scheme) for scheme in job.quantized}
    last = rules[job.precision].last if rules else None
    last_rules = {} if last is None else {last: backend.rules(job.target, last)}
    placement = job.recipe.quantization.placement
    return last_rules | {name: _placed(rule, placement) for name, rule in rules.items()}


def _placed(rules: PlacementRules, placement: Placement) -> PlacementRules:
    """The rules with the recipe's placement, except for rules that the backend does not have."""
    if placement.zero_points is not None:
        rules = rules.with_zero_points(placement.zero_points)
    changes: dict[str, Any] = {
        key: frozenset(value) if isinstance(value, tuple) else value
        for key, value in placement
        if key != "zero_points" and value is not None and getattr(rules, key) is not None
    }
    return replace(rules, **changes)
