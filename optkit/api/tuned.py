"""The search in front of a build: from a job and a wish to an artifact, its recipe and the front.

artifacts/NAME-tuned-TARGET-PRECISION/        the winner, as any build leaves it
artifacts/NAME-tuned-TARGET-PRECISION.tune/   recipe.yaml, tune.json, tune.md, front.svg,
                                              report.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.api import building, elsewhere, objects, request
from optkit.api.artifacts import load
from optkit.errors import UsageError
from optkit.execute.runner import Listener, Runner
from optkit.pipeline import Build, Job
from optkit.recipe import Gates, Recipe
from optkit.store import storage_errors, write_durably

if TYPE_CHECKING:  # `optkit.tuning` opens graphs, which only a search needs
    from optkit.artifact import Artifact
    from optkit.pipeline.findings import Judged
    from optkit.tuning import Budget, Tuned, Wish


@dataclass(frozen=True)
class Found:
    """A finished search: its object (optkit.tune/v1), the artifact and the folder beside it."""

    tune: dict[str, Any]
    path: Path
    folder: Path


def tune(
    model: Any = None,
    example_inputs: Any = None,
    *,
    target: str,
    precisions: Iterable[str] = ("int8",),
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    max_latency_ms: float | None = None,
    max_bytes: int | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    parallel: int | None = None,
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
    """Search for the fastest assignment of `precisions` to layers inside a budget, and build it.

    max_drop: a fraction of the metric; min_sqnr: dB; max_latency_ms at the tuned batch size;
    max_bytes of the engine. What is not given stays as the recipe's gates have it. The search stops
    after `trials` candidates (None: `tuning.TRIALS`) or `seconds`. parallel: candidates tried at a
    time, which needs a cluster; None: as many as it has cores, in at least four rounds. The other
    arguments are those of `build`. The recipe that builds the artifact again, and the front, lie in
    `<artifact>.tune` beside it.

    Raises OptkitError subclasses. A budget that nothing keeps does not raise: the artifact is the
    best there is, and its gate says so.
    """
    from optkit import tuning

    runner = request.open_runner(
        cache=None if cache is None else Path(cache), remote=remote, memory=memory,
        listener=listener, on=on,
    )  # fmt: skip
    names = tuple(precisions)
    for precision in names:
        request.pair(target, precision)
    job = request.job_of(
        model, example_inputs, target=target, precision=names[0], recipe=recipe,
        calibration=calibration, name=name, runner=runner,
    )  # fmt: skip
    budget = tuning.Budget(max_drop, min_sqnr, max_latency_ms, max_bytes)
    most = tuning.TRIALS if trials is None else trials
    wish = tuning.Wish(budget, names, most, seconds, seed, parallel)
    return load(_search(job, wish, runner, Path(out), evaluate).path)


def tune_one(
    *, recipe: Recipe, target: str, wish: Wish, out: Path, runner: Runner, strict: bool = False
) -> Found:
    """`tune` for a resolved recipe, as the command line asks for it. `strict`: a latency of the
    winner that was measured under bad conditions is measured once more."""
    for precision in wish.precisions:
        request.pair(target, precision)
    job = Job(recipe, *request.pair(target, wish.precisions[0]), code=Path.cwd())
    return _search(job, wish, runner, out, None, strict=strict)


def _search(
    job: Job,
    wish: Wish,
    runner: Runner,
    out: Path,
    evaluate: objects.Evaluate | None,
    *,
    strict: bool = False,
) -> Found:
    """Search, then build the winner from the recipe that was written for it."""
    from optkit import artifact, tuning
    from optkit.pipeline import findings
    from optkit.tuning.reproduce import tuned_name

    scored = evaluate is not None or job.recipe.eval is not None
    job = replace(job, recipe=_limited(job, wish.budget, scored=scored))
    gates = job.recipe.gates
    budget = tuning.Budget(gates.max_drop, gates.min_sqnr, gates.max_latency_ms, gates.max_bytes)

    def judge(made: Build) -> Judged:
        scores = None if evaluate is None else objects.scores(evaluate, made, runner)
        return findings.judge(made, runner.records, artifact="", scores=scores)

    artifact.prepare(out, f"{tuned_name(job.recipe.name)}-{job.target.name}-{job.precision}")
    tuned = tuning.tune(job, replace(wish, budget=budget), runner, judge)
    return _deliver(replace(tuned, job=replace(tuned.job, strict=strict)), runner, out, evaluate)


def _limited(job: Job, asked: Budget, *, scored: bool) -> Recipe:
    """The recipe with the budget as its gates; what is not asked for stays as the recipe has it for
    the target.
    Without a task (`scored`) there is no limit on a drop. Raises UsageError where one was asked."""
    if asked.max_drop is not None and not scored:
        raise UsageError(
            "a drop needs a task that scores samples, and there is none",
            where="--max-drop",
            hint="add `eval: {task: ...}` to the recipe, or limit the noise: --min-sqnr 40",
        )
    given = {key: limit for key, limit in asked.to_json().items() if limit is not None}
    gates = job.recipe.gates.of(job.target.name).model_dump()
    gates |= given if scored else {"max_drop": None, **given}
    return job.recipe.model_copy(update={"gates": Gates.model_validate(gates)})


def _deliver(tuned: Tuned, runner: Runner, out: Path, evaluate: objects.Evaluate | None) -> Found:
    from optkit.report import search
    from optkit.tuning import document
    from optkit.tuning.reproduce import reproduction, tuned_name

    job, recipe = tuned.job, tuned.job.recipe
    named = recipe.model_copy(update={"name": tuned_name(recipe.name)})
    folder = out / f"{replace(job, recipe=named).name}.tune"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        again = reproduction(job, folder, tuned.paths)
        reproduced = replace(job, recipe=again.recipe)
        path = elsewhere.completed(
            lambda: building.deliver(reproduced, runner, out, building.EMBED_EVAL, evaluate),
            job.target.name, runner, strict=job.strict,
        ).path  # fmt: skip
        made = load(path)
        found = document.document(
            tuned, made.result, recipe=str(again.file), command=again.command, digest=made.digest
        )
        for file, text in (
            ("tune.json", json.dumps(found, indent=1, sort_keys=True)),
            ("tune.md", document.markdown(found)),
            ("front.svg", search.to_svg(found)),
            ("report.html", search.to_html(found)),
        ):
            write_durably(folder / file, text.encode("utf-8", "replace"))
    return Found(found, path, folder)
