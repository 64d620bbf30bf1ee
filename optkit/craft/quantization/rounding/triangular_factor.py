"""The lower triangular factor M of GPTQ, H + λ1 = Mᵀ M, of the rows X [n, K] of an input.

`Dense` factorizes H = Xᵀ X / n [K, K]. `FewRows` never forms it: for n < K it keeps

    B_i = (1 + Σ_{l>i} x_l x_lᵀ / λ)⁻¹        [n, n], x_l: column l of X / √n
    M_ij / M_ii = x_iᵀ B_i x_j / (λ + x_iᵀ B_i x_i),   M_ii² = λ + x_iᵀ B_i x_i

which is the Schur complement of H + λ1 by the identity of Woodbury (1950). That takes O(n² K) in
place of O(K³), and n · K numbers in place of K².
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optkit.craft.quantization.rounding.quantease import ROWS
from optkit.facts.errors import InputRefused

_TRIES = 5
_LEAST = 1e-4  # share of the mean H_ii, used when damping is needed
_PANEL = 256  # rows that are factorized at once


class TriangularFactor(Protocol):
    """M, in blocks of ROWS rows, in the order of their solution."""

    @property
    def order(self) -> np.ndarray:
        """[K], by falling H_ii."""

    @property
    def pivots(self) -> np.ndarray:
        """M_ii², float64 [K], in this order."""

    @property
    def added(self) -> float:
        """λ, which was added to every H_ii."""

    def within(self, rows: slice) -> np.ndarray:
        """M_ij / M_ii of a block: float32 [rows, rows], lower triangular."""

    def before(self, rows: slice, difference: np.ndarray) -> np.ndarray:
        """Σ_j (M_ij / M_ii) D_j over the rows j before a block, float32 [rows, N]; `difference`: D
        [K, N], of which these rows are final. Blocks are asked for in turn, each once."""


@dataclass(frozen=True)
class Dense:
    """`ratios`: M_ij / M_ii, float32 [K, K]."""

    order: np.ndarray
    pivots: np.ndarray
    added: float
    ratios: np.ndarray

    @classmethod
    def of(cls, moments: np.ndarray, damping: float) -> Dense:
        """Of H [K, K], factorized in its dtype. Damping grows tenfold while it is not positive
        definite."""
        k = len(moments)
        order, typical = _by_size(moments.diagonal())
        added = typical * damping
        for _ in range(_TRIES):
            try:
                m = _lower(moments, order, added)
            except np.linalg.LinAlgError:
                added = max(added * 10, typical * _LEAST)
                continue
            diagonal = m.diagonal().astype(np.float64)
            ratios = np.empty((k, k), np.float32)
            np.divide(m, diagonal[:, None], out=ratios, casting="same_kind")
            return cls(order, diagonal**2, added, ratios)
        raise InputRefused("the second moments of its input are not positive semidefinite")

    def within(self, rows: slice) -> np.ndarray:
        return self.ratios[rows, rows]

    def before(self, rows: slice, difference: np.ndarray) -> np.ndarray:
        return np.asarray(self.ratios[rows, : rows.start] @ difference[: rows.start])


@dataclass
class FewRows:
    """`x`: X / √n, float32 [n, K], in order; `back`: what multiplies Σ_j x_j D_j, float32 [K, n];
    `blocks`: the ratios of each block. `_told` is that sum, [n, N], over the blocks so far."""

    order: np.ndarray
    pivots: np.ndarray
    added: float
    x: np.ndarray
    back: np.ndarray
    blocks: list[np.ndarray]
    _told: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, rows: np.ndarray, damping: float) -> FewRows:
        """Of X [n, K]; `damping` > 0."""
        n, k = rows.shape
        x = rows.astype(np.float32) / np.float32(np.sqrt(n))
        order, typical = _by_size(np.einsum("nk,nk->k", x, x, dtype=np.float64))
        added, x = typical * damping, np.ascontiguousarray(x[:, order])
        back, pivots = np.empty((k, n), np.float32), np.empty(k)
        blocks: list[np.ndarray] = []
        b = np.eye(n, dtype=np.float32)
        for start in reversed(range(0, k, ROWS)):
            block = slice(start, min(start + ROWS, k))
            through = x[:, block].T @ b
            inner = through @ x[:, block]
            inner[np.diag_indices(len(inner))] += np.float32(added)
            m = np.linalg.cholesky(inner[::-1, ::-1]).T[::-1, ::-1]
            turned = np.linalg.inv(m.T) @ through
            b -= turned.T @ turned
            diagonal = m.diagonal()[:, None]
            back[block], pivots[block] = turned / diagonal, np.square(m.diagonal(), dtype=float)
            blocks.append(np.ascontiguousarray(np.tril(m / diagonal)))
        return cls(order, pivots, added, x, back, blocks[::-1])

    def within(self, rows: slice) -> np.ndarray:
        return np.asarray(self.blocks[rows.start // ROWS])

    def before(self, rows: slice, difference: np.ndarray) -> np.ndarray:
        if self._told is None:
            self._told = np.zeros((len(self.x), difference.shape[1]), np.float32)
        if rows.start:
            done = slice(rows.start - ROWS, rows.start)
            self._told += self.x[:, done] @ difference[done]
        return np.asarray(self.back[rows] @ self._told)


def _by_size(diagonal: np.ndarray) -> tuple[np.ndarray, float]:
    """The rows by falling H_ii, and the mean H_ii."""
    sizes = diagonal.astype(np.float64)
    return np.argsort(-sizes, kind="stable"), float(sizes.mean()) or 1.0


def _lower(moments: np.ndarray, order: np.ndarray, added: float) -> np.ndarray:
    """M, lower triangular, with M^T M = H + added * 1 in the given order. From the last rows to the
    first, in place: LAPACK through numpy would hold three matrices of this size."""
    k = len(order)
    m = np.empty((k, k), moments.dtype)
    for start in range(0, k, _PANEL):
        rows = slice(start, start + _PANEL)
        m[rows] = moments[order[rows]][:, order]
    m[np.diag_indices(k)] += moments.dtype.type(added)
    for stop in range(k, 0, -_PANEL):
        panel = slice(max(stop - _PANEL, 0), stop)
        m[panel, :stop] -= m[stop:, panel].T @ m[stop:, :stop]
        turned = np.linalg.cholesky(m[panel, panel][::-1, ::-1])
        m[panel, panel] = turned.T[::-1, ::-1]
        # numpy has no solver for triangular matrices: a product with the small inverse is faster
        # than its general solver
        m[panel, : panel.start] = np.linalg.inv(m[panel, panel].T) @ m[panel, : panel.start]
        m[panel, stop:] = 0
    return m
