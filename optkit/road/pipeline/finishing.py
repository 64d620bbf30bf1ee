"""Finish an artifact on a machine that has its device: compile, score, time and judge it again.

    artifact ─restore→ Build ─compile_, score, time→ figures measured on the device ─→ artifact

Graphs, plan and samples are those of the artifact. Nothing is exported, calibrated or quantized
again, so it stays the same build (`manifest.digest`). From the recipe, optkit reads only the
sizes, the gates and the settings of timing, and it opens none of the files that the recipe names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from optkit.facts.assignment import Assignment
from optkit.facts.errors import IntegrityError, RecipeError
from optkit.facts.evidence import Evidence
from optkit.facts.precisions import Precision, precision
from optkit.ground import intake as stage
from optkit.ground.artifact import MANIFEST, MODEL, Artifact
from optkit.ground.devices import Target
from optkit.ground.execute.runner import Runner, Steps
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Recipe
from optkit.ground.recipe.origin import Origin
from optkit.ground.recipe.problems import refusal
from optkit.road.pipeline.attribution import attribute
from optkit.road.pipeline.compilation import compile_
from optkit.road.pipeline.evaluation import score, show_worst
from optkit.road.pipeline.job import Build, Job, Role
from optkit.road.pipeline.peak_memory import weigh
from optkit.road.pipeline.recorded_samples import (
    GivenTask,
    assets_of,
    recorded_samples,
    recorded_task,
)
from optkit.road.pipeline.sources import samples_of
from optkit.road.pipeline.timing import time
from optkit.road.steps.compare import ComparedOutputs
from optkit.road.steps.graph import Graph
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.random import Random
from optkit.show.report.contract import report_of, result_of

_RECIPE = ("name", "inputs", "axes", "bench", "gates", "compiler")


@dataclass(frozen=True)
class UnfinishedArtifact:
    """An artifact that the compiler `backend` will finish for `target`, which is this machine.

    `pending`: the backends that stay pending. `task`: it replaces the task that scored the
    artifact. `strict`: as in a Job."""

    artifact: Artifact
    target: Target
    backend: str
    pending: tuple[str, ...]
    task: GivenTask | None = None
    strict: bool = False


def finish(unfinished: UnfinishedArtifact, runner: Runner) -> Build:
    """Compile for the device of this machine, and measure there.

    Raises what the steps raise, and InputRefused if there are no samples to score.
    """
    build = _restore(unfinished, runner)
    compile_(build, runner)
    if build.evaluation is not None:
        roles: dict[Role, tuple[Graph, str, Evidence]] = {
            "baseline": (build.baseline, MODEL, Evidence.MEASURED),
            "candidate": (build.graph, MODEL, Evidence.MEASURED),
        }
        for role, parts in roles.items():
            build.scores[role] = score(build, runner, role, *parts)
        show_worst(build, runner, roles)
    time(build, runner)
    weigh(build, runner)
    attribute(build, runner)
    return build


def _restore(unfinished: UnfinishedArtifact, runner: Runner) -> Build:
    artifact, task = unfinished.artifact, unfinished.task
    manifest, recipe = artifact.manifest, recorded(artifact)
    result, report = result_of(artifact), report_of(artifact)
    scored = result.accuracy is not None
    if task is not None:
        recipe = task.applied(recipe)
    elif scored:
        recipe = recorded_task(artifact, recipe)
    build = Build(
        Job(
            recipe,
            unfinished.target,
            precision(manifest.precision),
            strict=unfinished.strict,
            embed_pictures=report.worst is not None and report.worst.embedded,
        ),
        unfinished.backend,
        unfinished.pending,
        baseline_of(artifact),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        measured=True,
        plugins=artifact.plugins,
    )
    nodes = {row.node: precision(row.precision) for row in report.quantization}
    reasons = {row.node: row.reason for row in report.quantization if row.reason is not None}
    if result.fidelity is not None:
        build.candidate_fidelity = ComparedOutputs(fidelity=result.fidelity)
    build.source = Graph()  # nothing is known of how it was exported
    build.graph = Graph(folder=staged_graph(artifact.path / MODEL, runner))
    build.baseline = Graph(folder=staged_graph(artifact.baseline_path / MODEL, runner))
    build.quantized = QuantizationResult(assignment=Assignment(nodes, reasons))
    if task is not None:
        build.evaluation = samples_of(build, runner, "evaluation", assets_of(artifact))
    elif scored:
        build.evaluation = recorded_samples(artifact, build, runner)
    build.probe = build.evaluation or runner.do(Random(random=build.sizes), "random inputs")
    return build


def recorded(artifact: Artifact) -> Recipe:
    """The part of an artifact's recipe about sizes, gates and timing; none of the files that the
    recipe names is opened. Raises IntegrityError if it is no recipe."""
    record = artifact.manifest.recipe
    try:
        return Recipe.from_dict({name: record[name] for name in _RECIPE if name in record})
    except RecipeError as error:
        raise _no_recipe(error.message, artifact.path / MANIFEST) from error


def whole_recipe(record: Mapping[str, object], file: Path) -> Recipe:
    """The recipe that a manifest or a report contains; the files that it names need not exist.
    Raises IntegrityError, which names the key, if it is no recipe."""
    try:
        return Recipe.of_record(record)
    except ValidationError as error:
        origin = Origin(dict(record), "recipe", file.parent)
        raise _no_recipe(refusal(error, origin, Recipe).message, file) from error


def baseline_of(artifact: Artifact) -> Precision:
    """The precision that an artifact is compared with. Raises IntegrityError if it names none."""
    baseline = result_of(artifact).baseline
    if baseline is None:
        raise IntegrityError(
            "result.baseline: null, but an artifact of one graph has a baseline",
            where=str(artifact.path / MANIFEST),
        )
    return precision(baseline.precision)


def _no_recipe(reason: str, file: Path) -> IntegrityError:
    return IntegrityError(f"recipe: {reason}", where=str(file))


def staged_graph(file: Path, runner: Steps) -> Foreign:
    """The folder of an artifact's graph, model.onnx, copied by the intake as a foreign file."""
    staged = stage.stage_onnx(file, runner.objects)
    names = {name: sha256 for name, (sha256, _) in staged.files.items()}
    return Foreign(staged.path.parent, staged.sha256, files=names)
