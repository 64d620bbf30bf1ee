"""Scores of 0 and 1 whose losses and gains lie far from each other, so that no neighbours are
alike."""

from __future__ import annotations

import numpy as np

from optkit.craft.benchmarking.accuracy import from_samples
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score


def flipped(lost: int, gained: int, n: int) -> tuple[Score, Score]:
    """A baseline and a candidate that loses and gains so many of n samples."""
    both = lost + gained
    places = np.arange(both) * n // max(both, 1)
    turn = np.arange(both)
    is_lost = (turn + 1) * lost // max(both, 1) > turn * lost // max(both, 1)
    before, after = np.ones(n), np.ones(n)
    before[places[~is_lost]], after[places[is_lost]] = 0, 0
    return proportion(before), proportion(after)


def proportion(values: np.ndarray) -> Score:
    return from_samples(values, metric="top1", evidence=Evidence.SIMULATED)
