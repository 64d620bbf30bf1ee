"""From a graph and its samples to the quantized graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from optkit import runtimes
from optkit.errors import Impossible
from optkit.execute.runner import Steps
from optkit.pipeline import large
from optkit.pipeline.graphs import cast, comparison, sample_batch, written
from optkit.pipeline.job import Build, Job, calibration_of
from optkit.pipeline.refusals import check_enough
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS, Precision
from optkit.recipe import Recipe
from optkit.steps.calibrate import Calibrate, Calibrated
from optkit.steps.collect import Samples
from optkit.steps.fuse import Fused
from optkit.steps.graph import Graph
from optkit.steps.prepare import Prepare
from optkit.steps.quantize import QuantizationSettings, Quantize, Quantized, Scheme
from optkit.steps.quantize_layers import QuantizeLayers

# Calibration taps what any backend may ask for, so statistics are shared by all targets, and by
# all precisions: the others quantize no value that these do not.
_BACKENDS = tuple(runtimes.BACKENDS)
_LEARNED = (PRECISIONS["int8"], PRECISIONS["fp8"])


def quantize(build: Build, runner: Steps) -> None:
    """Statistics of the FP32 graph, a form of it that quantizes better, then Q/DQ on the carrier as
    the backend's rules want it."""
    job, fused = build.job, build.fused
    if not job.precision.quantized:
        half = None if job.precision.name == "fp32" else build.cast
        build.graph = half or written(build, fused, "fp32", runner)
        return
    rules = _rules_of(runtimes.backend(build.compiler), job)
    carrier: Graph = build.carrier
    statistics: Calibrated | Fused | None = None
    scheme = Scheme(job.precision.name, build.baseline_precision.name, rules)
    settings = settings_of(job.recipe)
    way = large.way(
        build.source.parameters, runner.limits.memory_bytes, rules,
        job.recipe.quantization.weights, sampled=build.calibration is not None, where=job.name,
    )  # fmt: skip
    if build.calibration is not None:
        check_enough(build.calibration, job.recipe)
        if way == "whole":
            statistics = build.statistics = _calibrate(build, build.calibration, runner)
    if statistics is not None and _prepares(job):
        random, reason = comparison(build, runner, "prepared")
        step = Prepare(
            graph=fused, statistics=statistics, scheme=scheme, settings=settings, random=random,
            compare=reason is None, uncompared=reason,
        )  # fmt: skip
        prepared = build.prepared = runner.do(step, "smooth and equalize")
        fused = carrier = statistics = prepared
        if build.baseline_precision.name != "fp32":
            carrier = cast(
                build, fused, build.baseline_precision.name, runner, "the smoothed graph "
            )
    if way == "layers" and build.calibration is not None:
        quantized = _quantize_layers(build, build.calibration, runner, scheme, settings)
    else:
        quantized = runner.do(
            Quantize(
                fused=fused, carrier=carrier, statistics=statistics, scheme=scheme,
                settings=settings,
            ),
            f"quantize to {job.precision}",
        )  # fmt: skip
    build.quantized = quantized
    build.graph = written(build, quantized, job.precision.name, runner)


def _quantize_layers(
    build: Build,
    samples: Samples,
    runner: Steps,
    scheme: Scheme,
    settings: QuantizationSettings,
) -> Quantized:
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


def _calibrate(build: Build, samples: Samples, runner: Steps) -> Calibrated:
    """Statistics that serve every quantized precision of every backend alike."""
    job = build.job
    found = [_rules_of(runtimes.backend(name), job, _LEARNED) for name in _BACKENDS]
    families = [rules for at, rules in enumerate(found) if rules and rules not in found[:at]]
    step = Calibrate(
        graph=build.fused,
        samples=samples,
        batch=sample_batch(build),
        families=tuple(families),
        moments=job.recipe.quantization.weights in ("auto", "gptq"),
        memory=runner.limits.memory_bytes,
    )
    return runner.do(step, "calibrate")


def _rules_of(
    backend: runtimes.Backend, job: Job, learned: Sequence[Precision] | None = None
) -> dict[str, PlacementRules]:
    """Precision → placement rules, of those the backend runs on the job's target; without
    `learned`: the job's own, those its recipe gives to nodes, and that of the last layers, which
    keeps its own placement. Raises Impossible for one of these.
    """
    if learned is None:
        placed = job.recipe.quantization.placement.model_dump(mode="json", exclude_none=True)
        own = {one.name: backend.rules(job.target, one) for one in job.quantized}
        last = own[job.precision.name].last if own else None
        beside = {} if last is None else {last: backend.rules(job.target, PRECISIONS[last])}
        return beside | {name: _placed(rules, placed) for name, rules in own.items()}
    found = {}
    for one in learned:
        with suppress(Impossible):
            found[one.name] = backend.rules(job.target, one)
    return found


def _placed(rules: PlacementRules, placed: Mapping[str, Any]) -> PlacementRules:
    """The rules with the recipe's own placement, where the backend has such a rule at all."""
    told = rules.to_json()
    own = {key: value for key, value in placed.items() if told[key] is not None}
    return PlacementRules.from_json({**told, **own})


def settings_of(recipe: Recipe) -> QuantizationSettings:
    """What the recipe says of the quantization; the defaults of a range where it says nothing."""
    calibration = calibration_of(recipe)
    return QuantizationSettings(
        calibration.method,
        calibration.percentile,
        recipe.quantization,
        tuple(recipe.quantization.nodes),
    )


def _prepares(job: Job) -> bool:
    """Whether the values themselves are quantized, so that their outliers matter, or AWQ asked for
    a rescaled graph."""
    settings = job.recipe.quantization
    takes_part = any(one.activations for one in job.quantized)
    return (takes_part and (settings.smooth, settings.equalize) != ("off", "off")) or (
        settings.weights == "awq"
    )
