"""Round to nearest: codes and scales of a weight [K, N] without data.

    codes = encode(w / s)

It works in pieces, so a weight of any size and dtype needs only a few MiB of float32: `w` may be a
memory-mapped FP16 or BF16 tensor (or a transposed view of one), and `out` another file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optkit.craft.quantization.numerics import format_codes, scales, tiles
from optkit.craft.quantization.numerics.scales import Scale, Search
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import NumberFormat


class WeightCodes(NamedTuple):
    """A weight as codes [K, N], dtype `storage(fmt)`. `error`: tr(D^T H D) with D = w - dequantized
    and the second moments H of its input, if they were used."""

    codes: np.ndarray
    scale: Scale
    fmt: NumberFormat
    error: float | None = None

    def dequantize(self) -> np.ndarray:
        """float32 [K, N]."""
        return scales.dequantize(self.codes, self.scale, channels(self.fmt), self.fmt)


def channels(fmt: NumberFormat) -> int | None:
    """The axis of weights [K, N] with one scale per index: the output channels, or none."""
    return None if fmt.granularity == "tensor" else 1


def round_to_nearest(
    w: np.ndarray,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    *,
    scale: Scale | None = None,
    search: Search = "absmax",
    importance: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> WeightCodes:
    """Quantize w [K, N] of any float dtype.

    scale: given scales; without them `scales.weight_scale` computes them with `search` and
    `importance`. out: array for the codes, [K, N] of `storage(fmt)`.

    Raises InputRefused if a weight is not finite.
    """
    codes = np.empty(w.shape, format_codes.storage(fmt)) if out is None else out
    blocked = fmt.granularity == "block"
    searched = scale is None and fmt.granularity != "tensor"
    if searched:  # computed together with the codes, so that w is read once
        scale = _blank(w, fmt)
    elif scale is None:
        scale = scales.weight_scale(w, None, fmt, carrier, search=search, importance=importance)
    clamped, shifted = scale.clamped, searched or bool(scale.zero_point.any())
    span = tiles.span(fmt.block_size if blocked else None, w.shape[0])
    for tile in tiles.tiles(w, 1 if fmt.granularity == "tensor" else span):
        x = tile.read(w)
        place = (tile.groups, tile.columns) if blocked else (tile.columns,)
        if searched:
            part = None if importance is None else importance[(tile.rows,) * importance.ndim]
            tile_scale = _of_tile(w, x, fmt, carrier, search, part, scale.outer)
            scale.scale[place], scale.zero_point[place] = tile_scale.scale, tile_scale.zero_point
            clamped += tile_scale.clamped
        s, z = (_along(p, place, x) for p in (scale.scale, scale.zero_point))
        np.divide(x, s, out=x)
        numbers = format_codes.encode(x, fmt, z if shifted and z.any() else 0.0)
        codes[tile.rows, tile.columns] = numbers.reshape(-1, x.shape[2])
    return WeightCodes(codes, scale._replace(clamped=clamped), fmt)


def _of_tile(
    w: np.ndarray,
    x: np.ndarray,  # [groups, depth, columns]
    fmt: NumberFormat,
    carrier: np.dtype | type,
    search: Search,
    importance: np.ndarray | None,
    outer: np.ndarray | None,
) -> Scale:
    try:
        return scales.weight_scale(
            x.reshape(-1, x.shape[2]),
            1,
            fmt,
            carrier,
            search=search,
            importance=importance,
            outer=outer,
        )
    except InputRefused:
        raise scales.not_finite(w) from None


def _blank(w: np.ndarray, fmt: NumberFormat) -> Scale:
    """Scales that are filled in tile by tile."""
    k, n = w.shape
    outer = None
    if fmt.has_two_levels:
        outer = scales.outer_scale(_largest(w), scales.OF_LARGEST_WEIGHT)
    shape = (-(-k // tiles.span(fmt.block_size, k)), n) if fmt.granularity == "block" else (n,)
    return Scale(np.ones(shape, np.float32), np.zeros(shape, format_codes.storage(fmt)), 0, outer)


def _along(parameter: np.ndarray, place: tuple[slice, ...], x: np.ndarray) -> np.ndarray:
    """The part of a scale [groups, 1, columns] as float32."""
    part = parameter if parameter.ndim == 0 else parameter[place]
    numbers: np.ndarray = part.astype(np.float32)
    return numbers if numbers.ndim == 0 else numbers.reshape(-1, 1, x.shape[2])


def _largest(w: np.ndarray) -> float:
    extremes = [np.abs(tile.read(w)).max() for tile in tiles.tiles(w, 1)]
    largest = float(max(extremes, default=0.0))
    if not np.isfinite(largest):
        raise scales.not_finite(w)
    return largest
