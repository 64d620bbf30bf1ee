"""From a graph and its samples to the quantized graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from optkit import runtimes
from optkit.errors import Impossible
from optkit.execute.runner import Input, Made, Steps
from optkit.pipeline import large
from optkit.pipeline.graphs import cast, comparison, sample_batch, written
from optkit.pipeline.job import Build, Job, calibration_of
from optkit.pipeline.refusals import check_enough
from optkit.precisions import PRECISIONS, Precision
from optkit.recipe import Recipe
from optkit.steps import STEPS

# Calibration taps what any backend may ask for, so statistics are shared by all targets, and by
# all precisions: the others quantize no value that these do not.
_BACKENDS = tuple(runtimes.BACKENDS)
_LEARNED = (PRECISIONS["int8"], PRECISIONS["fp8"])


def quantize(made: Build, runner: Steps) -> None:
    """Statistics of the FP32 graph, a form of it that quantizes better, then Q/DQ on the carrier as
    the backend's rules want it."""
    job, fused = made.job, made.entries["fused"]
    if not job.precision.quantized:
        whole = job.precision.name == "fp32"
        made.entries["graph"] = (
            written(made, fused, "fp32", runner) if whole else made.entries["cast"]
        )
        return
    rules = _rules_of(runtimes.backend(made.compiler), job)
    inputs: dict[str, Input] = {"fused": fused, "carrier": made.entries["carrier"]}
    params = {"precision": job.precision.name, "carrier": made.baseline_precision.name,
              "rules": rules, **settings_of(job.recipe)}  # fmt: skip
    way = large.way(
        made.entries["source"].meta.get("parameters", 0), runner.limits.memory_bytes, rules,
        job.recipe.quantization.weights, sampled="calibration" in made.entries, where=job.name,
    )  # fmt: skip
    if "calibration" in made.entries:
        check_enough(made.entries["calibration"], job.recipe)
    if "calibration" in made.entries and way == "whole":
        statistics = _calibrate(made, runner)
        inputs["statistics"] = made.entries["statistics"] = statistics
    if "statistics" in inputs and _prepares(job):
        compared, here = comparison(made, runner, "prepared")
        prepared = runner.step(
            STEPS["prepare"].kind,
            "smooth and equalize",
            {"graph": fused, "statistics": inputs["statistics"]},
            {**params, **compared},
            here,
        )
        inputs |= {"fused": prepared, "statistics": prepared, "carrier": prepared}
        made.entries["prepared"] = prepared
        if made.baseline_precision.name != "fp32":
            inputs["carrier"] = cast(
                made, prepared, made.baseline_precision.name, runner, "the smoothed graph "
            )
    if way == "layers":
        found = _quantize_layers(made, runner, inputs, params)
    else:
        found = runner.step(STEPS["quantize"].kind, f"quantize to {job.precision}", inputs, params)
    made.entries["quantized"] = found
    made.entries["graph"] = written(made, found, job.precision.name, runner)


def _quantize_layers(
    made: Build, runner: Steps, inputs: dict[str, Input], params: dict[str, Any]
) -> Made:
    memory = runner.limits.memory_bytes
    return runner.step(
        STEPS["quantize_layers"].kind,
        f"quantize to {made.job.precision} layer by layer",
        {**inputs, "samples": made.entries["calibration"]},
        {**params, "batch": sample_batch(made),
         "planned_memory": large.planned_memory(memory)},
        {"memory": memory},
    )  # fmt: skip


def _calibrate(made: Build, runner: Steps) -> Made:
    """Statistics that serve every quantized precision of every backend alike."""
    job = made.job
    found = [_rules_of(runtimes.backend(name), job, _LEARNED) for name in _BACKENDS]
    families = [rules for at, rules in enumerate(found) if rules and rules not in found[:at]]
    return runner.step(
        STEPS["calibrate"].kind,
        "calibrate",
        {"graph": made.entries["fused"], "samples": made.entries["calibration"]},
        {"batch": sample_batch(made), "families": families,
         "moments": job.recipe.quantization.weights in ("auto", "gptq")},
        {"memory": runner.limits.memory_bytes},
    )  # fmt: skip


def _rules_of(
    backend: runtimes.Backend, job: Job, learned: Sequence[Precision] | None = None
) -> dict[str, Any]:
    """Precision → placement rules as JSON, of those the backend runs on the job's target; without
    `learned`: the job's own, those its recipe gives to nodes, and that of the last layers, which
    keeps its own placement. Raises Impossible for one of these.
    """
    if learned is None:
        placed = job.recipe.quantization.placement.model_dump(mode="json", exclude_none=True)
        own = {one.name: backend.rules(job.target, one).to_json() for one in job.quantized}
        last = own[job.precision.name]["last"] if own else None
        beside = (
            {} if last is None else {last: backend.rules(job.target, PRECISIONS[last]).to_json()}
        )
        return beside | {
            name: {**rules, **{key: placed[key] for key in placed if rules[key] is not None}}
            for name, rules in own.items()
        }
    found = {}
    for one in learned:
        with suppress(Impossible):
            found[one.name] = backend.rules(job.target, one).to_json()
    return found


def settings_of(recipe: Recipe) -> dict[str, Any]:
    calibration = calibration_of(recipe)
    return {
        "method": calibration["method"],
        "percentile": calibration["percentile"],
        "settings": recipe.quantization.model_dump(mode="json"),
        # the last pattern that matches counts, and an object's keys have no order in a digest
        "order": list(recipe.quantization.nodes),
    }


def _prepares(job: Job) -> bool:
    """Whether the values themselves are quantized, so that their outliers matter, or AWQ asked for
    a rescaled graph."""
    settings = job.recipe.quantization
    takes_part = any(one.activations for one in job.quantized)
    return (takes_part and (settings.smooth, settings.equalize) != ("off", "off")) or (
        settings.weights == "awq"
    )
