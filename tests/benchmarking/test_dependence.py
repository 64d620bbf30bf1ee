"""Samples that belong together: groups, neighbours that are alike, and what neither can show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.benchmarking.accuracy import from_samples, too_little, value_interval
from optkit.craft.benchmarking.dependence import (
    by_group,
    design_effect,
    in_variance,
    members_of,
    of_same_things,
    worth,
)
from optkit.craft.benchmarking.gates import judge
from optkit.craft.benchmarking.intervals import Z95, paired_score, wilson
from optkit.craft.benchmarking.paired_drop import drop
from optkit.craft.benchmarking.slices import drops
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Basis, Score
from optkit.ground.recipe.sections import Limits

LIMIT = 0.01
RNG = np.random.default_rng


def score(values: np.ndarray, groups: np.ndarray | None = None) -> Score:
    return from_samples(
        np.asarray(values, float), metric="m", evidence=Evidence.SIMULATED,
        groups=[] if groups is None else groups.tolist(),
    )  # fmt: skip


grouped = st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 5)), min_size=2, max_size=60)


@given(grouped)
def test_groups_have_the_mean_of_all_samples_and_their_own_order(
    rows: list[tuple[float, int]],
) -> None:
    values, groups = np.array([v for v, _ in rows]), [g for _, g in rows]
    found = by_group(values, groups)
    names = list(dict.fromkeys(groups))
    assert len(found) == len(names)
    assert found.mean() == pytest.approx(values.mean(), abs=1e-12)
    members = members_of(groups)
    assert [groups[one[0]] for one in members] == names
    assert sorted(np.concatenate(members).tolist()) == list(range(len(rows)))
    if len({groups.count(name) for name in names}) == 1:
        assert found == pytest.approx([values[one].mean() for one in members], abs=1e-12)


def test_the_variance_of_groups_is_that_of_the_ratio() -> None:
    """Against the textbook form (Cochran 1977, 6.13): Σ(t - m·x)² / (n̄²·G·(G - 1))."""
    random = RNG(0)
    sizes = random.integers(1, 9, 40)
    groups = np.repeat(np.arange(40), sizes)
    values = random.normal(size=40)[groups] + random.normal(size=len(groups))
    totals = np.bincount(groups, values)
    rest = totals - values.mean() * sizes
    wanted = (rest**2).sum() / (sizes.mean() ** 2 * 40 * 39)
    assert by_group(values, groups.tolist()).var(ddof=1) / 40 == pytest.approx(wanted)
    assert worth(np.repeat(np.arange(8), 5).tolist()) == pytest.approx(8)
    assert worth([0] * 90 + list(range(1, 11))) < 1.3  # one clip is nearly all


@pytest.mark.parametrize("kind", ["scores", "flips"])
@pytest.mark.parametrize("n", [500, 5_000])
def test_runs_of_ten_count_as_a_tenth(kind: str, n: int) -> None:
    random = RNG(1)
    few = random.choice([-1.0, 0, 1], n // 10, p=(0.06, 0.88, 0.06))
    values = few if kind == "flips" else random.normal(size=n // 10)
    assert 6 < design_effect(values.repeat(10)) < 15
    assert design_effect(random.permutation(values.repeat(10))) < 2


def test_few_values_make_the_variance_beside_the_median() -> None:
    values = np.zeros(100)
    values[7] = 10.0
    assert in_variance(values) == 1.0  # about the mean it would be 1.02
    values[[7, 8]] = 10.0
    assert in_variance(values) == 2.0


def test_independent_samples_count_as_what_they_are() -> None:
    random = RNG(2)
    found = [design_effect(random.normal(size=1_000)) for _ in range(100)]
    assert np.mean(np.equal(found, 1.0)) >= 0.9 and max(found) < 2.5
    assert design_effect(np.ones(100)) == design_effect(np.arange(3.0)) == 1.0


def test_samples_of_one_class_are_not_the_same_thing() -> None:
    random = RNG(3)
    by_class = random.random(2_000) < np.clip(random.normal(0.8, 0.1, 40), 0, 1).repeat(50)
    clips = (random.random(200) < 0.8).repeat(10)
    assert of_same_things(by_class * 1.0) == 1.0
    assert of_same_things(clips * 1.0) > 6


def test_clips_that_flip_whole_are_judged_like_as_many_samples() -> None:
    """Shuffled or not, three of 200 clips are three of 200 samples."""
    before, after = np.ones(2_000), np.ones(2_000)
    after[:30] = 0
    clips = np.arange(2_000) // 10
    order = RNG(4).permutation(2_000)
    for rows in (np.arange(2_000), order):
        pair = score(before, clips[rows]), score(after[rows], clips[rows])
        found = drop(*pair)
        assert found.basis == Basis("bootstrap", 200, "groups")
        assert found.ci95 is not None
        assert found.ci95.high == pytest.approx(paired_score(3, 0, 200).high, rel=0.05)
        assert pair[1].basis == Basis("bootstrap", 200, "groups")
        interval = value_interval(pair[1])
        assert interval is not None
        assert interval.low == pytest.approx(wilson(197, 200).low, abs=0.004)


def test_all_right_in_few_clips_is_no_proof() -> None:
    right = score(np.ones(500), np.arange(500) // 10)
    low, high = right.ci95
    assert low == pytest.approx(wilson(50, 50).low) and high == 1.0
    (row,) = judge(Limits(max_drop=None, min_value=0.99), scores=(right, right)).rows
    assert row.outcome == "inconclusive" and "judged by 50 groups of samples" in row.reason
    few = score(RNG(0).random(500), np.arange(500) // 50)
    assert too_little(few) == "10 groups of samples are too few to say"


def test_a_metric_of_a_whole_set_draws_whole_groups() -> None:
    random = RNG(5)
    clips = np.arange(600) // 6
    rows = (random.normal(2, 0.5, 100)[clips] + random.normal(0, 0.01, 600))[:, None]
    found = from_samples(
        rows, metric="m", evidence=Evidence.SIMULATED, aggregate=lambda a: float(a.mean()),
        groups=clips.tolist(),
    )  # fmt: skip
    error = rows.reshape(100, 6).mean(1).std() / 10
    assert found.basis == Basis("bootstrap", 100, "groups")
    assert found.ci95.high - found.ci95.low == pytest.approx(2 * Z95 * error, rel=0.1)


def test_groups_stay_with_the_samples_of_a_slice() -> None:
    clips, names = np.arange(400) // 10, np.repeat(["day", "night"], 200).tolist()
    pair = score(np.ones(400), clips), score(np.arange(400) >= 10, clips)
    day, night = drops(names, *pair)
    assert (set(day.candidate.groups), set(night.candidate.groups)) == (
        set(range(20)), set(range(20, 40)),
    )  # fmt: skip
    assert day.ci95 is not None
    assert day.ci95.high >= paired_score(1, 0, 20).high - 1e-9


# --- wrong passes: every candidate is at the limit, so every `pass` is wrong ----------------------


def flips(random: np.random.Generator, clips: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong: 2.5 % of the clips are lost as a whole, and 1.5 % gained."""
    kind = random.choice(4, clips, p=(0.025, 0.015, 0.864, 0.096)).repeat(size)
    return (kind != 1) & (kind != 3), (kind != 0) & (kind != 3)


