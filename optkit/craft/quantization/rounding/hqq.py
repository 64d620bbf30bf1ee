"""HQQ: scales and zero points of blocks, fitted to the weights alone with little influence of
outliers.

Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models". It minimizes
|w - s (q - z)|_p^p, p < 1, by alternating

    e = shrink(w - s (q - z)),     shrink(x) = sign(x) max(|x| - |x|^(p-1) / beta, 0)
    z = mean(q - (w - e) / s)                   asymmetric codes
    s = <v, w - e> / <v, v>                     then scales, of all codes; v = nearest(w / s)

with growing beta. Weights are divided by their first scale, so the result does not depend on their
unit (the original does). Each block keeps the best of all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from optkit.craft.quantization.numerics import format_codes, scales, tiles
from optkit.craft.quantization.rounding.rtn import WeightCodes, channels, round_to_nearest
from optkit.facts.precisions import NumberFormat

_POWER = 0.7  # p
_TURNS = 20
_BETA = 10.0
_GROWTH = 1.01
_TINY = 1e-12
_Hold = Callable[[np.ndarray], np.ndarray]  # numbers to those the graph can hold


def hqq(w: np.ndarray, fmt: NumberFormat, carrier: np.dtype | type) -> WeightCodes:
    """Quantize w [K, N] per block or per channel; a single scale per tensor does not change.
    Asymmetric integers get zero points. Raises InputRefused if a weight is not finite."""
    scale = scales.weight_scale(w, channels(fmt), fmt, carrier)
    if fmt.granularity == "tensor":
        return round_to_nearest(w, fmt, carrier, scale=scale)
    fits_zero = fmt.is_integer and not fmt.symmetric
    step, zero = scale.scale.copy(), scale.zero_point.astype(np.float32)
    blocked = fmt.granularity == "block"
    for tile in tiles.tiles(w, tiles.span(fmt.block_size if blocked else None, w.shape[0])):
        place = (tile.groups, tile.columns) if blocked else (tile.columns,)
        first = np.atleast_2d(step[place])
        u = tile.read(w)
        u /= first[:, None]
        turns = _Turns(fmt)
        z = np.atleast_2d(zero[place])
        if fits_zero:
            z = turns.zero_points(u, z)
            zero[place] = z.reshape(zero[place].shape)
        new_step = turns.scales(u, first, z, lambda s: scales.carried(s, carrier, scale.outer)[0])
        step[place] = new_step.reshape(step[place].shape)
    codes = zero.astype(np.int16).astype(format_codes.storage(fmt))
    return round_to_nearest(w, fmt, carrier, scale=scale._replace(scale=step, zero_point=codes))


@dataclass(frozen=True)
class _Turns:
    """The alternation on numbers u [B, depth, n] in units of their first scale."""

    fmt: NumberFormat

    def zero_points(self, u: np.ndarray, z: np.ndarray) -> np.ndarray:
        """[B, n]; the best integers of all turns."""
        best = self._whole(z)
        least = self._objective(u - self._nearest(u, best))
        for beta in self._betas():
            v = self._nearest(u, z)
            shrunk = self._shrink(u - v, beta)
            z = (v + z[:, None] - (u - shrunk)).mean(axis=1)
            candidate = self._whole(z)
            error = self._objective(u - self._nearest(u, candidate))
            better = error < least
            best[better], least[better] = candidate[better], error[better]
        return best

    def scales(self, u: np.ndarray, first: np.ndarray, z: np.ndarray, held: _Hold) -> np.ndarray:
        """[B, n], in the weights' unit; of those tried, as `held`, the best."""
        best, ratio = first.copy(), np.ones_like(first)
        least = self._objective(u - self._nearest(u, z))
        for beta in self._betas():
            v = self._nearest(u / ratio[:, None], z)
            target = u - self._shrink(u - v * ratio[:, None], beta)
            over, under = (v * target).sum(axis=1), np.square(v).sum(axis=1)
            ratio = np.divide(over, under, out=ratio.copy(), where=(over > 0) & (under > 0))
            candidate = held(first * ratio.astype(np.float64))
            r = (candidate / first)[:, None]
            error = self._objective(u - self._nearest(u / r, z) * r)
            better = error < least
            best[better], least[better] = candidate[better], error[better]
        return best

    def _whole(self, z: np.ndarray) -> np.ndarray:
        whole: np.ndarray = np.clip(np.rint(z), self.fmt.qmin, self.fmt.qmax)
        return whole

    def _betas(self) -> Iterator[float]:
        return (_BETA * _GROWTH**turn for turn in range(_TURNS))

    def _nearest(self, u: np.ndarray, z: np.ndarray) -> np.ndarray:
        return format_codes.nearest(u, self.fmt, z[:, None] if z.any() else 0.0)

    def _objective(self, lost: np.ndarray) -> np.ndarray:
        objective: np.ndarray = (np.abs(lost) ** np.float32(_POWER)).sum(axis=1)
        return objective

    def _shrink(self, lost: np.ndarray, beta: float) -> np.ndarray:
        size = np.maximum(np.abs(lost), np.float32(_TINY))
        threshold = size ** np.float32(_POWER - 1.0) / np.float32(beta)
        shrunk: np.ndarray = np.copysign(np.maximum(size - threshold, np.float32(0)), lost)
        return shrunk
