from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking import sequential as looks
from optkit.craft.benchmarking.gates import certain, judge
from optkit.craft.benchmarking.paired_drop import drop
from optkit.ground.recipe.sections import Limits
from tests.benchmarking.flips import flipped


@given(st.integers(1, 100_000))
def test_looks_cover_all_samples_once_and_grow(samples: int) -> None:
    parts = looks.segments(samples)
    assert parts[0][0] == 0
    assert parts[-1][1] == samples
    assert [stop for _, stop in parts[:-1]] == [start for start, _ in parts[1:]]
    sizes = [stop - start for start, stop in parts]
    assert len(parts) == 1 or min(sizes) >= 256
    assert all(stop == 256 * 2**index for index, (_, stop) in enumerate(parts[:-1]))


def test_samples_are_drawn_at_random_and_always_alike() -> None:
    order = looks.order(1000)
    assert sorted(order) == list(range(1000))
    assert (order == looks.order(1000)).all()
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1


@given(st.integers(1, 5_000), st.data())
def test_what_was_drawn_is_put_back_into_the_order_of_the_samples(
    samples: int, data: st.DataObject
) -> None:
    segments = looks.segments(samples)
    parts = data.draw(st.integers(1, len(segments)))
    pooled = np.concatenate([np.sort(looks.order(samples)[a:b]) for a, b in segments[:parts]])
    restored = pooled[looks.restoring(samples, parts)]
    assert (np.diff(restored) > 0).all()
    assert len(restored) == segments[parts - 1][1]


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from((256, 1024, 4096)))
def test_what_is_certain_stays_the_verdict(lost: int, gained: int, n: int) -> None:
    limits, scores = Limits(max_drop=0.02, min_value=0.9), flipped(lost, gained, n)
    verdict = judge(limits, drop=drop(*scores), scores=scores).verdict
    if certain(limits, scores, ()):
        assert verdict in ("pass", "fail")


@pytest.mark.parametrize(
    ("lost", "n", "expected"),
    [
        (0, 256, False),  # 99.9 %: up to z²/(n + z²) = 4.1 points may be lost
        (0, 1024, True),  # 1.0
        (80, 256, True),  # far beyond the limit
        (9, 256, False),
    ],
)
def test_certainty_takes_a_wider_interval(lost: int, n: int, expected: bool) -> None:
    assert certain(Limits(max_drop=0.02), flipped(lost, 0, n), ()) is expected


def test_without_a_gate_on_accuracy_nothing_is_certain() -> None:
    assert not certain(Limits(max_drop=None, max_latency_ms=1.0), flipped(0, 0, 4096), ())
