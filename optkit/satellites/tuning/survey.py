"""The space of a search: the layers of a model, and the accuracy that each costs alone.

Sensitivity needs no labels: it is the noise at the model's outputs on calibration samples, with one
group quantized and all others in FP32. It is not measured with all groups but one, because the
noises of single groups add up to the noise of any assignment that is not tried yet. A step measures
eight groups, so that a survey that was killed continues with the remaining groups.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from optkit.facts.assignment import Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground import runtimes
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline import Build, calibration_of
from optkit.road.pipeline.run_samples import sample_batch
from optkit.road.steps.collect import Samples
from optkit.road.steps.graph import RandomInputs
from optkit.road.steps.random import Random
from optkit.road.steps.sensitivity import MeasureSensitivity, Sensitivities
from optkit.road.steps.survey import ListLayers, QuantizableLayer
from optkit.satellites.tuning.gains import gain
from optkit.satellites.tuning.space import TWO_TERM, LayerGroup, PrecisionOption, Space

PROBE_SAMPLES = 64
_AT_ONCE = 8  # groups measured in one step
_TWO_TERM_GROUPS = 8  # the groups with the most noise; only these are measured with two terms


@dataclass(frozen=True)
class Survey:
    """The space, the operators in it, and `fixed`: layer that is not in it → the reason."""

    space: Space
    ops: frozenset[str]
    fixed: Mapping[str, str] = field(default_factory=dict)


def survey(
    build: Build,
    precisions: Sequence[Precision],
    runner: Steps,
    each: Callable[..., Iterable[Sensitivities]] = map,
) -> Survey:
    """Measure the space of these quantized precisions on a model that was built in the first of
    them. `each`: applies a function to every group of groups, as `map` does, possibly in threads.
    Raises InputRefused if no layer can be quantized."""
    backend = runtimes.backend(build.compiler)
    rules = {one: backend.rules(build.job.target, one) for one in precisions}
    step = ListLayers(
        graph=build.fused,
        statistics=build.statistics,
        rules=rules,
        carrier=build.baseline_precision.name,
        axes={name: axis.opt for name, axis in build.job.recipe.axis_ranges().items()},
    )
    listed = runner.do(step, "list the layers")
    groups = _grouped(_free(build, listed.layers))
    if not groups:
        raise InputRefused(
            "no layer can be quantized",
            where=build.job.name,
            hint="`optkit build` gives the reason for each layer",
        )
    options = _measured(build, _options(build, precisions), groups, rules, runner, each)
    space = Space(
        tuple(
            LayerGroup(tuple(layer.node for layer in layers), tuple(options[name]))
            for name, layers in groups.items()
        ),
        build.baseline_precision.name,
    )
    ops = frozenset(layer.cost.op for layers in groups.values() for layer in layers)
    return Survey(space, ops, dict(listed.reasons))


def _measured(
    build: Build,
    asked: Iterable[PrecisionOption],
    groups: Mapping[str, Sequence[QuantizableLayer]],
    rules: Mapping[Precision, PlacementRules],
    runner: Steps,
    each: Callable[..., Iterable[Sensitivities]],
) -> dict[str, list[PrecisionOption]]:
    """The options of each group, with what they cost and save."""
    options: dict[str, list[PrecisionOption]] = {name: [] for name in groups}
    for option in asked:
        able = [n for n, group in groups.items() if option.precision in group[0].precisions]
        if option.is_two_term:
            able = _worst([n for n in able if _is_matrix(groups[n])], options)
        rows = _sensitivity(build, option, able, groups, rules, runner, each)
        for name, noise, divergence in rows:
            saved = _gain(build, option, groups[name])
            options[name].append(PrecisionOption(option.name, noise, saved, divergence))
    return options


def probe(build: Build, runner: Steps) -> Samples:
    """Samples for the search: calibration samples, or random ones. Never evaluation samples,
    because they judge the result."""
    if build.calibration is not None:
        return build.calibration
    recipe = build.job.recipe
    drawn = RandomInputs(recipe.describe(build.inputs), recipe.axis_ranges())
    return runner.do(Random(random=drawn), "random inputs")


def exactly(node: str) -> str:
    """The pattern that matches only this node's name."""
    return glob.escape(node)