def graded(random: np.random.Generator, clips: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores around 0.8 that lose 1 % of it, each frame of a clip as much."""
    before = random.normal(0.8, 0.05, clips).repeat(size)
    return before, before - random.normal(0.008, 0.04, clips).repeat(size)


def rare(share: float, random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A few samples lose much, lognormal(1.5); all others nothing."""
    before = random.normal(0.8, 0.02, n)
    large = random.lognormal(0, 1.5, n) / np.exp(1.5**2 / 2) * 0.008 / share
    return before, before - (random.random(n) < share) * large


def passes(pairs: list[tuple[Score, Score]]) -> int:
    limits = Limits(max_drop=LIMIT)
    return sum(judge(limits, drop=drop(*pair)).verdict == "pass" for pair in pairs)


@pytest.mark.parametrize("draw", [flips, graded])
@pytest.mark.parametrize(
    ("n", "size"),
    [
        (500, 10),
        (500, 50),
        pytest.param(500, 2, marks=pytest.mark.slow),
        pytest.param(2_000, 10, marks=pytest.mark.slow),
    ],
)
def test_groups_keep_their_wrong_passes_rare(draw: object, n: int, size: int) -> None:
    random, pairs = RNG(6), []
    for _ in range(40):
        order = random.permutation(n)  # no order tells what belongs together
        clips = (np.arange(n) // size)[order]
        before, after = draw(random, n // size, size)  # type: ignore[operator]
        pairs.append((score(before[order], clips), score(after[order], clips)))
    assert passes(pairs) <= 3
    loose = [tuple(replace(one, groups=()) for one in pair) for pair in pairs]
    if draw is flips and size == 10:  # what no check can see without groups
        assert passes(loose) >= 7  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [500, 2_000])
def test_frames_in_their_order_need_no_groups(n: int) -> None:
    random = RNG(7)
    pairs = [tuple(map(score, flips(random, n // 10, 10))) for _ in range(60)]
    assert passes(pairs) <= 4  # type: ignore[arg-type]
    pair = pairs[0]
    (row,) = judge(Limits(max_drop=LIMIT), drop=drop(*pair), scores=pair).rows  # type: ignore[arg-type]
    assert "neighbouring samples are alike" in row.reason and "give their groups" in row.reason


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_rare_heavy_losses_are_inconclusive(share: float) -> None:
    random = RNG(8)
    pairs = [tuple(map(score, rare(share, random, 200))) for _ in range(60)]
    assert passes(pairs) <= 4  # type: ignore[arg-type]
    rising = [tuple(replace(one, lower_is_better=True) for one in reversed(pair))
              for pair in pairs]  # fmt: skip
    assert passes(rising) <= 5  # type: ignore[arg-type]


@given(st.integers(0, 99))
@settings(max_examples=10)
def test_ordinary_gates_still_pass(seed: int) -> None:
    random = RNG(seed)
    before = np.clip(random.normal(0.8, 0.1, 1_000), 0.3, 1.3)
    assert passes([(score(before), score(before - random.normal(0, 0.03, 1_000)))]) == 1
    assert passes([(score(np.ones(899)), score(np.ones(899)))]) == 1
