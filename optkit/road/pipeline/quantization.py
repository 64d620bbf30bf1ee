"""From a graph and its samples to the quantized graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import NamedTuple

from optkit.facts.assignment import Scheme
from optkit.facts.errors import InputRefused, located
from optkit.facts.placement import PlacementRules, ProductForm
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.facts.tensors import axes_of
from optkit.ground import intake, runtimes
from optkit.ground.decoder import IDS, Decoder
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Recipe
from optkit.road.pipeline import declared_sizes, large
from optkit.road.pipeline.attribution import tuned
from optkit.road.pipeline.cache_quantization import quantize_cache
from optkit.road.pipeline.foreign_graph import imported
from optkit.road.pipeline.graphs import carried, compared_samples, comparison, in_floats, written
from optkit.road.pipeline.job import Build, Job, calibration_of
from optkit.road.pipeline.job_rules import families_of, rules_of
from optkit.road.pipeline.refusals import check_enough
from optkit.road.pipeline.run_samples import observed, sample_batch
from optkit.road.steps.calibrate import Calibrate, CalibrationResult
from optkit.road.steps.collect import Samples
from optkit.road.steps.cover_sizes import CoveredSizes
from optkit.road.steps.fuse import FusedGraph
from optkit.road.steps.given_ranges import TakeRanges
from optkit.road.steps.graph import Graph
from optkit.road.steps.noisy_nodes import FindNoisyNodes
from optkit.road.steps.prepare import Prepare
from optkit.road.steps.quantize import QuantizationResult, QuantizationSettings, Quantize
from optkit.road.steps.quantize_in_order import QuantizeInOrder
from optkit.road.steps.quantize_layers import QuantizeLayers

_FINER = PRECISIONS["int8-weight-only"]


def quantize(build: Build, runner: Steps) -> None:
    """The graph in the job's precision, and a decoder's cache in the format of the recipe."""
    _quantize_graph(build, runner)
    quantize_cache(build, runner)


def _quantize_graph(build: Build, runner: Steps) -> None:
    """Collect statistics of the FP32 graph, rescale it so that it quantizes better, then write Q/DQ
    into the carrier graph by the rules of the backend. A graph that another tool has quantized
    keeps its codes instead."""
    job = build.job
    if not job.precision.quantized:
        half = None if job.precision.name == "fp32" else build.cast
        build.graph = half or written(build, build.fused, "fp32", runner)
        return
    if build.given is not None:
        build.quantized = imported(build, build.given, runner)
        build.graph = written(build, build.quantized, job.precision.name, runner)
        return
    scheme = Scheme(job.precision, build.baseline_precision.name, _rules(build))
    way = large.way_of(build, scheme.rules, runner, rescales=_prepares(build, scheme.rules))
    planned = large.planned_memory(runner.limits.memory_bytes) if way == "parts" else None
    chosen = _Chosen(scheme, settings_of(job.recipe), {})
    chosen = chosen.with_forms(dict.fromkeys(sorted(build.in_floats), "float"), {}, build)
    statistics: CalibrationResult | CoveredSizes | FusedGraph | None = _statistics(
        build, runner, way, planned
    )
    if isinstance(statistics, CalibrationResult):
        statistics, chosen = _adapted(build, statistics, chosen, planned, runner)
    if way == "layers" and (samples := observed(build, runner)) is not None:
        quantized = _quantize_layers(build, samples, runner, chosen.scheme, chosen.settings)
    else:
        quantized = _in_codes(build, statistics, chosen, planned, runner)
    build.quantized = replace(quantized, assignment=quantized.assignment.told(chosen.reasons))
    graph: Graph = quantized
    if not quantized.planned and not quantized.has_codes:
        graph, build.prepared = in_floats(build, runner), None
    build.graph = written(build, graph, job.precision.name, runner)


def _adapted(
    build: Build, found: CalibrationResult, chosen: _Chosen, planned: int | None, runner: Steps
) -> tuple[CalibrationResult | CoveredSizes | FusedGraph, _Chosen]:
    """The graph in a form that quantizes better (`build.prepared`) if it gains, its statistics, and
    other forms of the products that need them."""
    statistics, chosen = _covered(build, found, chosen, planned, runner)
    prepared = _prepared(build, statistics, chosen, runner)
    if planned is None:
        finer = _finer(build, prepared or statistics, chosen, runner)
        if finer is not None:
            chosen = finer
            prepared = _prepared(build, statistics, chosen, runner, "again ")
    build.prepared = prepared
    return prepared or statistics, chosen


def _in_codes(
    build: Build,
    statistics: CalibrationResult | CoveredSizes | FusedGraph | None,
    chosen: _Chosen,
    planned: int | None,
    runner: Steps,
) -> QuantizationResult:
    """The graph with scales and codes."""
    carrier: Graph = build.carrier
    if build.prepared is not None:
        carrier = carried(build, build.prepared, runner, "the smoothed graph ")
    step = Quantize(
        fused=build.prepared or build.fused,
        carrier=carrier,
        statistics=statistics,
        scheme=chosen.scheme,
        settings=chosen.settings,
        planned_memory=planned,
        left_out=() if planned is None else _left_out(build, chosen),
    )
    compensates = statistics is not None and _compensates(build, chosen.scheme.rules)
    if planned is None and compensates:
        step = _in_order(build, step, runner)
    return runner.do(step, f"quantize to {build.job.precision}")


def _rules(build: Build) -> dict[Precision, PlacementRules]:
    """The rules of the job. Scales are trained without zero points."""
    rules = rules_of(runtimes.backend(build.compiler), build.job)
    if build.source.trained:
        return {one: rule.with_zero_points(False) for one, rule in rules.items()}
    return rules


class _Chosen(NamedTuple):
    """The scheme and the settings, and the reasons of the nodes to which they give a form that the
    recipe does not name."""

    scheme: Scheme
    settings: QuantizationSettings
    reasons: Mapping[str, str]

    def with_forms(
        self, forms: Mapping[str, ProductForm], reasons: Mapping[str, str], build: Build
    ) -> _Chosen:
        """The same, with these forms of nodes."""
        method = self.settings.settings
        precisions = {
            "float": self.scheme.unquantized,
            "int8": self.scheme.precision,
            "int8-weight-only": _FINER,
        }
        others = {
            escape(name): precisions[form] for name, form in forms.items() if form != "two terms"
        }
        nodes = others | method.nodes  # a recipe's patterns go last
        rules = dict(self.scheme.rules)
        if _FINER in others.values():
            rules[_FINER] = runtimes.backend(build.compiler).rules(build.job.target, _FINER)
        return _Chosen(
            replace(self.scheme, rules=rules),
            replace(
                self.settings,
                order=tuple(nodes),
                settings=method.model_copy(update={"nodes": nodes}),
            ),
            {**self.reasons, **reasons},
        )


def _covered(
    build: Build, statistics: CalibrationResult, chosen: _Chosen, planned: int | None, runner: Steps
) -> tuple[CalibrationResult | CoveredSizes, _Chosen]:
    """Statistics whose ranges hold at all declared sizes, and other forms of the products for which
    no range does."""
    samples = observed(build, runner)
    if samples is None:
        return statistics, chosen
    found = declared_sizes.covered(
        build, statistics, samples, chosen.scheme, chosen.settings, families_of(build.job),
        _sizes(build), planned, runner,
    )  # fmt: skip
    if found is None:
        return statistics, chosen
    if found.nodes:
        chosen = chosen.with_forms(found.nodes, found.reasons, build)
    return (found if found.widened else statistics), chosen


def _prepared(
    build: Build,
    statistics: CalibrationResult | CoveredSizes,
    chosen: _Chosen,
    runner: Steps,
    again: str = "",
) -> FusedGraph | None:
    """The graph in a form that quantizes better, with its statistics; None if it stays as it is."""
    if not _prepares(build, chosen.scheme.rules):
        return None
    random, reason = comparison(build, runner, "prepared")
    step = Prepare(
        graph=build.fused, statistics=statistics, scheme=chosen.scheme, settings=chosen.settings,
        samples=compared_samples(build, runner), random=random, compare=reason is None,
        uncompared=reason,
    )  # fmt: skip
    return runner.do(step, f"smooth and equalize {again}".rstrip())


def _finer(
    build: Build,
    statistics: CalibrationResult | CoveredSizes | FusedGraph,
    chosen: _Chosen,
    runner: Steps,
) -> _Chosen | None:
    """A scheme and settings in which products whose activation needs more than one scale have the
    form that is fastest on the target. None if there are no such products, or nobody looks for
    them: the backend runs no two terms; the recipe has its own choice or the least effort; or the
    model has trained scales."""
    samples = observed(build, runner)
    if not _looks_for_noise(build, chosen) or samples is None:
        return None
    step = FindNoisyNodes(
        graph=statistics if isinstance(statistics, FusedGraph) else build.fused,
        statistics=statistics, samples=samples, scheme=chosen.scheme, settings=chosen.settings,
        sizes=_sizes(build),
    )  # fmt: skip
    found = runner.do(step, "judge activations at the outputs")
    if not found.nodes:
        return None
    made = chosen.with_forms(found.nodes, found.reasons, build)
    twice = tuple(escape(name) for name, form in found.nodes.items() if form == "two terms")
    method = made.settings.settings.model_copy(update={"two_term": twice})
    return made._replace(settings=replace(made.settings, settings=method))


def _looks_for_noise(build: Build, chosen: _Chosen) -> bool:
    """Whether a build looks for products whose activation needs more than one scale."""
    method = chosen.settings.settings
    able = any(own.two_term or own.recurrent for own in chosen.scheme.rules.values())
    asked = method.two_term == "auto" and method.effort != "fast" and not build.source.trained
    return able and asked


def _left_out(build: Build, chosen: _Chosen) -> tuple[str, ...]:
    """What a build does with a model that fits in memory, and not with a larger one."""
    unjudged = (large.UNJUDGED,) if _looks_for_noise(build, chosen) else ()
    compensates = _compensates(build, chosen.scheme.rules)
    return unjudged + ((large.UNCOMPENSATED,) if compensates else ())


def _in_order(build: Build, step: Quantize, runner: Steps) -> Quantize:
    """The step in which weights make up for the errors of the products before them."""
    samples = observed(build, runner)
    assert samples is not None
    return QuantizeInOrder(
        fused=step.fused, carrier=step.carrier, statistics=step.statistics, scheme=step.scheme,
        settings=step.settings, samples=samples, batch=sample_batch(build),
        memory=runner.limits.memory_bytes,
    )  # fmt: skip


def _sizes(build: Build) -> dict[str, int]:
    """The sizes of the named axes in most runs. A decoder with a cache runs once for each token of
    a text."""
    sizes = tuned(build.job.recipe)
    if Decoder.of(build.inputs, build.outputs) is None:
        return sizes
    ids = next(info for info in build.inputs if info.name == IDS)
    return sizes | dict.fromkeys(axes_of(ids.shape), 1)


def _statistics(
    build: Build, runner: Steps, way: large.Way, planned: int | None
) -> CalibrationResult | None:
    """Statistics of the whole graph: from the calibration samples, from the ranges that the recipe
    gives, or from both. None if there are neither, or if layers are calibrated one by one."""
    recipe = build.job.recipe
    if build.calibration is not None:
        check_enough(build.calibration, recipe)
        samples = observed(build, runner) if way in ("whole", "parts") else None
        if samples is not None:
            build.statistics = _calibrate(build, samples, planned, runner)
    if recipe.ranges_file is not None:
        place = recipe.ranges_file.path
        if way not in ("whole", "parts"):
            raise InputRefused(
                "given ranges need the whole graph in memory",
                where=str(place),
                hint="raise --memory",
            )
        with located(str(place)):
            build.statistics = _given_ranges(build, place, build.statistics, runner)
    return build.statistics


def _quantize_layers(
    build: Build, samples: Samples, runner: Steps, scheme: Scheme, settings: QuantizationSettings
) -> QuantizationResult:
    memory = runner.limits.memory_bytes
    step = QuantizeLayers(
        fused=build.fused,
        carrier=build.carrier,
        samples=samples,
        scheme=scheme,
        settings=settings,
        batch=sample_batch(build),
        planned_memory=large.planned_memory(memory),
        memory=memory,
    )
    return runner.do(step, f"quantize to {build.job.precision} layer by layer")


def _calibrate(
    build: Build, samples: Samples, planned: int | None, runner: Steps
) -> CalibrationResult:
    """Statistics that every quantized precision of every backend can use."""
    job = build.job
    step = Calibrate(
        graph=build.fused,
        samples=samples,
        batch=sample_batch(build),
        families=families_of(job),
        moments=_sums_moments(job),
        planned_memory=planned,
        memory=runner.limits.memory_bytes,
    )
    return runner.do(step, "calibrate" if planned is None else "calibrate part by part")


def _sums_moments(job: Job) -> bool:
    """Whether calibration sums the second moments of all rows. For weights of 8 bits GPTQ learns as
    much from the sampled rows: the outputs' SQNR differs by less than 0.4 dB, up or down."""
    settings = job.recipe.quantization
    few = any(scheme.weights is not None and scheme.weights.bits < 8 for scheme in job.quantized)
    return settings.learns and (settings.effort == "best" or few)


