"""What is drafted from the text so far, and how many tokens of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.satellites.generation.draft_length import MOST, DraftLength
from optkit.satellites.generation.drafters import LONGEST, PromptLookup

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def searched(text: Sequence[int]) -> tuple[int, int]:
    """The number of tokens at the end of the text that are found before, and the last place after
    them, by trying all."""
    for length in range(min(LONGEST, len(text)), 0, -1):
        for place in range(len(text) - 1, length - 1, -1):
            if text[place - length : place] == text[-length:]:
                return length, place
    return 0, 0


@given(text=TEXT, start=st.integers(1, 30), count=st.integers(1, 9))
def test_the_longest_end_of_the_text_that_stands_before_is_continued(
    text: list[int], start: int, count: int
) -> None:
    lookup = PromptLookup()
    lookup.begin(text[:start], 0, 99)
    for end in range(min(start, len(text)), len(text) + 1):
        length, place = searched(text[:end])
        assert lookup.evidence(text[:end]) == length
        if length:
            whole = text[:end]
            while len(whole) < place + count:  # it goes on into what it drafted
                whole.append(whole[place + len(whole) - end])
            assert lookup.draft(text[:end], count).tokens == whole[place : place + count]


def test_a_short_repetition_is_drafted_at_any_length() -> None:
    lookup = PromptLookup()
    lookup.begin([5, 1, 2, 1, 2], 0, 99)
    assert lookup.evidence([5, 1, 2, 1, 2]) == 2
    assert lookup.draft([5, 1, 2, 1, 2], 5).tokens == [1, 2, 1, 2, 1]


def simulated(
    length: DraftLength, share: float, time: Callable[[int], float], *, free: bool, texts: int = 40
) -> float:
    """Tokens per second of a target whose run with k drafted tokens takes time(k), each token of
    which is accepted with probability `share`."""
    random = np.random.default_rng(0)
    tokens, seconds = 0, 0.0
    for _ in range(texts):
        for _ in range(50):
            count = length.choose(1, MOST, free=free)
            offered = [1] * max(count, int(free))
            right = [1 if random.random() < share else 0 for _ in range(count + 1)]
            new = right[: right.index(0) + 1] if 0 in right else right
            length.learn(1, offered, new, count, time(count))
            tokens += len(new)
            seconds += time(count)
    return tokens / seconds


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("slope", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 0.97])
def test_the_adaptive_number_is_about_as_fast_as_the_best_fixed_one(
    share: float, slope: float, free: bool
) -> None:
    def time(count: int) -> float:
        return 1 + slope * count

    adaptive = simulated(DraftLength(), share, time, free=free)
    fixed = {k: simulated(DraftLength(k), share, time, free=free) for k in range(1, MOST + 1)}
    assert adaptive > 0.9 * max(1.0, *fixed.values())
    assert adaptive > 0.96  # of plain decoding, which gives one token per second


def test_times_that_do_not_grow_evenly_are_learned() -> None:
    """Kernels take several rows at once: the time of a run is a staircase."""

    def time(count: int) -> float:
        return 1.0 if count < 4 else 2.5

    adaptive = simulated(DraftLength(), 0.9, time, free=True)
    assert adaptive > 0.93 * simulated(DraftLength(3), 0.9, time, free=True)


def test_one_interrupted_run_does_not_decide() -> None:
    length, runs = DraftLength(), iter(range(10**6))

    def time(count: int) -> float:
        return (1 + 0.1 * count) * (50 if next(runs) % 40 == 17 else 1)

    simulated(length, 0.9, time, free=True)
    assert length.choose(1, MOST, free=True) >= 4


def test_interrupted_first_tries_are_repeated() -> None:
    length, tried = DraftLength(), set[int]()

    def time(count: int) -> float:
        first = count > 0 and count not in tried
        tried.add(count)
        return (1 + 0.1 * count) * (20 if first else 1)

    assert simulated(length, 0.9, time, free=True, texts=4) > 1  # interruptions included
    simulated(length, 0.9, time, free=True, texts=20)
    assert length.choose(1, MOST, free=True) >= 4


def test_nothing_is_drafted_without_evidence_or_room() -> None:
    length = DraftLength(4)
    assert [length.choose(*given, free=True) for given in ((0, 9), (1, 0), (1, 2), (1, 9))] == [
        0, 0, 2, 4,
    ]  # fmt: skip
    assert DraftLength().choose(1, 9, free=True) == 0  # before a plain run was timed
