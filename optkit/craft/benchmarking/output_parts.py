"""The parts of an output whose values have units of their own, such as boxes beside scores.

One figure over both hides one of them: boxes in pixels have a million times the power of scores,
so the SQNR of the whole output says nothing about the scores. The figure of a part is

    10·log10( Σ r² / Σ (r - c)² )  dB        over the channels of the part

with the power of the values as they are, as in any SQNR (Jayant, Noll: Digital Coding of Waveforms,
1984, chapter 4). The channels of a part share a unit, so an error in one of them counts as much
as in another: a class that never fires has little power and little noise, and changes nothing,
where a figure for each channel alone would call it broken. A power without the mean would do the
same to what hardly varies in the samples. If the *candidate* has lost the variation of a part, its
row says `constant`.

Which channels share a unit follows from the values of the reference:

- Values from 0 to 1, with few exact zeros, are shares (a sigmoid or a softmax). They are a part
  beside other values, if one of both has less than a quarter of the power, and the shares are
  sparse, mostly near 0, as scores are, or ten times smaller or larger. (Else they may be some of
  many features that happen to be positive.)
- An output of three axes that has only shares may be a detector's whose boxes are shares of the
  picture: the first four channels, as in all heads of `detector_heads`. Coordinates are not sparse:
  of each of the four the standard deviation is less than 1.2 times the mean, and together they have
  three times the mean power of the others.
- Of the other channels, those whose root mean square is ten times smaller than that of the next
  larger channel are a part, if they have less than a quarter of the power and are at least an
  eighth of the channels. (Fewer are channels without energy, of which every feature map has some.)

A part with a quarter of the power or more cannot hide: without its signal the whole output has 6 dB
or less.

The axis of the channels is the one whose parts have the most different powers. If no axis has
parts, it is the one with the largest ratio of arithmetic to geometric mean of the channels' powers
(its coding gain, ibid., chapter 12): along an axis of positions, powers are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optkit.craft.benchmarking.detector_heads import COORDINATES
from optkit.craft.benchmarking.output_sums import Totals

_HIDDEN = 1 / 4  # of the power
_APART = 10.0  # between two root mean squares
_FEW = 1 / 8  # of the channels
_ZEROS = 0.01  # of the values of a channel of shares
_BOXED = 3  # axes
_DENSE = 0.4  # squared mean over power, of a coordinate
_BRIGHTER = 3.0  # mean power of coordinates over that of scores


@dataclass(frozen=True)
class Parts:
    """`axis`: that of the channels; `channels`: of each part, two parts or more, in the order of
    their first channels; empty if all channels share a unit."""

    axis: int
    channels: tuple[np.ndarray, ...] = ()


def parts(totals: Mapping[int, Totals], rank: int) -> Parts | None:
    """The parts of an output of `rank` axes, from the sums of the channels of each axis; None
    without such axes."""
    known = {axis: sums for axis, sums in totals.items() if np.isfinite(sums.signal).all()}
    found = {axis: list(_units(sums, boxed=rank == _BOXED)) for axis, sums in known.items()}
    several = [axis for axis, channels in found.items() if len(channels) > 1]
    if several:
        best = max(several, key=lambda axis: _contrast(known[axis], found[axis]))
        return Parts(best, tuple(sorted(found[best], key=lambda channels: int(channels[0]))))
    if not known:
        return None
    return Parts(max(known, key=lambda axis: _coding_gain(known[axis].signal)))


def named(channels: np.ndarray) -> str:
    """`channels 0 to 3, 8`."""
    runs = np.split(channels, np.flatnonzero(np.diff(channels) != 1) + 1)
    spans = (f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"channel{'s' if len(channels) > 1 else ''} {', '.join(spans)}"


def _units(sums: Totals, *, boxed: bool) -> Iterator[np.ndarray]:
    """The channels of each unit, increasing. Silent channels, all zero in the reference, belong to
    the unit of least power. `boxed`: the first channels may be boxes."""
    loud = np.flatnonzero(sums.signal > 0)
    shares = (sums.low >= 0) & (sums.high <= 1) & (sums.zeros <= _ZEROS * sums.count)
    kinds = [loud[shares[loud]], loud[~shares[loud]]]
    if boxed and not len(kinds[1]) and _begins_with_boxes(sums, loud):
        kinds = [loud[:COORDINATES], loud[COORDINATES:]]
    elif not _stand_beside(sums, *kinds):
        kinds = [loud]
    units = [unit for kind in kinds for unit in _by_scale(sums, kind)]
    if units:
        least = min(range(len(units)), key=lambda at: _mean_power(sums, units[at]))
        silent = np.flatnonzero(sums.signal == 0)
        units[least] = np.sort(np.concatenate([units[least], silent]))
    yield from units


def _stand_beside(sums: Totals, shares: np.ndarray, others: np.ndarray) -> bool:
    """Whether shares have a unit of their own beside other values."""
    powers = [float(sums.signal[kind].sum()) for kind in (shares, others)]
    if min(powers) == 0 or min(powers) >= _HIDDEN * sum(powers):
        return False
    constant = float((sums.mean[shares] ** 2 / sums.count[shares]).sum())
    small, large = sorted(
        float(np.median(sums.signal[kind] / sums.count[kind])) for kind in (shares, others)
    )
    return constant < _DENSE * powers[0] or large >= _APART**2 * small


def _begins_with_boxes(sums: Totals, loud: np.ndarray) -> bool:
    """Whether the first channels can be coordinates and the others scores."""
    box = np.arange(COORDINATES)
    if len(loud) <= COORDINATES or (loud[:COORDINATES] != box).any():
        return False
    dense = sums.mean[box] ** 2 >= _DENSE * sums.signal[box] * sums.count[box]
    others = _mean_power(sums, loud[COORDINATES:])
    return bool(dense.all()) and _mean_power(sums, box) >= _BRIGHTER * others


def _by_scale(sums: Totals, channels: np.ndarray) -> list[np.ndarray]:
    """The channels, split where their scales are apart. Those of shares are not: their power says
    how often they fire."""
    if not len(channels) or (sums.low[channels].min() >= 0 and sums.high[channels].max() <= 1):
        return [channels] if len(channels) else []
    power = sums.signal[channels] / sums.count[channels]
    order = np.argsort(-power, kind="stable")
    falling, whole = np.sqrt(power[order]), float(sums.signal[channels].sum())
    for at in range(1, len(order)):
        lower = order[at:]
        apart = falling[at - 1] >= _APART * falling[at]
        hidden = float(sums.signal[channels[lower]].sum()) < _HIDDEN * whole
        if apart and hidden and len(lower) >= _FEW * len(channels):
            upper, below = np.sort(channels[order[:at]]), np.sort(channels[lower])
            return [upper, *_by_scale(sums, below)]
    return [channels]


def _mean_power(sums: Totals, channels: np.ndarray) -> float:
    return float(sums.signal[channels].sum() / max(sums.count[channels].sum(), 1.0))


def _contrast(sums: Totals, units: Sequence[np.ndarray]) -> float:
    powers = [_mean_power(sums, unit) for unit in units]
    return max(powers) / max(min(powers), 1e-300)


def _coding_gain(signal: np.ndarray) -> float:
    loud = signal[signal > 0]
    return float(np.log(loud.mean()) - np.log(loud).mean()) if len(loud) else 0.0