def _given_ranges(
    build: Build, place: Path, statistics: CalibrationResult | None, runner: Steps
) -> CalibrationResult:
    """The statistics, with the ranges of the file for the values that it names."""
    staged = intake.stage_ranges(place, runner.objects)
    step = TakeRanges(
        graph=build.fused,
        ranges=Foreign(staged.path, staged.sha256),
        statistics=statistics,
        families=families_of(build.job),
    )
    return runner.do(step, "read the given ranges")


def settings_of(recipe: Recipe) -> QuantizationSettings:
    """The settings of the quantization in the recipe, or their defaults."""
    calibration = calibration_of(recipe)
    return QuantizationSettings(
        calibration.method,
        calibration.percentile,
        # the graph is the same with any format of the cache
        recipe.quantization.model_copy(update={"kv_cache": None}),
        tuple(recipe.quantization.nodes),
    )


def _compensates(build: Build, rules: Mapping[Precision, PlacementRules]) -> bool:
    """Whether weights in blocks make up for the errors of the products before them. `rules`: of the
    precisions of the job; the last layer alone has nothing to make up for."""
    asked = build.job.recipe.quantization.compensates and build.calibration is not None
    own = (rules[scheme] for scheme in build.job.quantized)
    return asked and not build.source.trained and any(one.weights_in_blocks for one in own)


def _prepares(build: Build, rules: Mapping[Precision, PlacementRules]) -> bool:
    """Whether the graph is rescaled before quantization: if activations are rounded, before or
    inside the products, because their outliers matter then, and if AWQ rounds the weights. Never
    one with trained scales."""
    if build.source.trained:
        return False
    settings = build.job.recipe.quantization
    smooths = settings.smooth != "off"
    activations = any(own.activation is not None for own in rules.values())
    blocks = any(own.nbits_accuracy is not None for own in rules.values())
    splits = settings.outlier_channels != "off" and any(own.two_term for own in rules.values())
    rescales = smooths or settings.equalize != "off" or splits
    return (activations and rescales) or (blocks and smooths) or settings.weights == "awq"