def _free(build: Build, layers: Iterable[QuantizableLayer]) -> list[QuantizableLayer]:
    """The layers for which the recipe sets no precision."""
    patterns = build.job.recipe.quantization.nodes
    return [layer for layer in layers if not any(fnmatchcase(layer.node, p) for p in patterns)]


def _gain(build: Build, option: PrecisionOption, layers: Iterable[QuantizableLayer]) -> float:
    """The estimated time that the layers of a group save with an option."""
    carrier = build.baseline_precision
    return sum(
        gain(layer.cost, option.precision, carrier, build.job.target, two_term=option.is_two_term)
        for layer in layers
    )


def _grouped(layers: Iterable[QuantizableLayer]) -> dict[str, list[QuantizableLayer]]:
    """First node → the layers that read one value and can have the same precisions."""
    by_value: dict[tuple[str, tuple[Precision, ...]], list[QuantizableLayer]] = {}
    for layer in layers:
        if layer.precisions:
            by_value.setdefault((layer.reads, layer.precisions), []).append(layer)
    return {group[0].node: group for group in by_value.values()}


def _is_matrix(group: Sequence[QuantizableLayer]) -> bool:
    return all(layer.cost.op in ("MatMul", "Gemm") for layer in group)


def _worst(names: Sequence[str], options: Mapping[str, Sequence[PrecisionOption]]) -> list[str]:
    """The groups with the most noise, for which two terms are measured, in the order of the
    graph."""
    ranked = sorted(names, key=lambda name: -options[name][-1].noise)[:_TWO_TERM_GROUPS]
    return [name for name in names if name in ranked]


def _options(build: Build, precisions: Sequence[Precision]) -> Iterator[PrecisionOption]:
    """Each precision; on the CPU also with activations in two terms, if the precision quantizes
    activations."""
    for one in precisions:
        yield PrecisionOption(one.name, 0.0, 0.0)
        if build.measured and not one.weight_codes_only:
            yield PrecisionOption(one.name + TWO_TERM, 0.0, 0.0)


def _sensitivity(
    build: Build,
    option: PrecisionOption,
    able: Sequence[str],
    groups: Mapping[str, Sequence[QuantizableLayer]],
    rules: Mapping[Precision, PlacementRules],
    runner: Steps,
    each: Callable[..., Iterable[Sensitivities]],
) -> Iterator[tuple[str, float, float | None]]:
    """(group, noise, divergence) of every group in `able`, with this option."""
    settings, calibration = build.job.recipe.quantization, calibration_of(build.job.recipe)
    scheme = Scheme(
        option.precision, build.baseline_precision.name, {option.precision: rules[option.precision]}
    )
    samples = probe(build, runner)

    def measure(start: int) -> Sensitivities:
        part = able[start : start + _AT_ONCE]
        nodes = tuple(tuple(layer.node for layer in groups[name]) for name in part)
        patterns = tuple(exactly(node) for group in nodes for node in group)
        step = MeasureSensitivity(
            graph=build.prepared or build.fused,
            samples=samples,
            statistics=build.prepared or build.statistics,
            scheme=scheme,
            groups=nodes,
            method=calibration.method,
            percentile=calibration.percentile,
            settings=settings.model_copy(
                update={"nodes": {}, "two_term": patterns if option.is_two_term else ()}
            ),
            count=PROBE_SAMPLES,
            batch=sample_batch(build),
        )
        span = f"{start + 1} to {start + len(part)} of {len(able)}"
        return runner.do(step, f"sensitivity of layers {span} as {option.name}")

    parts = each(measure, range(0, len(able), _AT_ONCE))
    rows = (row for part in parts for row in part.rows)
    for name, row in zip(able, rows, strict=True):
        yield name, row.noise, row.divergence
