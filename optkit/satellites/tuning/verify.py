"""The winner: which candidate keeps the budget on samples that the search has not used.

Candidates of the front are judged like any build (`benchmarking.gates`): first the most accurate
one, then a few faster ones at equal distances, until one breaks a limit. The order is fixed before
any sample is used, and a candidate is judged only if all before it keep the limits. So the same
samples can be used several times without a correction (fixed-sequence testing: Maurer, Hothorn,
Lehmacher, 1995; Wiens, Pharmaceutical Statistics 2, 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from optkit.facts.errors import InputRefused
from optkit.facts.measurement import GateRow
from optkit.road.pipeline.judged_build import JudgedBuild
from optkit.satellites.tuning.search import best
from optkit.satellites.tuning.space import Budget, CandidateTrial, Space, staircase

STEPS_DOWN = 5
AS_FAST = 0.005  # latencies that differ by at most this share count as equal


@dataclass(frozen=True)
class VerifiedTrial:
    """A trial with its figures on fresh samples. `kept`: no value is beyond its limit; `passed`:
    the whole interval of each value is within its limit."""

    trial: CandidateTrial
    judged: JudgedBuild
    kept: bool
    passed: bool


def verify(
    trials: Sequence[CandidateTrial],
    space: Space,
    budget: Budget,
    judge: Callable[[CandidateTrial], JudgedBuild],
) -> tuple[VerifiedTrial | None, list[VerifiedTrial]]:
    """The winner, and all that were judged, in order. The winner is the fastest that passes,
    otherwise the fastest that is kept; of equally fast ones the most accurate. None: no quantized
    candidate keeps the budget, or the carrier is as fast."""
    seen: list[VerifiedTrial] = []
    for trial in rungs(trials, space, budget):
        judged = judge(trial)
        rows = judged.findings.verdict.rows if judged.findings.verdict else ()
        kept = all(_kept(row) for row in rows)
        seen.append(VerifiedTrial(trial, judged, kept, all(row.outcome == "pass" for row in rows)))
        if not kept:
            break
    good = [rung for rung in seen if rung.passed] or [rung for rung in seen if rung.kept]
    if not good:
        return None, seen
    bound = good[-1].trial.outcome.latency_ms * (1 + AS_FAST)
    return next(rung for rung in good if rung.trial.outcome.latency_ms <= bound), seen


def fallback(
    trials: Sequence[CandidateTrial], space: Space, budget: Budget, seen: Sequence[VerifiedTrial]
) -> CandidateTrial:
    """The best trial if no quantized candidate keeps the limits: the carrier, if it keeps the
    limits that a trial knows; otherwise the first candidate that was judged on fresh samples, or
    the trial nearest to the limits. Raises InputRefused if every trial failed."""
    own = space.uniform(space.carrier).options
    for trial in trials:
        if trial.candidate.options == own and budget.excess(trial.outcome) == 0:
            return trial
    found = seen[0].trial if seen else best(trials, budget)
    if found is None:
        failed = trials[0].outcome.failed if trials else "no trial was made"
        raise InputRefused(f"no candidate could be built: {failed}")
    return found


def rungs(trials: Sequence[CandidateTrial], space: Space, budget: Budget) -> list[CandidateTrial]:
    """The trials to judge, the most accurate first: those within the limits that a trial knows.
    Empty if the carrier is as fast as any of them, because then nothing has to be quantized."""
    inside = [trial for trial in trials if budget.excess(trial.outcome) == 0]
    if not inside:
        return []
    if not budget.limits_accuracy:
        steps = [min(inside, key=lambda trial: budget.rank(trial.outcome))]
    else:
        steps = staircase(inside)[::-1]
    carrier = space.uniform(space.carrier).options
    own = [t.outcome.latency_ms for t in inside if t.candidate.options == carrier]
    bound = min(own, default=inf) * (1 - AS_FAST)
    if budget.limits_accuracy:
        steps = [step for step in steps if step.outcome.latency_ms < bound]
    steps = [step for step in steps if step.candidate.options != carrier]
    if len(steps) <= STEPS_DOWN:
        return steps
    last = len(steps) - 1
    return [steps[round(i * last / (STEPS_DOWN - 1))] for i in range(STEPS_DOWN)]


def _kept(row: GateRow) -> bool:
    """Whether the value is within the limit, for any interval. An unknown value breaks no limit."""
    if row.value is None:
        return row.outcome != "fail"
    low_is_good = row.gate.startswith("max_")
    return row.value <= row.limit if low_is_good else row.value >= row.limit
