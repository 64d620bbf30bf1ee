"""Efficiencies by least squares on the logarithm of prediction / measurement, under priors.

    minimise  Σ (ln(predicted / measured) / NOISE)² + Σ ((x − prior) / spread)²

x is the logarithm of each number (of `overlap` the number itself). The priors are set from what the
rows do not say: vendor guides, microbenchmarks, the arithmetic of one kernel. They are few and
strong enough that a GPU can be left out without a number losing its footing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt

import numpy as np
import rows as r
from scipy.optimize import least_squares

from optkit.craft.prediction.work_time import Efficiencies

NOISE = 0.15  # relative; what such measurements scatter by from one submitter to the next


@dataclass(frozen=True)
class Prior:
    """`spread`: one standard deviation, relative (of `overlap`: absolute)."""

    value: float
    spread: float
    source: str


PRIORS: dict[str, Prior] = {
    "gemm": Prior(0.75, 0.15, "large products reach 70 to 80 % of what power allows, unverified"),
    "conv": Prior(0.60, 0.30, "less than products: small channels and borders, unverified"),
    "attention": Prior(0.40, 0.30, "below FlashAttention-2 at head size 128 (arXiv 2307.08691)"),
    "memory": Prior(0.85, 0.10, "STREAM-like kernels reach 85 to 93 % of the peak, unverified"),
    "overlap": Prior(0.50, 0.30, "the middle of a roofline's two bounds"),
    "kernel_cycles": Prior(9000, 0.40, "4 to 5 µs at 2 GHz for launch, ramp and drain, unverified"),
    "unpack_cycles": Prior(1.5, 0.50, "shift, mask and multiply per weight: instructions"),
    "sequence_us": Prior(10.0, 0.70, "sampling and scheduling per sequence, unverified"),
}  # fmt: skip


def fit(rows: Sequence[r.Row]) -> Efficiencies:
    """The numbers that explain `rows` best under the priors."""
    found = least_squares(lambda x: _residuals(x, rows), _start(), x_scale=0.1, diff_step=1e-4)
    return _numbers(found.x)


def spreads(rows: Sequence[r.Row], eff: Efficiencies) -> dict[str, float]:
    """One standard deviation of each number by the curvature at the minimum."""
    found = least_squares(lambda x: _residuals(x, rows), _point(eff), x_scale=0.1, diff_step=1e-4)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    return {name: float(sqrt(covariance[i, i])) for i, name in enumerate(PRIORS)}


def error(row: r.Row, eff: Efficiencies) -> float:
    """ln(predicted / measured), of a speed."""
    ratio = log(r.predicted(row, eff) / row.value)
    return ratio if row.faster_is_more else -ratio


def _residuals(x: np.ndarray, rows: Sequence[r.Row]) -> np.ndarray:
    eff = _numbers(x)
    data = [error(row, eff) / NOISE for row in rows]
    held = [
        (a - b) / prior.spread for a, b, prior in zip(x, _start(), PRIORS.values(), strict=True)
    ]
    return np.asarray([*data, *held])


def _start() -> np.ndarray:
    return np.asarray([p.value if n == "overlap" else log(p.value) for n, p in PRIORS.items()])


def _point(eff: Efficiencies) -> np.ndarray:
    values = [getattr(eff, name) for name in PRIORS]
    return np.asarray(
        [v if n == "overlap" else log(v) for n, v in zip(PRIORS, values, strict=True)]
    )


def _numbers(x: np.ndarray) -> Efficiencies:
    values = {n: float(v) if n == "overlap" else exp(v) for n, v in zip(PRIORS, x, strict=True)}
    values["overlap"] = min(max(values["overlap"], 0.0), 1.0)
    return Efficiencies(**values)


def left_out(
    rows: Sequence[r.Row], by: Callable[[r.Row], str] = lambda row: row.gpu
) -> dict[int, float]:
    """Row number → error of the model that saw no row of its group, by default of its GPU."""
    errors = {}
    for group in sorted({by(row) for row in rows}):
        eff = fit([row for row in rows if by(row) != group])
        errors |= {row.number: error(row, eff) for row in rows if by(row) == group}
    return errors


SHRINK = 4.0  # rows that the spread over all categories counts as, beside a category's own
QUANTILE = 1.645  # of the normal distribution: nine of ten, so that small samples keep eight


def widths(rows: Sequence[r.Row], errors: dict[int, float]) -> dict[str, float]:
    """Category → factor k of the interval [t / k, k · t], from errors of rows left out. `all` is
    that of a category without rows."""
    overall = sum(errors[row.number] ** 2 for row in rows) / len(rows)
    found = {"all": exp(QUANTILE * sqrt(overall))}
    for category in sorted({row.category for row in rows}):
        own = [errors[row.number] ** 2 for row in rows if row.category == category]
        variance = (SHRINK * overall + sum(own)) / (SHRINK + len(own))
        found[category] = exp(QUANTILE * sqrt(variance))
    return found


def unseen(rows: Sequence[r.Row]) -> float:
    """The factor for what no measurement covers: the widest of the categories, each predicted by a
    model that saw no row of that category."""
    errors = left_out(rows, lambda row: row.category)
    spread = {}
    for category in {row.category for row in rows}:
        own = [errors[row.number] ** 2 for row in rows if row.category == category]
        spread[category] = sqrt(sum(own) / len(own))
    return exp(QUANTILE * max(spread.values()))


def ratio(rows: Sequence[r.Row], errors: dict[int, float]) -> float:
    """The factor for the ratio of two precisions: pairs of rows of one model, GPU, batch and
    source, from errors of rows left out. As many pairs as `SHRINK` are taken for independent."""
    pairs = [
        errors[one.number] - errors[other.number]
        for one, other in combinations(rows, 2)
        if one.precision != other.precision and _setting(one) == _setting(other)
    ]
    alone = 2 * sum(errors[row.number] ** 2 for row in rows) / len(rows)
    variance = (SHRINK * alone + sum(pair**2 for pair in pairs)) / (SHRINK + len(pairs))
    return exp(QUANTILE * sqrt(variance))


def _setting(row: r.Row) -> tuple[object, ...]:
    return row.model, row.gpu, row.batch, row.metric, row.source
