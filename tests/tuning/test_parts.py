"""The parts of a search: the path, gains, estimates, the ladder of judgement, drawings."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import log10
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused
from optkit.facts.node_cost import NodeCost
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import cpu, target
from optkit.ground.devices.machine import describe
from optkit.satellites.tuning.estimate import Estimate
from optkit.satellites.tuning.gains import gain
from optkit.satellites.tuning.path import gain as saved
from optkit.satellites.tuning.path import hull, noise, path
from optkit.satellites.tuning.space import (
    Budget,
    Candidate,
    CandidateTrial,
    LayerGroup,
    Outcome,
    PrecisionOption,
    Space,
    staircase,
)
from optkit.satellites.tuning.verify import STEPS_DOWN, VerifiedTrial, fallback, rungs, verify

options = st.lists(
    st.tuples(st.floats(1e-8, 1e-2), st.floats(0.01, 1.0)), min_size=1, max_size=4
).map(lambda rows: tuple(PrecisionOption(f"p{i}", n, g) for i, (n, g) in enumerate(rows)))


@given(options)
def test_hull_is_convex_and_ends_in_the_carrier(found: tuple[PrecisionOption, ...]) -> None:
    ladder = hull(LayerGroup(("a",), found), "fp16")
    assert ladder[-1].name == "fp16"
    assert ladder[0].gain == max(option.gain for option in found)
    slopes = [(a.noise - b.noise) / (a.gain - b.gain) for a, b in itertools.pairwise(ladder)]
    assert all(x > y for x, y in itertools.pairwise(slopes))
    for option in found:  # nothing outside beats the line between its neighbours
        for a, b in itertools.pairwise(ladder):
            if b.gain <= option.gain <= a.gain:
                share = (option.gain - b.gain) / (a.gain - b.gain)
                line = b.noise + share * (a.noise - b.noise)
                assert option.noise >= line * (1 - 1e-9)


@given(st.lists(options, min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_every_point_of_the_path_is_the_best_for_its_noise(rows: list[Any]) -> None:
    """Against all assignments: none has less noise and more gain than a point of the path."""
    space = Space(tuple(LayerGroup((f"g{i}",), row) for i, row in enumerate(rows)), "fp16")
    steps = path(space)
    assert steps[-1] == space.uniform("fp16")
    names = [(*(o.name for o in group.options), "fp16") for group in space.groups]
    everything = [Candidate(c) for c in itertools.product(*names)]
    for step in steps:
        n, g = noise(space, step), saved(space, step)
        assert not any(
            noise(space, c) < n * (1 - 1e-9) - 1e-15 and saved(space, c) > g + 1e-9
            for c in everything
        )


def test_a_product_gains_what_the_roofline_says() -> None:
    l4 = target("l4")
    cost = NodeCost("MatMul", 10**9, 4 * 10**6, 4 * 10**6, 4 * 10**6)
    peak16, peak8, bandwidth = l4.peak("fp16"), l4.peak("int8"), l4.bandwidth
    assert peak16 and peak8 and bandwidth
    expected = 2e9 / peak16 - 2e9 / peak8 + (2e6 / 2 + 2e6 / 2) / bandwidth  # weights and input
    fp16, int8, int4 = (PRECISIONS[name] for name in ("fp16", "int8", "int4"))
    assert gain(cost, int8, fp16, l4) == pytest.approx(expected, rel=1e-6)
    # it reads less, and multiplies in FP16
    read = 4e6 * (16 - int4.weight_bits) / 32 / bandwidth
    assert gain(cost, int4, fp16, l4) == pytest.approx(read, rel=1e-6)
    assert gain(cost, fp16, fp16, l4) == 0


@pytest.mark.parametrize(
    ("kind", "gains"), [("cpu-avx512-vnni", True), ("cpu-avx2", False), ("cpu-amx", True)]
)
def test_two_terms_gain_less_than_one_on_a_cpu(kind: str, gains: bool) -> None:
    """And nothing where VNNI is absent: two integer products take longer than one in FP32."""
    cost = NodeCost("MatMul", 10**9, 4 * 10**6, 4 * 10**6, 4 * 10**6)
    machine = describe(replace(cpu(), kind=kind, clock_mhz=2500.0))
    int8, fp32 = PRECISIONS["int8"], PRECISIONS["fp32"]
    one = gain(cost, int8, fp32, machine)
    two = gain(cost, int8, fp32, machine, two_term=True)
    assert two < one and (two > 0) == gains


def line(count: int) -> tuple[Space, list[CandidateTrial]]:
    """A space, and trials of which each is faster and noisier than the one before; the carrier
    first."""
    groups = tuple(
        LayerGroup((f"g{i}",), (PrecisionOption("int8", 1e-5, 1.0),)) for i in range(count)
    )
    space = Space(groups, "fp16")
    trials = [
        CandidateTrial(
            Candidate(("int8",) * i + ("fp16",) * (count - i)),
            Outcome(1e-7 * 2**i, 10.0 - i, 100 - i),
        )
        for i in range(count + 1)
    ]
    return space, trials


def test_estimates_are_exact_where_trials_leave_nothing_open() -> None:
    space, trials = line(5)
    learned = Estimate(space, trials).space()
    for group in learned.groups:
        assert group.options[0].gain == pytest.approx(1.0, abs=0.02)


def judged(value: float, limit: float, outcome: str) -> Any:
    row = SimpleNamespace(gate="max_drop", value=value, limit=limit, outcome=outcome)
    return SimpleNamespace(findings=SimpleNamespace(verdict=SimpleNamespace(rows=(row,))))


def test_judgement_goes_down_and_ends_at_the_first_that_breaks_a_limit() -> None:
    space, trials = line(4)
    verdicts = {9.0: judged(0.0, 0.01, "pass"), 8.0: judged(0.001, 0.01, "pass"),
                7.0: judged(0.03, 0.01, "fail"), 6.0: judged(0.0, 0.01, "pass")}  # fmt: skip
    asked = []

    def judge(trial: CandidateTrial) -> Any:
        asked.append(trial.outcome.latency_ms)
        return verdicts[trial.outcome.latency_ms]

    winner, seen = verify(trials, space, Budget(max_drop=0.01), judge)
    assert asked == [9.0, 8.0, 7.0]  # never the one behind it
    assert winner is not None and winner.trial.outcome.latency_ms == 8.0
    assert [one.kept for one in seen] == [True, True, False]


def test_what_passes_goes_before_what_is_undecided() -> None:
    space, trials = line(3)
    verdicts = {9.0: judged(0.0, 0.01, "pass"), 8.0: judged(0.009, 0.01, "inconclusive"),
                7.0: judged(0.009, 0.01, "inconclusive")}  # fmt: skip
    winner, _ = verify(
        trials, space, Budget(max_drop=0.01), lambda t: verdicts[t.outcome.latency_ms]
    )
    assert winner is not None and winner.trial.outcome.latency_ms == 9.0
    undecided, _ = verify(
        trials, space, Budget(max_drop=0.01), lambda t: judged(0.009, 0.01, "inconclusive")
    )
    assert undecided is not None and undecided.trial.outcome.latency_ms == 7.0


def test_ladder_has_both_ends_of_the_front_and_never_the_carrier() -> None:
    space, trials = line(20)
    found = rungs(trials, space, Budget(max_drop=0.01))
    assert len(found) == STEPS_DOWN
    assert [t.outcome.latency_ms for t in (found[0], found[-1])] == [9.0, -10.0]
    assert all("int8" in t.candidate.options for t in found)
    inside = rungs(trials, space, Budget(min_sqnr=10 * log10(1 / 4e-7)))
    assert all(t.outcome.noise <= 4.01e-7 for t in inside) and len(inside) == 2


def test_nothing_is_judged_where_the_carrier_is_as_fast() -> None:
    space, trials = line(3)
    slower = [CandidateTrial(t.candidate, Outcome(t.outcome.noise, 10.01, 5)) for t in trials[1:]]
    assert rungs([trials[0], *slower], space, Budget(max_drop=0.01)) == []


def test_without_a_winner_the_carrier_is_built_if_it_keeps_the_limits() -> None:
    space, trials = line(3)  # sizes 100, 99, 98, 97, the carrier's first
    refused = [VerifiedTrial(trials[2], judged(0.02, 0.01, "fail"), False, False)]
    drop = Budget(max_drop=0.01)
    assert fallback(trials, space, drop, refused) == trials[0]
    small = Budget(max_drop=0.01, max_bytes=98)
    assert fallback(trials, space, small, refused) == trials[2]  # which the carrier is not
    tiny = Budget(max_drop=0.01, max_bytes=50)
    assert fallback(trials, space, tiny, []) == trials[3]  # the nearest
    broken = [CandidateTrial(t.candidate, Outcome.failure("no kernel")) for t in trials]
    with pytest.raises(InputRefused, match="no kernel"):
        fallback(broken, space, drop, [])


def test_staircase_against_the_definition() -> None:
    rng = np.random.default_rng(0)
    trials = [
        CandidateTrial(Candidate((str(i),)), Outcome(float(n), float(ms), int(size)))
        for i, (n, ms, size) in enumerate(rng.integers(1, 9, (60, 3)))
    ]
    found = {(t.outcome.noise, t.outcome.latency_ms) for t in staircase(trials)}
    points = {(t.outcome.noise, t.outcome.latency_ms) for t in trials}
    expected = {
        (n, ms)
        for n, ms in points
        if not any((a <= n and b <= ms) and (a, b) != (n, ms) for a, b in points)
    }
    assert found == expected
