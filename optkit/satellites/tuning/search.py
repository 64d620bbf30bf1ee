"""The search: which candidates are tried next, given the outcomes so far.

    the ends      every precision everywhere, and the carrier
    placement     the variants of where pairs go, with everything quantized; the best is kept
    the path      candidates along `path.path`: a bisection for the first within the accuracy limit;
                  if the limit is the task's (which is judged later), points spread over the path
    refinement    candidates that may beat the front, with the gains according to the trials: new
                  points of the path, changes and swaps of the best; then the widest gaps of the
                  front

If several candidates are tried at the same time, the path is divided at as many points at once. A
refinement is then proposed as if the other proposals of its round had their expected outcomes (the
kriging believer of Ginsbourger, Le Riche and Carraro, 2010). The outcomes of a round are used only
when the round is complete.

So `proposals` is a pure function of the space, the budget, the seed, the number of candidates at a
time, and the outcomes so far. A search that was killed continues as if it had not been interrupted,
and the order in which the trials of a round end does not matter. The search can be stopped at any
time, and then the best trial so far is the result.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from types import MappingProxyType

from optkit.satellites.tuning.estimate import Estimate
from optkit.satellites.tuning.path import noise, path
from optkit.satellites.tuning.space import (
    Budget,
    Candidate,
    CandidateTrial,
    Outcome,
    Space,
    staircase,
)

Known = Mapping[Candidate, Outcome]
Each = Callable[[Callable[[Candidate], bool], Sequence[Candidate]], Iterable[bool]]

_SPREAD = 6  # points of the path that are tried if the accuracy limit is the task's
_CHOICE = 3  # the seed picks one of this number of most promising candidates
_WORTH = 0.003  # the smallest saving, as a share of the latency, that is worth a trial
_PAIRS = 500  # the largest number of swaps in one round


@dataclass
class Search:
    """One search. `parallel`: the number of candidates at the same time, on which the proposals
    depend. `trials`: the finished ones in the order of their proposals; within a round that is not
    complete, in the order in which they ended. `converged`: there are no more proposals."""

    space: Space
    budget: Budget
    seed: int
    parallel: int = 1
    trials: list[CandidateTrial] = field(default_factory=list)
    converged: bool = False

    def run(
        self,
        evaluate: Callable[[Candidate], Outcome],
        *,
        limit: int,
        each: Each = map,
        memory: Known = MappingProxyType({}),
        stop: Callable[[], bool] = lambda: False,
        after: Callable[[Search], None] = lambda search: None,
    ) -> None:
        """Continue until `limit` trials are done, `stop` returns true, or there are no more
        proposals. A candidate in `memory` is not evaluated again. `each` applies a function to all
        candidates of a round, as `map` does, possibly in threads. `after` is called after each
        trial, one call at a time."""
        done: dict[Candidate, Outcome] = {}
        lock = threading.Lock()

        def tried(candidate: Candidate) -> bool:
            outcome = memory.get(candidate)
            if outcome is None:
                if self.trials and stop():
                    return False
                outcome = evaluate(candidate)
            with lock:
                self.trials.append(CandidateTrial(candidate, outcome))
                after(self)
            return True

        for proposed in proposals(self.space, self.budget, self.seed, done, self.parallel):
            new = [c for c in dict.fromkeys(proposed) if c not in done]
            taken = new[: limit - len(done)]
            whole = all(each(tried, taken)) and len(taken) == len(new)
            self.trials[len(done) :] = sorted(
                self.trials[len(done) :], key=lambda trial: taken.index(trial.candidate)
            )
            done.update((trial.candidate, trial.outcome) for trial in self.trials[len(done) :])
            if not whole:
                return
        self.converged = True

    @property
    def best(self) -> CandidateTrial | None:
        """The best trial so far; None before the first trial that succeeded."""
        return best(self.trials, self.budget)


def best(trials: Sequence[CandidateTrial], budget: Budget) -> CandidateTrial | None:
    """The trial that the budget ranks highest; of equal ones the first."""
    sound = [trial for trial in trials if not trial.outcome.failed]
    return min(sound, key=lambda trial: budget.rank(trial.outcome), default=None)


def proposals(
    space: Space, budget: Budget, seed: int, known: Known, parallel: int = 1
) -> Iterator[tuple[Candidate, ...]]:
    """Rounds of candidates in the order to try them. All candidates of a round may be tried at the
    same time. Between two rounds, the caller adds the outcome of every new candidate to `known`, in
    their order. A proposed candidate may already be in `known`."""
    ends = [space.uniform(name) for name in (*space.names, space.carrier)]
    placement = yield from _placement(space, path(space)[0], known, ends)
    steps = [replace(step, placement=placement) for step in path(space)]
    if budget.min_sqnr is not None or not budget.limits_accuracy:
        yield from _section(steps, budget, known, parallel)
    else:
        yield tuple(_spread(steps, space))
    yield from _refine(space, budget, random.Random(seed), known, placement, parallel)


def _placement(
    space: Space, start: Candidate, known: Known, ends: Sequence[Candidate]
) -> Generator[tuple[Candidate, ...], None, str]:
    """Try the ends, and every placement with `start`. The generator's value is the name of the
    fastest placement, because single layers can improve the accuracy afterwards."""
    variants = [replace(start, placement=name) for name in space.placements]
    yield (*ends, *variants)
    speed = {v.placement: (known[v].latency_ms, known[v].noise, known[v].bytes) for v in variants}
    return min(space.placements, key=lambda name: speed[name])


def _section(
    steps: list[Candidate], budget: Budget, known: Known, parallel: int
) -> Iterator[tuple[Candidate, ...]]:
    """Along the path accuracy rises and speed falls. Find the first candidate that is accurate
    enough, or, if accuracy has no limit, the first beyond the limits of speed and size. It is a
    bisection; with several points at a time, the rest of the path is divided into one part more
    than points."""
    low, high = 0, len(steps) - 1  # steps[high] is beyond the limit
    while low < high:
        wanted = (low + (high - low) * part // (parallel + 1) for part in range(1, parallel + 1))
        points = list(dict.fromkeys(wanted))
        yield (steps[high], *(steps[point] for point in points))
        for point in points:
            if _beyond(known[steps[point]], budget):
                high = point
                break
            low = point + 1
    yield (steps[max(low - 1, 0)],)


def _beyond(outcome: Outcome, budget: Budget) -> bool:
    """Whether it is accurate enough; without a limit on accuracy, whether it is beyond another
    limit."""
    if budget.min_sqnr is not None:
        return not outcome.failed and outcome.noise <= budget.max_noise
    return budget.excess(outcome) > 0


def _spread(steps: list[Candidate], space: Space) -> Iterator[Candidate]:
    """Points of the path whose noises are at equal distances in decibels."""
    noises = [noise(space, step) for step in steps]
    positive = [n for n in noises if n > 0]
    if len(positive) < 2:
        return
    ratio = positive[-1] / positive[0]
    for point in range(1, _SPREAD):
        wanted = positive[0] * ratio ** (point / _SPREAD)
        yield next(step for step, n in zip(steps, noises, strict=True) if n <= wanted)


def _refine(
    space: Space, budget: Budget, rng: random.Random, known: Known, placement: str, parallel: int
) -> Iterator[tuple[Candidate, ...]]:
    """Propose refinements until there are no promising ones."""
    while True:
        trials = [CandidateTrial(candidate, outcome) for candidate, outcome in known.items()]
        incumbent = best(trials, budget)
        if incumbent is None:
            return
        proposed: list[Candidate] = []
        while len(proposed) < parallel:
            estimate = Estimate(space, trials)
            promising = _promising(space, budget, rng, estimate, trials, placement, incumbent)
            if not promising:
                break
            proposed.append(promising[rng.randrange(min(_CHOICE, len(promising)))])
            trials.append(CandidateTrial(proposed[-1], estimate.outcome(proposed[-1])))
        if not proposed:
            return
        yield tuple(proposed)


def _promising(
    space: Space,
    budget: Budget,
    rng: random.Random,
    estimate: Estimate,
    trials: Sequence[CandidateTrial],
    placement: str,
    incumbent: CandidateTrial,
) -> list[Candidate]:
    """Candidates that may beat the front of these trials, or otherwise fill its gaps, the most
    promising first."""
    known = {trial.candidate for trial in trials}
    steps = [*path(estimate.space()), *path(estimate.space(hope=1.0))]
    drawn = [replace(step, placement=placement) for step in steps]
    changes = _changes(space, incumbent.candidate, rng)
    changed = (incumbent.candidate.having(change) for change in changes)
    fresh = [c for c in dict.fromkeys([*drawn, *changed]) if c not in known]
    return _better(fresh, estimate, budget, trials) or _in_gaps(drawn, estimate, trials)


def _better(
    fresh: Sequence[Candidate], estimate: Estimate, budget: Budget, trials: Sequence[CandidateTrial]
) -> list[Candidate]:
    """Candidates that may be faster than every trial of the same accuracy, the largest gain first.
    With a limit on noise, only candidates within the limit count, compared with the fastest trial
    within it."""
    steps = staircase(trials)
    rows = []
    for candidate in fresh:
        expected = estimate.noise(candidate)
        if expected > budget.max_noise:
            continue
        bound = budget.max_noise if budget.min_sqnr is not None else expected
        rivals = [t.outcome.latency_ms for t in steps if t.outcome.noise <= bound]
        rival = min(rivals, default=2 * max(t.outcome.latency_ms for t in steps))
        gained = 1 - estimate.hoped_ms(candidate) / rival if rival > 0 else 0.0
        if gained > _WORTH:
            rows.append((-gained, candidate.options, candidate))
    return [candidate for *_, candidate in sorted(rows, key=lambda row: row[:2])]


def _in_gaps(
    drawn: Sequence[Candidate], estimate: Estimate, trials: Sequence[CandidateTrial]
) -> list[Candidate]:
    """Points of the path between two neighbours of the front, those in the widest gap first."""
    known = {trial.candidate for trial in trials}
    rows = []
    for fast, slow in pairwise(staircase(trials)):
        low, high = slow.outcome.noise, fast.outcome.noise
        inside = [c for c in drawn if c not in known and low < estimate.noise(c) < high]
        if inside and low > 0:
            rows.append((low / high, inside[len(inside) // 2]))
    return [candidate for _, candidate in sorted(rows, key=lambda row: row[0])]


def _changes(space: Space, candidate: Candidate, rng: random.Random) -> Iterator[dict[int, str]]:
    """Every other option of one group, and swaps of two groups: all of them, or as many random
    ones."""
    others = {
        index: [
            name
            for name in (*(option.name for option in group.options), space.carrier)
            if name != candidate.options[index]
        ]
        for index, group in enumerate(space.groups)
    }
    for index, names in others.items():
        yield from ({index: name} for name in names)
    pairs = list(combinations(others, 2))
    if len(pairs) > _PAIRS:
        pairs = rng.sample(pairs, _PAIRS)
    for first, second in pairs:
        for one in others[first]:
            yield from ({first: one, second: other} for other in others[second])
