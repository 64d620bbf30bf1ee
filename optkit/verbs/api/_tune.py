"""The search for the fastest assignment within a budget, and its build: `tune`.

artifacts/NAME-tuned-TARGET-PRECISION/        the artifact of the winner, as of any build
artifacts/NAME-tuned-TARGET-PRECISION.tune/   recipe.yaml, tune.json, tune.md, front.svg,
                                              report.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.facts.documents.tune import Tune
from optkit.facts.errors import UsageError
from optkit.facts.precisions import Precision
from optkit.facts.request import Request
from optkit.ground import artifact
from optkit.ground.artifact import Artifact
from optkit.ground.devices import Target
from optkit.ground.execute.runner import Runner
from optkit.ground.recipe import Gates, Recipe
from optkit.ground.store import OUT_OPTION, storage_errors, write_durably
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike, in_memory
from optkit.road.jobs.batches import Batch
from optkit.road.jobs.in_memory import Evaluate
from optkit.road.pipeline import Build, Job, judged_build
from optkit.road.pipeline.judged_build import JudgedBuild
from optkit.satellites import tuning
from optkit.satellites.tuning import Budget, SearchOptions, TuningResult, tune_document
from optkit.satellites.tuning.reproduce import reproduction, tuned_name
from optkit.show.report import head
from optkit.show.report import search_page as search_report
from optkit.show.report.contract import result_of
from optkit.verbs.api._build import artifact_of

if TYPE_CHECKING:  # `optkit.tuning` opens graphs, which only a search needs
    from torch.nn import Module


@dataclass(frozen=True, repr=False)
class TuneResult:
    """The artifact of the winner, the result of the search, and the folder next to the artifact."""

    artifact: Artifact
    search: Tune
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        """The search as an optkit.tune/v1 object."""
        return self.search.to_json()

    def __repr__(self) -> str:
        return f"TuneResult({self.artifact!r}, folder={str(self.folder)!r})"

    def _repr_html_(self) -> str:
        return head.of_search(self.search, result_of(self.artifact), str(self.folder))


def tune(
    model: Module | Request | str | Path | None = None,
    example_inputs: Batch | None = None,
    *,
    target: str | Target,
    precisions: Iterable[str | Precision] = ("int8",),
    budget: Budget | None = None,
    search: SearchOptions | None = None,
    recipe: RecipeLike | None = None,
    calibration: Iterable[Batch] | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> TuneResult:
    """Search for the fastest assignment of `precisions` to layers within a budget, and build it.

    budget: the limits (`optkit.Budget`); a limit that is not given is taken from the recipe's gate.
    search: the length and the options of the search (`optkit.SearchOptions`); None: the defaults.
    The other arguments are those of `build`. The folder `<artifact>.tune` next to the artifact gets
    the Pareto front, and the recipe that builds the artifact again.

    Raises UsageError (no limit at all, or a limit on the drop without a task), and what `build`
    raises. If no candidate keeps the budget, nothing is raised: the artifact is the best candidate,
    and its gate says that it fails.
    """
    runner = workspace.runner()
    pairs = [jobs.pair(target, precision) for precision in precisions]
    job = jobs.job_of(
        model,
        example_inputs,
        pairs[0],
        recipe=recipe,
        calibration=calibration,
        name=name,
        runner=runner,
    )
    _refuse_quantized(job, runner)
    tuned = _search(
        job,
        tuple(precision for _, precision in pairs),
        budget or Budget(),
        search or SearchOptions(),
        runner,
        Path(out),
        evaluate,
    )
    return _deliver(
        replace(tuned, job=replace(tuned.job, strict=strict)), runner, Path(out), evaluate
    )


def _refuse_quantized(job: Job, runner: Runner) -> None:
    """Raises UsageError for a graph whose codes another tool has chosen."""
    precision = None if job.graph is not None else pipeline.quantized_to(job.recipe, runner)
    if precision is not None:
        raise UsageError(
            f"another tool has quantized the graph to {precision}, so there is nothing to search",
            where=job.recipe.name,
            hint="give the float model, or build the graph as it is with `optkit build`",
        )


def _search(
    job: Job,
    precisions: tuple[Precision, ...],
    budget: Budget,
    options: SearchOptions,
    runner: Runner,
    out: Path,
    evaluate: Evaluate | None,
) -> TuningResult:
    """The search within the budget and the recipe's gates. Writes nothing to `out`."""
    scored = evaluate is not None or job.recipe.eval is not None
    job = replace(job, recipe=_limited(job, budget, scored=scored))
    gates = job.recipe.gates
    budget = tuning.Budget(gates.max_drop, gates.min_sqnr, gates.max_latency_ms, gates.max_bytes)

    def judge(build: Build) -> JudgedBuild:
        scores = None if evaluate is None else in_memory.scores(evaluate, build, runner)
        return judged_build.judge(build, runner.records, artifact="", scores=scores)

    artifact.prepare(out, f"{tuned_name(job.recipe.name)}-{job.target.name}-{job.precision.name}")
    return tuning.tune(job, precisions, budget, options, runner, judge)


def _limited(job: Job, budget: Budget, *, scored: bool) -> Recipe:
    """The recipe with the budget as its gates. The other gates are those of the recipe for the
    target. Without a task (`scored` is false) there is no limit on the drop, and a budget with such
    a limit raises UsageError."""
    if budget.max_drop is not None and not scored:
        raise UsageError(
            "a limit on the drop needs an evaluation task, and there is none",
            where="--max-drop",
            hint="add `eval: {task: ...}` to the recipe, or limit the noise: --min-sqnr 40",
        )
    given = {key: limit for key, limit in vars(budget).items() if limit is not None}
    gates = job.recipe.gates.of(job.target.name).model_dump()
    gates |= given if scored else {"max_drop": None, **given}
    return job.recipe.model_copy(update={"gates": Gates.model_validate(gates)})


def _deliver(
    tuned: TuningResult, runner: Runner, out: Path, evaluate: Evaluate | None
) -> TuneResult:
    job, recipe = tuned.job, tuned.job.recipe
    named = recipe.model_copy(update={"name": tuned_name(recipe.name)})
    folder = out / f"{replace(job, recipe=named).name}.tune"
    with storage_errors(folder, OUT_OPTION):
        folder.mkdir(parents=True, exist_ok=True)
        again = reproduction(job, folder, tuned.paths)
        reproduced = replace(job, recipe=again.recipe)
        built = artifact_of(reproduced, runner, out, evaluate=evaluate)
        search = tune_document.document(
            tuned,
            result_of(built),
            recipe=str(again.file),
            command=again.command,
            digest=built.digest,
        )
        for file, text in (
            ("tune.json", json.dumps(search.to_json(), indent=1, sort_keys=True)),
            ("tune.md", tune_document.markdown(search)),
            ("front.svg", search_report.to_svg(search)),
            ("report.html", search_report.to_html(search)),
        ):
            write_durably(folder / file, text.encode("utf-8", "replace"))
    return TuneResult(built, search, folder)
