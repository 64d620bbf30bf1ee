"""A model to an artifact: `build`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit import pipeline
from optkit.api import elsewhere, objects, request
from optkit.api.artifacts import Built, load
from optkit.devices import available_memory
from optkit.errors import UsageError
from optkit.execute.local import Limits
from optkit.execute.rehearsal import Line, Rehearsal
from optkit.execute.runner import Listener, Runner
from optkit.pipeline import Job
from optkit.recipe import Recipe

if TYPE_CHECKING:
    from optkit.artifact import Artifact

EMBED_EVAL = 64 * 2**20
"""Bytes of evaluation samples that an artifact may carry, unless said otherwise."""


def build(
    model: Any = None,
    example_inputs: Any = None,
    *,
    target: str,
    precision: str = "int8",
    recipe: str | Path | Mapping[str, Any] | None = None,
    calibration: Iterable[Any] | None = None,
    evaluate: objects.Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    cache: str | Path | None = None,
    remote: str | None = None,
    on: str | None = None,
    memory: int | None = None,
    listener: Listener | None = None,
) -> Artifact:
    """Build a verified artifact of `model` for a target.

    model: an nn.Module (then `example_inputs`: a tensor, tuple or dict, axis 0 the batch), or
    "file.py:factory", "x.onnx", "x.pt2"; None: the recipe's. calibration: an iterable of batches
    (dict by input name, tuple, or one array; what else is in a batch, such as labels, is passed
    over), read up to the recipe's `calibration.samples`, 256 unless it says otherwise. evaluate:
    called with a session of the candidate and one of the baseline; returns one score per sample,
    shape [samples], higher is better. remote: URL of a place through which machines share finished
    steps. on: "ray" or "ray://HOST:10001", a cluster that does the steps, and finishes what is
    pending. memory: bytes a step may use.

    Raises OptkitError subclasses (see optkit.errors). A failed gate does not raise: the artifact is
    written and marked, see `artifact.result["gate"]`.
    """
    runner = request.open_runner(
        cache=None if cache is None else Path(cache), remote=remote, memory=memory,
        listener=listener, on=on,
    )  # fmt: skip
    job = request.job_of(
        model, example_inputs, target=target, precision=precision, recipe=recipe,
        calibration=calibration, name=name, runner=runner,
    )  # fmt: skip
    return load(_whole(job, runner, Path(out), EMBED_EVAL, evaluate).path)


def build_one(
    *,
    recipe: Recipe,
    target: str,
    precision: str,
    out: Path,
    runner: Runner,
    embed_eval: int = EMBED_EVAL,
    deferred: bool = False,
    strict: bool = False,
) -> Built:
    """`build` for a resolved recipe, as the command line asks for it. `deferred`: no engine is
    compiled, and nothing timed, here: `finish` does it where the device is. `strict`: a latency
    that was measured under bad conditions is measured once more."""
    chosen = request.pair(target, precision)
    job = Job(recipe, *chosen, deferred=deferred, strict=strict, code=Path.cwd())
    return _whole(job, runner, out, embed_eval, None)


def _whole(
    job: Job, runner: Runner, out: Path, embed_eval: int, evaluate: objects.Evaluate | None
) -> Built:
    """The artifact of a job, and what is pending in it done where a cluster has the device."""

    def make() -> Built:
        parts = pipeline.parts(job.recipe, runner)
        if not parts:
            return deliver(job, runner, out, embed_eval, evaluate)
        if evaluate is None:
            return _in_parts(parts, job, runner, out, embed_eval)
        raise UsageError(
            f"evaluate gets one session, the model is {' and '.join(parts)}",
            where="build(evaluate=...)",
            hint="leave it out, and judge the parts of the artifact together",
        )

    return elsewhere.completed(make, job.target.name, runner, strict=job.strict)


def _in_parts(parts: Sequence[str], job: Job, runner: Runner, out: Path, embed_eval: int) -> Built:
    """An artifact of several graphs, each built like a model of its own."""
    from optkit import artifact
    from optkit.pipeline import delivery
    from optkit.report import result

    artifact.prepare(out, job.name)
    place = out / job.name
    with runner.store.scratch() as folder:
        built = {}
        for part in parts:
            made = _part(job, part)
            built[part] = deliver(made, runner, folder, embed_eval, None, place=place / part)
        told = {part: one.result for part, one in built.items()}
        whole = result.joined(told, model=job.recipe.name, artifact=str(place))
        opened = {part: load(one.path) for part, one in built.items()}
        path = delivery.join(job.name, job.recipe.to_json(), opened, whole, out)
    return Built(whole, path)


def _part(job: Job, part: str) -> Job:
    recipe = job.recipe.with_overrides([f"model.part={part}", f"name={part}"])
    return replace(job, recipe=recipe)


def deliver(
    job: Job,
    runner: Runner,
    out: Path,
    embed_eval: int,
    evaluate: objects.Evaluate | None,
    place: Path | None = None,
) -> Built:
    """Run the whole road for a job and write the artifact into `out`. `evaluate`: scores instead of
    the recipe's task. `place`: where it will lie in the end, if not there."""
    from optkit import artifact
    from optkit.pipeline import delivery, findings

    pipeline.check(job)
    artifact.prepare(out, job.name)
    made = pipeline.run(job, runner, pipeline.BUILD)
    scores = None if evaluate is None else objects.scores(evaluate, made, runner)
    place = place or out / job.name
    judged = findings.judge(made, runner.records, artifact=str(place), scores=scores)
    path = delivery.deliver(made, judged, out, embed_eval, runner.store)
    return Built(judged.result, path)


@dataclass(frozen=True)
class Rehearsed:
    """What a build would do: its steps, and what each compiler is asked (build specs as JSON; of a
    graph that is not in the store its shapes are unknown)."""

    steps: list[Line]
    asked: list[dict[str, Any]]


def rehearse(*, recipe: Recipe, target: str, precision: str, cache: Path | None) -> Rehearsed:
    """The steps of a build, which are in the store already, and what the others took before."""
    job = Job(recipe, *request.pair(target, precision), code=Path.cwd())
    limits = Limits(available_memory() // 2)
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(request.open_store(cache), limits, Path(folder) / "objects")
        parts = pipeline.parts(recipe, rehearsal)
        for one in [_part(job, part) for part in parts] or [job]:
            made = pipeline.run(one, rehearsal, pipeline.BUILD)
            asked |= {
                (spec.backend, spec.precision): spec.to_json() for spec in made.specs.values()
            }
    return Rehearsed(rehearsal.lines, list(asked.values()))
