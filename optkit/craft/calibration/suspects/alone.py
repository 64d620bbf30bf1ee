"""Findings about one set of samples of numbers alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optkit.craft.calibration.suspects.profile import NumericInput, Profile
from optkit.facts.documents.data_finding import DataFinding

FEWEST = 8
"""Fewer different samples than this are not enough for a range: one in nine of the following
samples would exceed it. (`pipeline.refusals.MIN_SAMPLES` refuses fewer samples.)"""

_DUPLICATES = 0.5  # some short texts and sparse rows are equal; half of a good set never is
_CONSTANT = 0.1  # good sets contain blank pictures and silence, but not one in ten
_ELEMENTS = 16  # a smaller input (a size, a time step) may have one number in all samples
_BITS_4 = 16.0
"""A sample that is 2⁴ times larger than all others takes 4 of their 8 bits, if the range is
min-max. Sixteen sets of scikit-learn and all examples are below 4."""

_APART = 32.0
"""A gap in the sorted deviations of samples. The loudness of recordings and the contrast of
pictures have no such gap (largest gap in the clean sets of the tests: 2.4)."""

_ALIKE = 1e-3
"""Share of the variance that is between samples. One handwritten digit alone has 0.3; one picture
that is repeated with different noise of a hundredth has 1e-4."""

_NOISE = 0.1
"""Neighbours' correlation in pictures is above 0.9 in photographs (Simoncelli and Olshausen,
"Natural image statistics", 2001), 0.5 in 8 x 8 digits, 0 ± 0.02 in noise of 8 x 8 x 8 samples."""

_INTERLEAVED = 0.1
"""How much more similar pixels are three apart than closer ones, along both axes. If [H, W, 3] is
reshaped to [3, H, W], every third pixel has the same colour: 0.4. Textures have up to 0.3 along one
axis."""


def whole_set(profile: Profile) -> Iterator[DataFinding]:
    """Too few different samples."""
    n, distinct = profile.samples, profile.distinct
    if distinct < FEWEST or distinct < _DUPLICATES * n:
        few = f"only {n} sample{'s' if n > 1 else ''}"
        yield DataFinding(
            "duplicates",
            None,
            few if distinct == n else f"only {distinct} of {n} samples are different",
            distinct,
            n,
            "give different samples: 128 to 512 are usual",
        )


def constant(x: NumericInput) -> Iterator[DataFinding]:
    """Samples without content: blank, all zeros, one number."""
    if 0 < x.elements < _ELEMENTS:
        return
    empty = x.lows == x.highs
    if empty.sum() < 2 or empty.mean() < _CONSTANT:
        return
    number = float(x.lows[empty][0])
    yield DataFinding(
        "constant",
        x.info.name,
        f"{int(empty.sum())} of {x.samples} samples have a single value everywhere (the first "
        f"{number:g})",
        int(empty.sum()),
        0,
        "check how the source reads its data",
    )


def alike(x: NumericInput) -> Iterator[DataFinding]:
    """The same sample several times, except for noise."""
    if x.centre is None or x.variance is None or x.centre.size < 4 * _ELEMENTS or x.centre.ndim < 2:
        return
    within, between = float(x.centre.var()), float(x.variance.mean())
    share = between / (within + between) if within else 1.0
    if share < _ALIKE and between:
        yield DataFinding(
            "alike",
            x.info.name,
            f"the samples hardly differ: only {share:.2g} of the variance is between samples",
            share,
            _ALIKE,
            "give different samples: 128 to 512 are usual",
        )


def outlier(x: NumericInput) -> Iterator[DataFinding]:
    """One sample that determines the range of all, or two groups of different scale."""
    magnitudes = np.sort(np.maximum(np.abs(x.lows), np.abs(x.highs)))
    if x.samples < FEWEST:
        return
    few = max(1, x.samples // 100)
    rest, top = float(magnitudes[-few - 1]), float(magnitudes[-1])
    if rest > 0 and top >= _BITS_4 * rest:
        row = int(np.argmax(np.maximum(np.abs(x.lows), np.abs(x.highs))))
        yield DataFinding(
            "outlier",
            x.info.name,
            f"the largest magnitude is {top:.4g} in sample {row}, {rest:.4g} in the others: its "
            f"range leaves them {max(8 - np.log2(top / rest), 0):.1f} of 8 bits",
            top,
            rest,
            "fix or remove it, or set calibration.method to percentile",
        )
        return
    spread = np.sort(x.deviations[x.deviations > 0])
    if len(spread) < FEWEST:
        return
    gaps = spread[1:] / spread[:-1]
    place = int(np.argmax(gaps))
    if gaps[place] >= _APART and min(place + 1, len(spread) - place - 1) > few:
        small, large = float(np.median(spread[: place + 1])), float(np.median(spread[place + 1 :]))
        yield DataFinding(
            "mixed",
            x.info.name,
            f"samples are of two scales: {place + 1} have a standard deviation of about "
            f"{small:.3g}, {len(spread) - place - 1} of about {large:.3g}",
            large,
            small,
            "prepare all samples in the same way",
        )


def disordered(x: NumericInput) -> Iterator[DataFinding]:
    """Pictures whose pixels are at wrong places, or that are noise."""
    if not x.is_picture or x.info.shape[1] == 4 or x.samples < FEWEST or not x.deviation:
        return
    near = [differences for axis, differences in x.neighbours.items() if axis in _sides(x)]
    if not near:
        return
    three = min(differences[2] - max(differences[:2]) for differences in near)
    if 3 in x.info.shape[1:] and len(near) == 2 and three > _INTERLEAVED:
        yield DataFinding(
            "interleaved",
            x.info.name,
            f"pixels three apart are more alike (correlation {near[0][2]:.2f}) than neighbours "
            f"({near[0][0]:.2f}): three colours stand beside each other",
            near[0][2],
            near[0][0],
            "move the colours with transpose, not with reshape",
        )
        return
    near_most = max(differences[0] for differences in near)
    if near_most < _NOISE:
        yield DataFinding(
            "noise",
            x.info.name,
            f"neighbouring pixels are unrelated (correlation {near_most:.2f}; pictures have 0.5 "
            "and more): noise, or pixels in another order",
            near_most,
            0.5,
            "calibrate on real pictures in the model's layout",
        )


def _sides(x: NumericInput) -> tuple[int, int]:
    """The axes of height and width."""
    return (2, 3) if x.info.shape[1] in (1, 3, 4) else (1, 2)
