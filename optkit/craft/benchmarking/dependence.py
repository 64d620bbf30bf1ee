"""How many independent samples an evaluation has: those that belong together, such as the frames of
a clip or the windows of a text, tell less than as many others.

    groups given   a group is the unit: `by_group`
    no groups      neighbours that are alike count as fewer samples: `design_effect`

Only dependence in the order of the samples is seen without groups. If the frames of all clips are
shuffled, no order shows that they belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np

from optkit.facts.measurement import Basis

HEAVY = 12.0
"""The fewest values on which a variance may depend (`in_variance`) to be trusted: a third of 36
normal ones."""
_SURE = 2.5  # standard errors from which neighbours are alike
_PARTS = 8  # the fewest spans that the longest sums leave
_SAME = 1.5  # a variance of sums of two from which neighbours show the same thing (r ≥ 0.5)


@dataclass(frozen=True)
class Units:
    """What an interval of a mean counts: one value per sample or per group. `count`: how many
    independent ones of one size tell as much. `low`, `span`: of the scores of single samples,
    whatever the values are; `grouped`: the values are those of groups."""

    values: np.ndarray
    count: float
    low: float
    span: float
    grouped: bool = False

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        groups: Sequence[int] = (),
        scores: np.ndarray | None = None,
        ends: tuple[float, float] | None = None,
    ) -> Self:
        """Of values [samples], in their order, and the group of each sample (empty: no groups are
        known). `scores`: those of the baseline, if the values are losses: if few samples lose
        anything, the losses do not show whether neighbours are alike, but the scores may. `ends`:
        the range of the scores, if it is not that of the values."""
        low, high = ends or (float(values.min()), float(values.max()))
        if len(groups):
            return cls(by_group(values, groups), worth(groups), low, high - low, grouped=True)
        effect = design_effect(values)
        if scores is not None and in_variance(values) < HEAVY:
            effect = max(effect, of_same_things(scores))
        return cls(values, len(values) / effect, low, high - low)

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def basis(self, method: str) -> Basis:
        """What the report says of an interval of these by this method."""
        if self.grouped:
            return Basis(method, len(self.values), "groups")
        alike = self.count < len(self.values)
        return Basis(method, round(self.count), "alike samples" if alike else "samples")


def in_variance(values: np.ndarray) -> float:
    """The number of values on which the variance depends: (Σd²)² / Σd⁴, which is n divided by the
    kurtosis about the median. It is a third of n for normal values, a ninth for exponential ones,
    and 1 if one value is much larger than all others."""
    squares = (values - np.median(values)) ** 2
    whole = float((squares**2).sum())
    return float(squares.sum()) ** 2 / whole if whole > 0 else 0.0


def carriers(values: np.ndarray) -> float:
    """The number of values on which the mean depends: (Σ|d|)² / Σd², with d the distance from the
    median. If most values are zero and the others are equal, it is the number of the others."""
    distances = np.abs(values - np.median(values))
    whole = float((distances**2).sum())
    return float(distances.sum()) ** 2 / whole if whole > 0 else float(len(values))


def by_group(values: np.ndarray, groups: Sequence[int]) -> np.ndarray:
    """One value per group [groups], in the order in which they begin; their mean is that of the
    values [samples].

    Groups of one size have their means. For groups of several sizes the mean of all samples is a
    ratio, the sum of all totals over that of all sizes, and these are its linear terms (Taylor
    linearization, Woodruff 1971): m + (total - m·size) / mean size, m the mean of all samples.
    """
    _, first, place = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
    totals, sizes = np.bincount(place, values), np.bincount(place)
    mean = float(values.mean())
    terms: np.ndarray = mean + (totals - mean * sizes) * len(sizes) / len(values)
    return terms[np.argsort(first)]


def members_of(groups: Sequence[int]) -> list[np.ndarray]:
    """The numbers of the samples of each group, in the order in which the groups begin."""
    _, first, place = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[place]
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank))[:-1])


def worth(groups: Sequence[int]) -> float:
    """The number of groups of one size that tell as much as these (Kish 1965): (Σm)² / Σm² for
    groups of m samples."""
    sizes = np.unique(np.asarray(groups), return_counts=True)[1].astype(float)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def design_effect(values: np.ndarray) -> float:
    """By how many times the mean of values [samples] in their order varies more than that of as
    many independent ones: 1 if neighbours are not alike, 10 for runs of ten equal values.

    It is the variance ratio of Lo & MacKinlay (1988), the variance of sums of L neighbours over L
    times that of one value: the largest for L = 2, 4, 8, … that is 2.5 standard errors,
    √(2·(2L - 1)·(L - 1) / (3·L·n)), above 1.
    """
    found = 1.0
    for length, ratio in _ratios(values):
        error = sqrt(2 * (2 * length - 1) * (length - 1) / (3 * length * len(values)))
        if ratio - 1 > _SURE * error:
            found = max(found, ratio)
    return found


def of_same_things(values: np.ndarray) -> float:
    """`design_effect`, if neighbours are so much alike that they show the same thing, as the frames
    of a clip do; 1 for less, such as the samples of one class."""
    pairs = next((ratio for _, ratio in _ratios(values)), 1.0)
    return design_effect(values) if pairs >= _SAME else 1.0


def _ratios(values: np.ndarray) -> list[tuple[int, float]]:
    """L and the variance ratio of sums of L neighbours; the last value is a neighbour of the
    first."""
    count = len(values)
    away = values - values.mean()
    spread = float((away**2).mean())
    if spread == 0:
        return []
    found = []
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([away, away]))])
    length = 2
    while length * _PARTS <= count:
        sums = upto[length : length + count] - upto[:count]
        expected = length * spread * (1 - (length - 1) / (count - 1))
        found.append((length, float((sums**2).mean()) / expected))
        length *= 2
    return found
