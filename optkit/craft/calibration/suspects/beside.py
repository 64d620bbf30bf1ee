"""Calibration data compared with evaluation data: the model expects the same kind of data in both.

Sets differ by chance and by their content. These findings are about differences of preparation,
which are larger. Each limit was compared with the clean pairs of sets in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from optkit.craft.calibration.suspects.alone import FEWEST
from optkit.craft.calibration.suspects.profile import NumericInput
from optkit.facts.documents.data_finding import DataFinding
from optkit.ground.statistics.bins import edges

_SCALE = 3.0
"""Ratio of the median deviations of the samples. Without normalization it is 4.4 (1 / 0.225),
without division by 255 it is 255. Strong augmentation of contrast or loudness stays below 2."""

_SHIFT = 1.0
"""Difference of the means in standard deviations of the evaluation data. At this difference, half
of the data is outside the range of the other set. Between classes of one data set it is up to
0.4."""

_CHANCE = 6.0  # standard errors that a difference of means must exceed too
_NEGATIVE = 0.1  # a share of negative numbers that is not chance if the other set has none
_OUTSIDE = 0.05
"""Share of the evaluation values beyond the extremes of the calibration data, which clipping
cuts."""

_CHANCE_OUTSIDE = 6.0
"""A multiple of 1 / (n + 1). The chance that a sample is beyond the extremes of n similar samples
is 2 / (n + 1), and one number per sample is beyond in the worst case."""

_BITS_4 = 16.0  # see `alone`: a range that is 2⁴ times too wide costs 4 of 8 bits
# ratio of the numbers of different values, e.g. if an 8-bit image was rounded to 0 and 1
_COARSE = 8
_ORDER = 0.3
"""Difference of the correlations of neighbours. Clean pairs differ by at most 0.05, shuffled or
reshaped axes by 0.5 and more."""

_DEAD = 1e-6  # share of the variance of the other set: the channel has almost no information
_OTHER_MEAN = 0.15
"""Squared distance of the two average samples, divided by the variance of a sample. One class of
ten handwritten digits compared with all has 0.3 to 0.6, five of the ten have 0.02."""

_CHANCE_MEAN = 12.0
"""A multiple of the value by chance. If all variance is in one direction, as in small tables, the
distance divided by chance has a χ² distribution of one degree of freedom, and 0.05 % lie beyond
12."""

_LINE = 64  # the order of a table's columns has no meaning; this many numbers in a row are a signal


def differences(x: NumericInput, other: NumericInput) -> Iterator[DataFinding]:
    """The first difference: first in the distribution of the numbers (scale, sign, mean, range),
    then in their places (channels, axes, the average sample). Later differences follow from earlier
    ones."""
    for rule in _RULES:
        finding = rule(x, other)
        if finding is not None:
            yield finding
            return


def _scale(x: NumericInput, other: NumericInput) -> DataFinding | None:
    ours, beside = float(np.median(x.deviations)), float(np.median(other.deviations))
    if not (ours and beside):
        ours, beside = x.deviation, other.deviation
    if not (ours and beside) or max(ours / beside, beside / ours) < _SCALE:
        return None
    ratio = ours / beside
    factor = f"{ratio:.4g}" if ratio >= 1 else f"1/{1 / ratio:.4g}"
    return _differ(
        "scale",
        x,
        ours,
        beside,
        f"calibration data is {factor} times as large as evaluation data (standard deviation "
        f"{ours:.4g} and {beside:.4g}, range {_span(x)} and {_span(other)})",
    )


def _sign(x: NumericInput, other: NumericInput) -> DataFinding | None:
    shares = _below(x), _below(other)
    if min(shares) > 0 or max(shares) < _NEGATIVE:
        return None
    return _differ(
        "sign",
        x,
        *shares,
        f"{shares[0]:.0%} of the calibration data is negative, {shares[1]:.0%} of the evaluation "
        f"data (range {_span(x)} and {_span(other)})",
    )


def _shift(x: NumericInput, other: NumericInput) -> DataFinding | None:
    moved = float(x.means.mean() - other.means.mean())
    chance = np.sqrt(x.means.var() / x.samples + other.means.var() / other.samples)
    if abs(moved) < _SHIFT * other.deviation or abs(moved) < _CHANCE * chance or not moved:
        return None
    return _differ(
        "shift",
        x,
        float(x.means.mean()),
        float(other.means.mean()),
        f"the mean of the calibration data is {x.means.mean():.4g}, of the evaluation data "
        f"{other.means.mean():.4g}: {abs(moved) / max(other.deviation, 1e-30):.1f} standard "
        "deviations apart",
    )


def _collapsed(x: NumericInput, other: NumericInput) -> DataFinding | None:
    ours, beside = len(x.bins), len(other.bins)
    if ours * _COARSE > beside or ours > _BITS_4:
        return None
    return _differ(
        "collapsed",
        x,
        ours,
        beside,
        f"calibration data holds {ours} different values, evaluation data {beside} or more: as if "
        "rounded to integers",
    )


def _narrow(x: NumericInput, other: NumericInput) -> DataFinding | None:
    lower, upper = edges(other.bins)
    outside = (lower > x.high) | (upper < x.low)
    share = float(other.counts[outside].sum() / other.counts.sum())
    if share < max(_OUTSIDE, _CHANCE_OUTSIDE / (x.samples + 1)):
        return None
    return _differ(
        "narrow",
        x,
        share,
        0.0,
        f"{share:.0%} of the evaluation data lies outside the calibration data's range "
        f"{_span(x)}: it would be clipped (its own range is {_span(other)})",
    )


def _wide(x: NumericInput, other: NumericInput) -> DataFinding | None:
    ours, beside = x.high - x.low, other.high - other.low
    if other.samples < FEWEST or not beside or ours < _BITS_4 * beside:
        return None
    return _differ(
        "wide",
        x,
        ours,
        beside,
        f"the calibration data's range {_span(x)} is {ours / beside:.4g} times that of the "
        f"evaluation data {_span(other)}, which gets {max(8 - np.log2(ours / beside), 0):.1f} of 8 "
        "bits",
    )


def _dead(x: NumericInput, other: NumericInput) -> DataFinding | None:
    """A channel (axis 1) that varies in only one set."""
    ours, beside = _channel_variances(x), _channel_variances(other)
    if ours is None or beside is None or ours.shape != beside.shape or ours.size < 2:
        return None
    if min(x.samples, other.samples) < FEWEST:
        return None
    typical = float(np.median(beside))
    dead = np.flatnonzero((ours <= _DEAD * beside) & (beside > 0.1 * typical))
    if not dead.size or not typical:
        return None
    return _differ(
        "dead",
        x,
        len(dead),
        0,
        f"{len(dead)} of {ours.size} channels are constant in calibration data and vary in "
        f"evaluation data (the first is channel {dead[0]})",
    )


def _swapped(x: NumericInput, other: NumericInput) -> DataFinding | None:
    """Red and blue are exchanged: the difference of their means has the other sign."""
    if x.colours is None or other.colours is None:
        return None
    ours, beside = (c[:, 0] - c[:, 2] for c in (x.colours, other.colours))
    chance = np.sqrt(ours.var() / len(ours) + beside.var() / len(beside))
    apart, turned = abs(ours.mean() - beside.mean()), abs(ours.mean() + beside.mean())
    if min(len(ours), len(beside)) < FEWEST or apart < _CHANCE * chance or turned > apart / 3:
        return None
    return _differ(
        "swapped",
        x,
        float(ours.mean()),
        float(beside.mean()),
        f"channel 0 less channel 2 is {ours.mean():+.3g} on average in calibration data, "
        f"{beside.mean():+.3g} in evaluation data: RGB and BGR are mixed up",
    )


def _order(x: NumericInput, other: NumericInput) -> DataFinding | None:
    for axis in sorted(x.neighbours.keys() & other.neighbours.keys()):
        ours, beside = x.neighbours[axis][0], other.neighbours[axis][0]
        if x.variance is not None and x.variance.ndim == 1 and x.variance.size < _LINE:
            continue
        if abs(ours - beside) >= _ORDER and min(x.samples, other.samples) >= FEWEST:
            return _differ(
                "order",
                x,
                ours,
                beside,
                f"neighbours along axis {axis} have a correlation of {ours:.2f} in calibration "
                f"data, {beside:.2f} in evaluation data: axes are swapped or elements shuffled",
            )
    return None


def _other_mean(x: NumericInput, other: NumericInput) -> DataFinding | None:
    if x.centre is None or other.centre is None or x.centre.shape != other.centre.shape:
        return None
    assert x.variance is not None and other.variance is not None
    if x.centre.size < 4 or min(x.samples, other.samples) < FEWEST:
        return None
    variance = float(other.variance.sum())
    if not variance:
        return None
    chance = float((x.variance / x.samples + other.variance / other.samples).sum())
    distance = float(((x.centre - other.centre) ** 2).sum()) / variance
    if distance < _OTHER_MEAN + _CHANCE_MEAN * chance / variance:
        return None
    return _differ(
        "other",
        x,
        distance,
        0.0,
        f"the average calibration sample is {distance:.2g} times a sample's variance away from the "
        "average evaluation sample: of one kind only, turned, or of other data",
    )


def _differ(kind: str, x: NumericInput, ours: float, beside: float, what: str) -> DataFinding:
    hint = "prepare both sets in the same way as in the training of the model"
    return DataFinding(kind, x.info.name, what, float(ours), float(beside), hint)


def _span(x: NumericInput) -> str:
    return f"[{x.low:.4g}, {x.high:.4g}]"


def _below(x: NumericInput) -> float:
    _, upper = edges(x.bins)
    return float(x.counts[upper < 0].sum() / x.counts.sum())


def _channel_variances(x: NumericInput) -> np.ndarray | None:
    """[channels] of axis 1, over samples and positions; None for an input without channels."""
    if x.centre is None or x.variance is None or not x.centre.ndim:
        return None
    axes = tuple(range(1, x.centre.ndim))
    variances: np.ndarray = x.variance.mean(axis=axes) + x.centre.var(axis=axes)
    return variances


_RULES: tuple[Callable[[NumericInput, NumericInput], DataFinding | None], ...] = (
    _scale,
    _collapsed,
    _dead,
    _sign,
    _shift,
    _narrow,
    _wide,
    _swapped,
    _order,
    _other_mean,
)
