"""The winner: which candidate keeps the budget on samples that the search has never seen.

The staircase of the front is climbed down from its most accurate end, a few steps spread over it,
each judged like any build (`benchmarking.gates`), until the first that breaks a limit. The order is
fixed before a sample is looked at, and a step is judged only if all before it were kept: so many
looks at the same samples need no correction (fixed-sequence testing: Maurer, Hothorn, Lehmacher,
1995; Wiens, Pharmaceutical Statistics 2, 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from optkit.errors import InputRefused
from optkit.measurement import GateRow
from optkit.pipeline.findings import Judged
from optkit.tuning.search import best
from optkit.tuning.space import Budget, Space, Trial, staircase

STEPS_DOWN = 5
AS_FAST = 0.005  # latencies that differ by this share count as equal


@dataclass(frozen=True)
class Verified:
    """A trial and what fresh samples say of it. `kept`: no limit is seen to be broken; `passed`:
    the whole interval keeps every limit."""

    trial: Trial
    judged: Judged
    kept: bool
    passed: bool


def verify(
    trials: Sequence[Trial],
    space: Space,
    budget: Budget,
    judge: Callable[[Trial], Judged],
) -> tuple[Verified | None, list[Verified]]:
    """The fastest that passes, else the fastest that is kept, or the most accurate of those that
    are as fast; and all that were judged, in order. None: nothing quantized keeps the budget, or
    the carrier is as fast."""
    seen: list[Verified] = []
    for trial in rungs(trials, space, budget):
        judged = judge(trial)
        rows = judged.findings.verdict.rows if judged.findings.verdict else ()
        kept = all(_kept(row) for row in rows)
        seen.append(Verified(trial, judged, kept, all(row.outcome == "pass" for row in rows)))
        if not kept:
            break
    good = [rung for rung in seen if rung.passed] or [rung for rung in seen if rung.kept]
    if not good:
        return None, seen
    bound = good[-1].trial.outcome.latency_ms * (1 + AS_FAST)
    return next(rung for rung in good if rung.trial.outcome.latency_ms <= bound), seen


def fallback(
    trials: Sequence[Trial], space: Space, budget: Budget, seen: Sequence[Verified]
) -> Trial:
    """The best there is where nothing quantized is kept: the carrier, if it keeps the limits that a
    trial knows; else what fresh samples refused, or the nearest to the limits. Raises InputRefused
    where no trial came to anything."""
    own = space.uniform(space.carrier).options
    for trial in trials:
        if trial.candidate.options == own and budget.excess(trial.outcome) == 0:
            return trial
    found = seen[0].trial if seen else best(trials, budget)
    if found is None:
        failed = trials[0].outcome.failed if trials else "no trial was made"
        raise InputRefused(f"no candidate could be built: {failed}")
    return found


def rungs(trials: Sequence[Trial], space: Space, budget: Budget) -> list[Trial]:
    """What is judged, the most accurate first: trials inside the limits that a trial knows. None
    where the carrier is as fast as any of them: then nothing has to be quantized."""
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
    """Whether the value itself is inside the limit, whatever its interval; one that is not known
    breaks nothing."""
    if row.value is None:
        return row.outcome != "fail"
    low_is_good = row.gate.startswith("max_")
    return row.value <= row.limit if low_is_good else row.value >= row.limit
