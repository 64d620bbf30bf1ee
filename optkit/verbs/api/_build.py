"""`build` turns a model into an artifact; `rehearse` lists the steps of a build."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.facts.documents.dry_run import RehearsedPair
from optkit.facts.engines import BuildSpec
from optkit.facts.errors import InputRefused, IntegrityError, UsageError
from optkit.facts.precisions import Precision
from optkit.facts.request import Request
from optkit.ground import artifact
from optkit.ground.artifact import SAMPLES, Artifact
from optkit.ground.devices import Target, available_memory
from optkit.ground.execute.rehearsal import Rehearsal
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.task import TaskLimits
from optkit.ground.recipe import Recipe
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike, in_memory
from optkit.road.jobs.batches import Batch
from optkit.road.jobs.in_memory import Evaluate
from optkit.road.pipeline import Job, delivery, judged_build
from optkit.show.report.build_result import joined
from optkit.show.report.contract import result_of
from optkit.verbs.api import cluster_finish

if TYPE_CHECKING:
    from torch.nn import Module


def build(
    model: Module | Request | str | Path | None = None,
    example_inputs: Batch | None = None,
    *,
    target: str | Target,
    precision: str | Precision | None = None,
    recipe: RecipeLike | None = None,
    calibration: Iterable[Batch] | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    embed_eval: int = 0,
    embed_pictures: bool = False,
    defer: bool = False,
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> Artifact:
    """Build a verified artifact of `model` for a target.

    model: an nn.Module, "file.py:factory", "x.onnx", "x.pt2", a Hugging Face folder or "org/name";
        a Request, which can also override the recipe; None: the model of the recipe.
    example_inputs: for an nn.Module: a tensor, a tuple or a dict by argument name; axis 0 is the
        batch.
    target, precision: by name, as `optkit targets` lists them. precision None: that of the graph if
        another tool has quantized the file, which then keeps its codes and scales; else int8.
    recipe: a Recipe, its name, its path, or its keys and values; None: the recipe in the model's
        folder, else the project's.
    calibration: batches (a dict by input name, a tuple, or one array; other items of a batch, such
        as labels, are ignored). At most `calibration.samples` of the recipe are read, by default
        256. None: the source of the recipe.
    evaluate: called with a session of the candidate and one of the baseline; returns one score per
        sample, shape [samples], higher is better; None: the recipe's task.
    out: the folder that gets the artifact NAME-TARGET-PRECISION; one of that name is replaced.
    name: name of an nn.Module; None: the name of its class.
    embed_eval: put the evaluation samples, with their labels, into the artifact if they have at
        most this number of bytes; 0: never.
    embed_pictures: draw the samples on which the candidate loses most into the report, if the task
        draws them, as `detection` does. The artifact then contains up to six samples as small
        pictures, with what is annotated in them.
    defer: do not compile an engine or measure latency here; `finish` does it on a host with the
        device.
    strict: measure a latency again if it was measured under bad conditions, and refuse a model
        without trained weights.

    Raises UnknownName, Impossible (a precision that the target does not support), ToolchainMissing,
    RecipeError, ExportFailed, InputRefused, WorkerFailed, StorageError. A failed gate does not
    raise: the artifact is written and marked, see `artifact.result["gate"]`.
    """
    runner = workspace.runner()
    precision = precision or jobs.precision_of(model, recipe, runner)
    job = jobs.job_of(
        model, example_inputs, jobs.pair(target, precision), recipe=recipe,
        calibration=calibration, name=name, runner=runner,
    )  # fmt: skip
    job = replace(job, deferred=defer, strict=strict, embed_pictures=embed_pictures)
    return artifact_of(job, runner, Path(out), embed_eval, evaluate)


def artifact_of(
    job: Job, runner: Runner, out: Path, embed_eval: int = 0, evaluate: Evaluate | None = None
) -> Artifact:
    """The artifact of a job. If a cluster has the device, it finishes the pending work."""

    if former := _replaced_model(out / job.name, job):
        runner.note(
            f"{out / job.name} is of another model ({former}), and this build replaces it; "
            "--set name=NAME or another --out keeps both"
        )

    def work() -> Artifact:
        parts = pipeline.parts(job.recipe, runner)
        if not parts:
            return _deliver(job, runner, out, embed_eval, evaluate)
        if evaluate is None:
            return _in_parts(parts, job, runner, out, embed_eval)
        raise UsageError(
            f"evaluate gets one session, but the model consists of {' and '.join(parts)}",
            where="build(evaluate=...)",
            hint="leave it out, and evaluate the parts of the artifact together",
        )

    return cluster_finish.completed(work, job.target.name, runner, strict=job.strict)


def _replaced_model(place: Path, job: Job) -> str | None:
    """The model of the artifact in this place, if a record says that it is not that of the job.
    Records name a file without its folder, which differs between machines."""
    try:
        record = artifact.Artifact.load(place).manifest.recipe
    except (InputRefused, IntegrityError):  # there is none, or it is damaged
        return None
    former, model = Recipe.of_record(record).model, job.recipe.to_json()["model"]
    if former is None or not isinstance(model, dict):
        return None
    named = former.factory or former.path or former.hub
    same = named in (model["factory"], model["path"], model["hub"])
    return None if same else str(named).partition(":")[2] or named


def _in_parts(
    parts: Sequence[str], job: Job, runner: Runner, out: Path, embed_eval: int
) -> Artifact:
    """An artifact of several graphs. Each graph is built like a separate model."""
    artifact.prepare(out, job.name)
    place = out / job.name
    with runner.store.scratch() as folder:
        built = {
            part: _deliver(_part(job, part), runner, folder, embed_eval, None, place=place / part)
            for part in parts
        }
        results = {part: result_of(one) for part, one in built.items()}
        whole = joined(results, model=job.recipe.name, artifact=str(place))
        return delivery.join(job.name, job.recipe.to_json(), built, whole, out)


def _part(job: Job, part: str) -> Job:
    recipe = job.recipe.with_overrides([f"model.part={part}", f"name={part}"])
    return replace(job, recipe=recipe)


def _deliver(
    job: Job,
    runner: Runner,
    out: Path,
    embed_eval: int,
    evaluate: Evaluate | None,
    place: Path | None = None,
) -> Artifact:
    """Run all stages of a job and write the artifact into `out`. `evaluate`: it replaces the task
    of the recipe. `place`: the final folder of the artifact; None: `out`."""
    pipeline.check(job)
    artifact.prepare(out, job.name)
    build = pipeline.run(job, runner, pipeline.BUILD)
    scores = None if evaluate is None else in_memory.scores(evaluate, build, runner)
    place = place or out / job.name
    judged = judged_build.judge(build, runner.records, artifact=str(place), scores=scores)
    delivered = delivery.deliver(build, judged, out, embed_eval, runner.store)
    if embed_eval and build.scored is not None and SAMPLES not in delivered.manifest.files:
        runner.note(
            f"{job.name}: its evaluation samples are larger than {embed_eval} bytes, so the "
            "artifact does not contain them"
        )
    return delivered


def rehearse(
    *,
    recipe: Recipe,
    target: str | Target,
    precision: str | Precision | None = None,
    workspace: Workspace = Workspace(),
) -> RehearsedPair:
    """The steps of a build: which of them are in the store, and how long the others took before.
    Writes nothing. Raises what `build` raises before its first step, and InputRefused for a Python
    model without declared inputs, which a build refuses once it has loaded the model."""
    limits = TaskLimits(available_memory() // 2)
    specs: dict[tuple[str, str], BuildSpec] = {}
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(workspace.store(), limits, Path(folder) / "objects", workspace.fresh)
        precision = (
            precision or pipeline.quantized_to(recipe, replace(rehearsal, lines=[])) or jobs.DEFAULT
        )
        job = Job(recipe, *jobs.pair(target, precision), code=Path.cwd())
        parts = pipeline.parts(recipe, rehearsal)
        for part_job in [_part(job, part) for part in parts] or [job]:
            build = pipeline.run(part_job, rehearsal, pipeline.BUILD)
            specs |= {(spec.backend, spec.precision): spec for spec in build.build_spec.values()}
    if recipe.source is not None and recipe.source.kind == "python" and not recipe.inputs:
        from optkit.craft.sources import torch_module

        raise torch_module.undeclared(recipe.name)
    return RehearsedPair(
        target=job.target.name,
        precision=job.precision.name,
        steps=tuple(rehearsal.lines),
        asked=tuple(specs.values()),
    )
