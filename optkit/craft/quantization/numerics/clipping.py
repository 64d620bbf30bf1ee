"""Scales with the least squared error: a range is narrowed (or widened) if that reduces the
rounding error.

    min over r of  sum_k h_k (w_k - s v_k)^2,   s = r s_0,  v = nearest(w / s)

r is from a grid (Nagel et al. 2021, arXiv:2106.08295, section 3.1; clipping as in Lin et al. 2023,
arXiv:2306.00978). Then the least-squares scale of these codes, s = <w, v> / <v, v>, is used if its
error is smaller. Clipping reduces the error of integers. Float codes have uneven steps, so their
grid also has ratios above 1 (for E2M1 up to blocks that are scaled to 4 instead of 6: Cook et al.
2025, arXiv:2512.02010). h: second moments of the input, all 1 without data. The computation runs
tile by tile, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from optkit.craft.quantization.numerics import format_codes, tiles
from optkit.facts.precisions import NumberFormat

# converts ideal scales to scales that the graph can represent
Carry = Callable[[np.ndarray], np.ndarray]
RATIOS = MappingProxyType(
    {
        "int4": np.linspace(0.6, 1.05, 10),
        "uint4": np.linspace(0.6, 1.05, 10),
        "int2": np.linspace(0.3, 1.05, 16),
        "int8": np.linspace(0.7, 1.0, 16),
        "uint8": np.linspace(0.7, 1.0, 16),
        "float8e4m3fn": np.linspace(0.95, 1.9, 20),
        "float4e2m1": np.linspace(0.85, 1.6, 16),
        "nf4": np.linspace(0.85, 1.35, 11),
    }
)

_LARGEST_DECIDES = 4  # bits: of fewer, either sign of a signed scale may have the least error


def least_error(
    w: np.ndarray,
    ideal: np.ndarray,
    zero_point: np.ndarray | float,
    fmt: NumberFormat,
    carry: Carry,
    importance: np.ndarray | None = None,
    floor: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Scales near `ideal` with the least error, float64, in the shape of `ideal`.

    w: [K, N]. ideal: [ceil(K / block), N] for blocks, [N] for channels, [] for a tensor.
    zero_point: the same shape, or 0. importance: second moments of the inputs, [K], or [K, K], of
    which blocks use their diagonal square and wider ranges only the diagonal. floor: the least
    magnitude of a scale, one or [N].
    """
    best = np.array(ideal, np.float64)
    if best.ndim == 0:
        return _of_tensor(
            w, best, zero_point, fmt, lambda s: carry(floored(s, floor)), _diagonal(importance)
        )
    blocks = best.ndim == 2
    zeros = _offset(zero_point, best.shape)
    for tile in tiles.tiles(w, tiles.span(fmt.block_size if blocks else None, w.shape[0])):
        part = (tile.groups, tile.columns) if blocks else (tile.columns,)
        z = 0.0 if zeros is None else zeros[part].reshape(-1, 1, best[part].shape[-1])
        least = np.asarray(floor)[tile.columns] if np.ndim(floor) else floor
        weights = _weights(importance, tile, blocks)

        def hold(scales: np.ndarray, least: np.ndarray | float = least) -> np.ndarray:
            return carry(floored(scales, least))

        chosen = _of_tile(tile.read(w), np.atleast_2d(best[part]), z, fmt, hold, weights)
        best[part] = chosen.reshape(best[part].shape)
    return best


def floored(scales: np.ndarray, floor: np.ndarray | float) -> np.ndarray:
    """Scales with at least this magnitude and their sign; 0 counts as positive."""
    size = np.maximum(np.abs(scales), floor)
    return np.asarray(np.where(scales < 0, -size, size))


def _of_tile(
    x: np.ndarray,  # [B, depth, n]
    ideal: np.ndarray,  # [B, n]
    z: np.ndarray | float,
    fmt: NumberFormat,
    carry: Carry,
    weights: np.ndarray | None,
) -> np.ndarray:
    best = ideal.copy()
    least = _error(x, carry(best), z, fmt, weights)[0]

    def consider(candidate: np.ndarray) -> None:
        error, _ = _error(x, carry(candidate), z, fmt, weights)
        better = error < least
        best[better], least[better] = candidate[better], error[better]

    for ratio in RATIOS[fmt.dtype]:
        consider(ideal * ratio)
        if fmt.signed_scale and fmt.bits < _LARGEST_DECIDES:
            consider(ideal * -ratio)
    _, v = _error(x, carry(best), z, fmt, weights)
    over, under = _products(x, v, weights), _products(v, v, weights)
    consider(np.divide(over, under, out=best.copy(), where=(over * best > 0) & (under > 0)))
    return best


def _of_tensor(
    w: np.ndarray,
    ideal: np.ndarray,
    zero_point: np.ndarray | float,
    fmt: NumberFormat,
    carry: Carry,
    importance: np.ndarray | None,
) -> np.ndarray:
    candidates = [ideal, *(ideal * ratio for ratio in RATIOS[fmt.dtype])]
    errors = np.zeros(len(candidates))
    zeros = _offset(zero_point, ())
    for tile in tiles.tiles(w, 1):
        x, weights = tile.read(w), _weights(importance, tile, blocks=True)
        for index, candidate in enumerate(candidates):
            scale = np.broadcast_to(carry(candidate), x.shape[::2])
            error, _ = _error(x, scale, 0.0 if zeros is None else zeros, fmt, weights)
            errors[index] += error.sum(dtype=np.float64)
    return np.asarray(candidates[int(errors.argmin())])


def _error(
    x: np.ndarray,
    scale: np.ndarray,
    z: np.ndarray | float,
    fmt: NumberFormat,
    weights: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Squared error [B, n] under scales [B, n], and the rounded numbers in units of these
    scales."""
    s = scale.astype(np.float32)[:, None]
    lost = x / s
    v = format_codes.nearest(lost, fmt, z)
    lost -= v
    return _products(lost, lost, weights) * np.square(s[:, 0], dtype=np.float64), v


def _products(a: np.ndarray, b: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """<a, b> along the middle axis, [B, n]; weights [B, depth] or [B, depth, depth]."""
    if weights is not None:
        a = np.matmul(weights, a) if weights.ndim == 3 else a * weights[:, :, None]
    sums: np.ndarray = np.einsum("bkn,bkn->bn", a, b)
    return sums


def _weights(importance: np.ndarray | None, tile: tiles.Tile, blocks: bool) -> np.ndarray | None:
    if importance is None:
        return None
    if importance.ndim == 1 or not blocks:
        diagonal = _diagonal(importance)
        assert diagonal is not None
        return diagonal[tile.rows].astype(np.float32).reshape(-1, tile.depth)
    starts = range(tile.rows.start, tile.rows.stop, tile.depth)
    squares = [importance[k : k + tile.depth, k : k + tile.depth] for k in starts]
    return np.stack(squares).astype(np.float32)


def _diagonal(importance: np.ndarray | None) -> np.ndarray | None:
    return importance.diagonal() if importance is not None and importance.ndim == 2 else importance


def _offset(zero_point: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray | None:
    zeros = np.asarray(zero_point, np.float32)
    return np.broadcast_to(zeros, shape) if zeros.any() else None
