"""The search on spaces with known figures: noise and latency are sums over groups, or sums with a
correction; and searches that are killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log10
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts import codec
from optkit.satellites.tuning.path import path
from optkit.satellites.tuning.search import Search, best
from optkit.satellites.tuning.space import (
    Budget,
    Candidate,
    CandidateTrial,
    LayerGroup,
    Outcome,
    PrecisionOption,
    Space,
    front,
    staircase,
)


@dataclass
class World:
    """A space and what its candidates really come to. `calls`: how often it was asked."""

    space: Space
    milliseconds: np.ndarray  # [groups, options]: saved by it
    twist: float = 0.0  # of two neighbours that are quantized alike
    carrier_ms: float = 10.0
    floor: float = 1e-9  # noise of the carrier
    calls: int = 0

    def __call__(self, candidate: Candidate) -> Outcome:
        self.calls += 1
        noise, saved, size = self.floor, 0.0, 0
        for i, name in enumerate(candidate.options):
            option = self.space.option(i, name)
            noise += option.noise
            names = [o.name for o in self.space.groups[i].options]
            saved += self.milliseconds[i, names.index(name)] if name in names else 0.0
            size += 10 if name in names else 40
            alike = i and candidate.options[i - 1] == name and name in names
            saved += self.twist if alike else 0.0
        if candidate.placement != "default":
            saved, noise = saved + 0.1, noise * 1.1
        return Outcome(noise, self.carrier_ms - saved, size)


def world(
    seed: int, groups: int = 8, options: int = 1, twist: float = 0.0, wrong: float = 0.0
) -> World:
    """A random one. `wrong`: how far the expected gains are from the real ones."""
    rng = np.random.default_rng(seed)
    saved = rng.uniform(0.1, 1.0, (groups, options)) * 5 / groups
    noise = 10 ** rng.uniform(-7, -3, (groups, options))
    expected = saved * np.exp(wrong * rng.standard_normal(saved.shape))
    rows = tuple(
        LayerGroup(
            (f"layer{g}",),
            tuple(
                PrecisionOption(f"int{8 - o}", float(noise[g, o]), float(expected[g, o]))
                for o in range(options)
            ),
        )
        for g in range(groups)
    )
    return World(Space(rows, "fp16"), saved, twist)


@pytest.fixture
def small_world() -> World:
    return world(1)


worlds = st.builds(
    world,
    st.integers(0, 10_000),
    groups=st.integers(1, 9),
    options=st.integers(1, 2),
    twist=st.sampled_from([0.0, 0.05]),
    wrong=st.sampled_from([0.0, 0.5]),
)
decibels = st.floats(25, 90)
at_a_time = st.sampled_from([1, 2, 3, 6])


def run(
    made: World, budget: Budget, limit: int = 20, *, seed: int = 0, parallel: int = 1, **how: object
) -> Search:
    search = Search(made.space, budget, seed, parallel)
    search.run(made, limit=limit, **how)  # type: ignore[arg-type]
    return search


def backwards(tried: Callable[[Candidate], bool], candidates: Sequence[Candidate]) -> list[bool]:
    """As threads may: the last one ends first."""
    return [tried(candidate) for candidate in reversed(candidates)][::-1]


def every(made: World) -> list[CandidateTrial]:
    names = [(*(o.name for o in g.options), made.space.carrier) for g in made.space.groups]
    found = (Candidate(options) for options in itertools.product(*names))
    return [CandidateTrial(candidate, made(candidate)) for candidate in found]


@given(worlds, decibels)
@settings(max_examples=25, deadline=None)
def test_front_is_monotone(made: World, limit: float) -> None:
    search = run(made, Budget(min_sqnr=limit))
    found = front(search.trials)
    for a, b in itertools.permutations(found, 2):
        x, y = a.outcome, b.outcome
        assert x.noise < y.noise or x.latency_ms < y.latency_ms or x.bytes < y.bytes
    steps = [t.outcome for t in staircase(search.trials)]
    assert all(a.latency_ms <= b.latency_ms and a.noise > b.noise
               for a, b in itertools.pairwise(steps))  # fmt: skip
    covered = [t for t in search.trials if t not in found]
    for trial in covered:
        assert any(
            f.outcome.noise <= trial.outcome.noise
            and f.outcome.latency_ms <= trial.outcome.latency_ms
            and f.outcome.bytes <= trial.outcome.bytes
            for f in found
        )


@given(worlds, decibels, at_a_time)
@settings(max_examples=25, deadline=None)
def test_result_is_inside_whenever_anything_is(made: World, limit: float, parallel: int) -> None:
    budget = Budget(min_sqnr=limit)
    found = run(made, budget, parallel=parallel).best
    assert found is not None
    feasible = [trial for trial in every(made) if budget.excess(trial.outcome) == 0]
    assert (budget.excess(found.outcome) == 0) == bool(feasible)


@pytest.mark.parametrize("seed", range(12))
def test_result_is_near_the_optimum(seed: int) -> None:
    """Against an exhaustive search, on layers whose expected gains are wrong by half."""
    made = world(seed, groups=9, wrong=0.5)
    for limit, parallel in itertools.product((35.0, 45.0, 55.0), (1, 6)):
        budget = Budget(min_sqnr=limit)
        optimum = best(every(made), budget)
        found = run(made, budget, limit=24, parallel=parallel).best
        assert found is not None and optimum is not None
        saved = made.carrier_ms - found.outcome.latency_ms
        assert saved >= 0.9 * (made.carrier_ms - optimum.outcome.latency_ms)


def test_learned_gains_find_what_the_roofline_got_wrong() -> None:
    """Half of the layers are slower quantized: only trials tell, and the search finds out."""
    made = world(3, groups=8)
    made.milliseconds[::2] *= -1
    found = run(made, Budget(min_sqnr=20.0), limit=24).best
    assert found is not None
    optimum = best(every(made), Budget(min_sqnr=20.0))
    assert optimum is not None
    saved = made.carrier_ms - found.outcome.latency_ms
    assert saved >= 0.9 * (made.carrier_ms - optimum.outcome.latency_ms)


@given(worlds, decibels, st.integers(2, 20), at_a_time)
@settings(max_examples=25, deadline=None)
def test_anytime(made: World, limit: float, stop: int, parallel: int) -> None:
    """More trials never give a worse result, and fewer are a prefix of more."""
    budget = Budget(min_sqnr=limit)
    short, long = (run(made, budget, n, parallel=parallel) for n in (stop, stop + 5))
    assert long.trials[: len(short.trials)] == short.trials
    assert short.best is not None and long.best is not None
    assert budget.rank(long.best.outcome) <= budget.rank(short.best.outcome)


@given(
    worlds,
    decibels,
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.integers(0, 3),
    at_a_time,
)
@settings(max_examples=25, deadline=None)
def test_killed_and_resumed_ends_as_undisturbed(
    made: World, limit: float, kills: list[int], seed: int, parallel: int
) -> None:
    budget = Budget(min_sqnr=limit)
    whole = run(made, budget, limit=16, seed=seed, parallel=parallel)
    memory: dict[Candidate, Outcome] = {}
    made.calls = 0

    class Killed(Exception):
        pass

    for survives in [*kills, 10_000]:
        left = survives

        def evaluate(candidate: Candidate) -> Outcome:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            memory[candidate] = made(candidate)
            return memory[candidate]

        search = Search(made.space, budget, seed, parallel)
        try:
            search.run(evaluate, limit=16, each=backwards, memory=dict(memory))
        except Killed:
            continue
    assert search.trials == whole.trials
    assert made.calls == len({t.candidate for t in whole.trials})  # nothing was tried twice


budgets = st.sampled_from([Budget(min_sqnr=40.0), Budget(max_drop=0.01), Budget(max_latency_ms=7)])


@given(worlds, budgets, at_a_time, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_it_does_not_matter_which_trial_of_a_round_ends_first(
    made: World, budget: Budget, parallel: int, order: Random
) -> None:
    def shuffled(tried: Callable[[Candidate], bool], candidates: Sequence[Candidate]) -> list[bool]:
        return list(map(tried, order.sample(candidates, len(candidates))))

    whole = run(made, budget, parallel=parallel)
    found = run(made, budget, parallel=parallel, each=shuffled)
    assert (found.trials, found.converged) == (whole.trials, whole.converged)


@given(worlds, decibels, at_a_time)
@settings(max_examples=25, deadline=None)
def test_the_first_of_the_path_that_is_accurate_enough_is_always_tried(
    made: World, limit: float, parallel: int
) -> None:
    """However many at a time: so no result is worse than it."""
    budget = Budget(min_sqnr=limit)
    search = run(made, budget, 30, parallel=parallel)
    inside = (step for step in path(made.space) if made(step).noise <= budget.max_noise)
    first = next(inside, None)
    if first is not None:
        assert first in {trial.candidate for trial in search.trials}
        assert search.best is not None
        assert budget.rank(search.best.outcome) <= budget.rank(made(first))


def test_as_many_are_tried_at_a_time_as_asked() -> None:
    """Each of them another one, in rounds that the outcomes of those before have taught."""
    made, rounds = world(3, groups=12, options=2, wrong=0.5), []

    def each(tried: Callable[[Candidate], bool], candidates: Sequence[Candidate]) -> list[bool]:
        assert len(set(candidates)) == len(candidates)
        rounds.append(len(candidates))
        return list(map(tried, candidates))

    search = run(made, Budget(min_sqnr=40.0), 18, parallel=4, each=each)
    assert sum(rounds) == len(search.trials) == made.calls == 18
    assert max(rounds) == 4 and rounds.count(4) >= 2


def test_one_at_a_time_is_the_sequence_it_has_always_been() -> None:
    made = world(2, groups=6, options=2, wrong=0.5)
    found = run(made, Budget(min_sqnr=45.0), limit=14, seed=1).trials
    short = {"int8": "8", "int7": "7", "fp16": "-"}
    assert ["".join(short[name] for name in trial.candidate.options) for trial in found] == [
        "888888", "777777", "------", "787878", "-8-87-", "78787-", "88-87-", "78-87-", "88-78-",
        "88-88-", "787877", "-8-78-", "887877", "887878",
    ]  # fmt: skip


def test_drop_budget_spreads_over_the_front() -> None:
    made = world(5, groups=9)
    search = run(made, Budget(max_drop=0.01), limit=20)
    shown = [10 * log10(1 / t.outcome.noise) for t in staircase(search.trials)]
    assert len(shown) >= 7
    gaps = [b - a for a, b in itertools.pairwise(shown[:-1])]
    assert max(gaps) < (shown[-2] - shown[0]) / 2


@given(worlds, st.floats(5.0, 10.0))
@settings(max_examples=25, deadline=None)
def test_latency_budget_alone_gives_the_most_accurate_inside(made: World, limit: float) -> None:
    budget = Budget(max_latency_ms=limit)
    found = run(made, budget).best
    assert found is not None
    feasible = [t for t in run(made, budget).trials if t.outcome.latency_ms <= limit]
    if feasible:
        assert found.outcome.noise == min(t.outcome.noise for t in feasible)


def test_failed_trials_are_passed_over(small_world: World) -> None:
    def evaluate(candidate: Candidate) -> Outcome:
        if candidate.options[0] == "int8":
            return Outcome.failure("node 'layer0': no kernel")
        return small_world(candidate)

    search = Search(small_world.space, Budget(min_sqnr=30.0), 0)
    search.run(evaluate, limit=20)
    assert search.best is not None and search.best.candidate.options[0] == "fp16"
    assert any(trial.outcome.failed for trial in search.trials)
    assert all(not trial.outcome.failed for trial in front(search.trials))


def test_placement_that_is_faster_is_kept(small_world: World) -> None:
    space = replace(small_world.space, placements=("default", "other"))
    search = Search(space, Budget(min_sqnr=40.0), 0)
    search.run(small_world, limit=20)
    assert search.best is not None and search.best.candidate.placement == "other"


def test_stops_when_told_but_not_before_the_first_trial(small_world: World) -> None:
    search = run(small_world, Budget(min_sqnr=40.0), stop=lambda: True)
    assert len(search.trials) == 1
    memory = {trial.candidate: trial.outcome for trial in run(small_world, search.budget).trials}
    known = run(small_world, Budget(min_sqnr=40.0), stop=lambda: True, memory=memory)
    assert len(known.trials) == len(memory)  # what is known takes no time


def test_outcomes_survive_json() -> None:
    for outcome in (Outcome(1e-4, 2.0, 3, landed=1), Outcome.failure("why")):
        trial = CandidateTrial(Candidate(("int8", "fp16"), "other"), outcome)
        assert codec.from_json(CandidateTrial, codec.to_json(trial)) == trial
