"""Tuning: the fastest assignment of precisions to layers within a budget.

    build in the first precision ─→ survey: the layers and their sensitivity ─→ search ─→ front
    front, from its most accurate end on, judged on fresh samples ─→ winner: a recipe and its build

Every trial is a run of the pipeline through the store, and the next trials follow from the outcomes
so far. So the same command continues a search that ended, and gives the same result as without
interruption. On a cluster several trials run at the same time, unless their latency is measured on
this machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from optkit.facts.errors import UsageError
from optkit.facts.precisions import Precision
from optkit.ground.devices import runs_here
from optkit.ground.execute.cluster import Cluster
from optkit.ground.execute.runner import Runner
from optkit.road import pipeline
from optkit.road.pipeline import AS_PLACED, Build, Job
from optkit.road.pipeline.judged_build import JudgedBuild
from optkit.road.steps.collect import CollectedSamples
from optkit.satellites.tuning.past_trials import PastTrials
from optkit.satellites.tuning.placement_variants import placements_of
from optkit.satellites.tuning.quiet import Quiet
from optkit.satellites.tuning.search import Each, Search
from optkit.satellites.tuning.space import Budget, Candidate, CandidateTrial, Outcome, front
from optkit.satellites.tuning.survey import Survey, survey
from optkit.satellites.tuning.trials import Trials, measured_row
from optkit.satellites.tuning.verify import VerifiedTrial, fallback, verify

__all__ = ["TRIALS", "Budget", "CandidateTrial", "SearchOptions", "TuningResult", "tune"]

TRIALS = 24
# the least number of rounds, unless the user sets it, because trials learn from earlier rounds
_ROUNDS = 4

Judge = Callable[[Build], JudgedBuild]
"""All figures of a finished build, gates judged."""


@dataclass(frozen=True)
class SearchOptions:
    """The length of a search, and its options.

    trials: the largest number of candidates to try.
    seconds: when the search stops; the best candidate is then verified and built. None: no limit.
    seed: seed of the random choices.
    parallel: number of trials at the same time, which needs a cluster; None: as many as it has
        cores, but few enough for several rounds.
    """

    trials: int = TRIALS
    seconds: float | None = None
    seed: int = 0
    parallel: int | None = None


@dataclass(frozen=True)
class TuningResult:
    """The result of a search. `precisions`: the quantized precisions that layers may have. `job`:
    builds the best candidate; `winner`: None if no quantized candidate keeps the budget.
    `verified`: the candidates that were judged on fresh samples, the most accurate first. `paths`:
    the args that name data, by their section of the recipe."""

    precisions: tuple[Precision, ...]
    budget: Budget
    options: SearchOptions
    job: Job
    chosen: CandidateTrial
    winner: VerifiedTrial | None
    verified: tuple[VerifiedTrial, ...]
    survey: Survey
    search: Search
    trials: Trials
    paths: Mapping[str, Sequence[str]]

    @property
    def front(self) -> list[CandidateTrial]:
        """The trials that no other trial beats in noise, latency and size, the fastest first."""
        return front(self.search.trials)

    @property
    def keeps_budget(self) -> bool:
        """Whether neither the search nor the fresh samples show that the chosen candidate breaks a
        limit."""
        if self.search.budget.excess(self.chosen.outcome) > 0:
            return False
        return self.winner is not None or all(row.trial != self.chosen for row in self.verified)


def tune(
    job: Job,
    precisions: tuple[Precision, ...],
    budget: Budget,
    options: SearchOptions,
    runner: Runner,
    judge: Judge,
) -> TuningResult:
    """Search for the fastest assignment of `precisions` to the layers of the model within the
    budget, and judge the front on samples that the search has not used. `job` has the first of the
    precisions, and the budget as its gates.

    Raises what building raises; UsageError for a budget without a limit, or for too many trials at
    the same time; ToolchainMissing for a target whose latency can be neither measured nor predicted
    here. A candidate that cannot be built is only a failed trial.
    """
    started = time.monotonic()
    if budget == Budget():
        raise UsageError("there is no budget", where=job.recipe.name, hint=_LIMITS)
    pipeline.check_timed(job)
    cluster = runner.cluster
    parallel = _parallel(job, options, cluster)
    build = pipeline.run(job, runner, pipeline.BENCH)
    surveyed = survey(build, precisions, runner, map if cluster is None else cluster.each)
    quiet = Quiet(runner.listener)
    trials = _trials(build, surveyed, precisions, replace(runner, listener=quiet))
    memory = PastTrials.of(build, trials.space, trials.placements, runner.store)
    search = Search(trials.space, budget, options.seed, parallel)
    each = map if parallel == 1 or cluster is None else partial(cluster.each, parallel=parallel)
    _run(search, trials, memory, options, quiet, each, started)

    def judged(trial: CandidateTrial) -> JudgedBuild:
        quiet.begins(f"judge {told(trial.outcome)} on fresh samples")
        finished = judge(pipeline.run(trials.as_job(trial.candidate), trials.runner, AS_PLACED))
        verdict = finished.findings.verdict
        quiet.told(f"{told(trial.outcome)} on fresh samples: {verdict and verdict.verdict}")
        return finished

    winner, seen = verify(search.trials, trials.space, budget, judged)
    chosen = winner.trial if winner else fallback(search.trials, trials.space, budget, seen)
    job = trials.as_job(chosen.candidate)
    return TuningResult(
        precisions, budget, options, job, chosen, winner, tuple(seen), surveyed, search, trials,
        _paths(build),
    )  # fmt: skip


def _run(
    search: Search,
    trials: Trials,
    memory: PastTrials,
    options: SearchOptions,
    quiet: Quiet,
    each: Each,
    started: float,
) -> None:
    """Evaluate candidates until a limit of `options` is reached, and keep each outcome."""
    numbers: defaultdict[Candidate, int] = defaultdict(count(1).__next__)

    def numbered(candidate: Candidate) -> str:
        return f"trial {numbers[candidate]} of {options.trials}"

    def evaluate(candidate: Candidate) -> Outcome:
        quiet.begins(numbered(candidate))
        return trials(candidate)

    def after(done: Search) -> None:
        last = done.trials[-1]
        memory.keep(last)
        quiet.told(f"{numbered(last.candidate)}: {told(last.outcome)}{_leader(done)}")

    def late() -> bool:
        return options.seconds is not None and time.monotonic() - started > options.seconds

    search.run(
        evaluate,
        limit=options.trials,
        each=each,
        memory=dict(memory.outcomes),
        stop=late,
        after=after,
    )


def _paths(build: Build) -> dict[str, tuple[str, ...]]:
    """Section of the recipe → its args that name data."""
    samples = {"calibration": build.calibration, "eval": build.evaluation}
    return {
        section: drawn.paths if isinstance(drawn, CollectedSamples) else ()
        for section, drawn in samples.items()
        if drawn is not None
    }


def told(outcome: Outcome) -> str:
    """An outcome in few words."""
    if outcome.failed:
        return f"failed: {outcome.failed}"
    sqnr = "equal" if outcome.sqnr_db is None else f"{outcome.sqnr_db:.1f} dB"
    return f"{sqnr}, {outcome.latency_ms:.4g} ms, {outcome.bytes / 2**20:.2f} MiB"


def _trials(
    build: Build, surveyed: Survey, precisions: tuple[Precision, ...], runner: Runner
) -> Trials:
    variants = placements_of(build, surveyed.ops)
    space = replace(surveyed.space, placements=("default", *variants))
    baseline_ms = measured_row(build).baseline.p50_ms if build.measured else 1.0
    return Trials(build.job, space, precisions, runner, variants, baseline_ms)


def _leader(search: Search) -> str:
    """The best outcome so far, for the end of a trial's line."""
    leader = search.best
    if leader is None:
        return ""
    inside = "best" if search.budget.excess(leader.outcome) == 0 else "nearest"
    return f"; {inside} {told(leader.outcome)}; front of {len(front(search.trials))}"


def _parallel(job: Job, options: SearchOptions, cluster: Cluster | None) -> int:
    """The number of trials at the same time. Raises UsageError if they cannot run at the same
    time."""
    if runs_here(job.target):
        why, hint = "trials are measured on this machine, one at a time", "leave it out"
    elif cluster is None:
        why, hint = "one trial at a time without a cluster", "--on ray starts one here"
    else:
        most = max(1, min(cluster.cores(), options.trials // _ROUNDS))
        return options.parallel or most
    if options.parallel not in (None, 1):
        raise UsageError(why, where=f"--parallel {options.parallel}", hint=hint)
    return 1


_LIMITS = "give --max-drop (with an evaluation task), --min-sqnr, --max-latency or --max-size"
