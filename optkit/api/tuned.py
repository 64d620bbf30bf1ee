"""`tune`: from a job and a wish to an artifact, its recipe, and the front beside it.

artifacts/NAME-tuned-TARGET-PRECISION/        the winner, as any build leaves it
artifacts/NAME-tuned-TARGET-PRECISION.tune/   recipe.yaml, tune.json, tune.md, front.svg
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optkit import artifact, tuning
from optkit.artifact import Artifact
from optkit.errors import UsageError
from optkit.execute.runner import Runner
from optkit.pipeline import Job
from optkit.recipe import Recipe
from optkit.store import storage_errors, write_durably
from optkit.tuning import document
from optkit.tuning.reproduce import reproduction, tuned_name


@dataclass(frozen=True)
class Found:
    """A finished search: its object (optkit.tune/v1), the artifact and the folder beside it."""

    tune: dict[str, Any]
    path: Path
    folder: Path


def limited(recipe: Recipe, asked: tuning.Budget, *, scored: bool) -> Recipe:
    """The recipe with the budget as its gates; what is not asked for stays as the recipe has it.
    Without a task (`scored`) there is no limit on a drop. Raises UsageError where one was asked."""
    if asked.max_drop is not None and not scored:
        raise UsageError(
            "a drop needs a task that scores samples, and there is none",
            where="--max-drop",
            hint="add `eval: {task: ...}` to the recipe, or limit the noise: --min-sqnr 40",
        )
    given = {key: limit for key, limit in asked.to_json().items() if limit is not None}
    gates = recipe.gates.model_copy(update=given if scored else {"max_drop": None, **given})
    return recipe.model_copy(update={"gates": gates})


def tune(
    job: Job,
    wish: tuning.Wish,
    runner: Runner,
    out: Path,
    *,
    build: Callable[[Job], Path],
    judge: tuning.Judge,
) -> Found:
    """Search, then build the winner from the recipe that was written for it. `job` has its limits
    as gates; `build` writes an artifact into `out`; `judge` tells all figures of a build."""
    gates = job.recipe.gates
    budget = tuning.Budget(gates.max_drop, gates.min_sqnr, gates.max_latency_ms, gates.max_bytes)
    artifact.prepare(out, f"{tuned_name(job.recipe.name)}-{job.target.name}-{job.precision}")
    tuned = tuning.tune(job, replace(wish, budget=budget), runner, judge)
    name = replace(tuned.job, recipe=_named(tuned.job.recipe)).name
    folder = out / f"{name}.tune"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        again = reproduction(tuned.job, folder)
        path = build(replace(tuned.job, recipe=again.recipe))
        made = Artifact.load(path)
        found = document.document(
            tuned, made.result, recipe=str(again.file), command=again.command, digest=made.digest
        )
        for file, text in (
            ("tune.json", json.dumps(found, indent=1, sort_keys=True)),
            ("tune.md", document.markdown(found)),
            ("front.svg", document.svg(found)),
        ):
            write_durably(folder / file, text.encode("utf-8", "replace"))
    return Found(found, path, folder)


def _named(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"name": tuned_name(recipe.name)})
