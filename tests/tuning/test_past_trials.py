"""Which trials a search remembers, and which the next search tries again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optkit.facts import codec
from optkit.facts.errors import Impossible, InputRefused, OptkitError, WorkerFailed
from optkit.facts.precisions import precision
from optkit.ground.execute import local
from optkit.ground.execute.task import Task
from optkit.ground.recipe import Recipe
from optkit.ground.store import Store
from optkit.ground.workspace import Workspace
from optkit.road import jobs
from optkit.road.pipeline import Build, Job, judged_build
from optkit.road.pipeline.judged_build import JudgedBuild
from optkit.satellites import tuning
from optkit.satellites.tuning import Budget, SearchOptions, TuningResult
from optkit.satellites.tuning.past_trials import PastTrials
from optkit.satellites.tuning.space import Candidate, CandidateTrial, Outcome, Space
from optkit.satellites.tuning.trials import Trials

FAILURES = {
    "timeout": WorkerFailed("ran longer than 60 s", verdict="timeout"),
    "oom": WorkerFailed("needed more than 512 MiB of memory", verdict="oom"),
    "killed": WorkerFailed("was killed by SIGKILL", verdict="crashed"),
    "refused": InputRefused("no kernel for it"),
    "impossible": Impossible("the hardware has none"),
}
LASTING = {"refused", "impossible"}


@pytest.mark.parametrize("name", FAILURES)
def test_what_the_same_inputs_will_always_meet_is_a_lasting_failure(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*anything: object) -> None:
        raise FAILURES[name]

    monkeypatch.setattr("optkit.satellites.tuning.trials.pipeline.run", fail)
    recipe = Recipe.from_dict({"name": "small"})
    trials = Trials(
        Job(recipe, *jobs.pair("cpu", "int8")), Space((), "fp32"), (precision("int8"),),
        Workspace(tmp_path).runner(), {},
    )  # fmt: skip
    outcome = trials(Candidate(()))
    assert outcome.failed == str(FAILURES[name])
    assert outcome.transient == (name not in LASTING)


def test_only_lasting_outcomes_are_kept(tmp_path: Path) -> None:
    found = {
        "sound": Outcome(1e-4, 2.0, 3),
        "refused": Outcome.failure("no kernel"),
        "late": Outcome.failure("ran longer than 60 s", transient=True),
    }
    memory = PastTrials(Store(tmp_path), "1" * 64)
    for name, outcome in found.items():
        memory.keep(CandidateTrial(Candidate((name,)), outcome))
    saved = memory.store.recall(memory.key)
    assert saved is not None
    trials = [codec.from_json(CandidateTrial, row) for row in saved["trials"]]
    assert {t.candidate.options[0]: t.outcome for t in trials} == {
        name: found[name] for name in ("sound", "refused")
    }


class Carry:
    """Workers of which the second comparison with FP32, so the second trial, ends in an error.
    `comparisons`: how many were asked for."""

    def __init__(self, error: OptkitError | None) -> None:
        self.error, self.comparisons = error, 0

    def __call__(self, task: Task, *rest: Any, **how: Any) -> dict[str, Any]:
        if task.step == "deviate":
            self.comparisons += 1
            if self.error is not None and self.comparisons == 2:
                raise self.error
        return local.run(task, *rest, **how)


@pytest.fixture
def search(
    fresh: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TuningResult]:
    """`tune` for the CPU in this process, always over the same store."""
    project = fresh("memory")
    monkeypatch.chdir(project.folder)

    def run(carry: Carry) -> TuningResult:
        runner = Workspace(project.cache, executor=carry).runner()
        job = Job(Recipe.load(Path("optkit.yaml")), *jobs.pair("cpu", "int8"), code=Path.cwd())

        def judge(made: Build) -> JudgedBuild:
            return judged_build.judge(made, runner.records, artifact="")

        return tuning.tune(
            job, (precision("int8"),), Budget(min_sqnr=20.0), SearchOptions(trials=3), runner, judge
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timeout", "refused"])
def test_what_failed_for_want_of_time_or_memory_is_tried_again(
    name: str, search: Callable[..., TuningResult]
) -> None:
    before = search(Carry(FAILURES[name]))
    failed = [t for t in before.search.trials if t.outcome.failed]
    assert [t.outcome.failed for t in failed] == [str(FAILURES[name])]
    again = Carry(None)
    after = search(again)
    assert len(after.search.trials) == len(before.search.trials) == 3
    tried = {t.candidate: t.outcome for t in after.search.trials}
    if name in LASTING:
        assert tried[failed[0].candidate].failed and again.comparisons == 0
    else:
        assert not tried[failed[0].candidate].failed and again.comparisons == 1
    for trial in before.search.trials:
        if not trial.outcome.failed:
            assert tried[trial.candidate] == trial.outcome  # measured once
