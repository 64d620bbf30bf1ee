"""Efficiencies by least squares on the logarithm of prediction / measurement, under priors, and
intervals from the errors of what was left out.

    minimise  Σ w · ln(1 + (ln(predicted / measured) / NOISE)²) + Σ ((x − prior) / spread)²

x is the logarithm of each number (of `overlap` the number itself). The logarithm around the error
keeps a few rows that a model cannot explain from moving all numbers. w: the rows of one publication
on one GPU of one category err together, so they count as at most GROUP. The priors are set from
what the rows do not say: vendor guides, microbenchmarks, the arithmetic of one kernel. They are
strong enough that a GPU can be left out without a number losing its footing. Factors of a
generation of devices start at 1 and stay there where the rows say nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from typing import Any

import numpy as np
import rows as r
from scipy.optimize import least_squares

from optkit.craft.prediction.work_time import Efficiencies, generation_keys, ideal

NOISE = 0.15  # relative; what such measurements scatter by from one submitter to the next
GROUP = 4
OWN_SPREAD = 0.3  # of a generation's factor, before any row of it is seen


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


class Fit:
    """Fits to parts of the same rows. `errors` of all rows follow from one vector of numbers, by
    the formula of `work_time.py` over arrays of kernels."""

    def __init__(self, rows: Sequence[r.Row]) -> None:
        self.rows = list(rows)
        kernels: dict[tuple[Any, ...], float] = {}
        for i, row in enumerate(rows):
            for term in r.account_of(row).terms:
                ideals = ideal(term.works, row.target, watts=term.watts)
                for work, one in zip(term.works, ideals, strict=True):
                    key = (i, work.kind, *generation_keys(work, row.target), *one)
                    kernels[key] = kernels.get(key, 0.0) + work.times * term.times
        columns = list(zip(*kernels, strict=True))
        self.row = np.asarray(columns[0])
        kinds = ("elementwise", "gemm", "conv", "attention")
        self.kind = np.asarray([kinds.index(kind) for kind in columns[1]])
        self.own = sorted({key for key in (*columns[2], *columns[3]) if key})
        places = {key: place for place, key in enumerate(self.own)} | {"": len(self.own)}
        self.products, self.launches = (
            np.asarray([places[key] for key in columns[c]]) for c in (2, 3)
        )
        self.ideal = np.asarray(columns[4:])
        self.times = np.asarray(list(kernels.values()))
        self.steps = np.asarray([r.account_of(row).sequence_steps for row in rows])
        self.measured = np.asarray([r.taken(row) for row in rows])
        sizes = Counter(_group(row) for row in rows)
        self.weight = np.asarray([min(1.0, GROUP / sizes[_group(row)]) for row in rows])
        self.start = np.asarray([*(_kept(name, prior.value) for name, prior in PRIORS.items()),
                                 *[0.0] * len(self.own)])  # fmt: skip
        spread = [prior.spread for prior in PRIORS.values()]
        self.spread = np.asarray([*spread, *[OWN_SPREAD] * len(self.own)])

    def errors(self, x: np.ndarray) -> np.ndarray:
        """ln(predicted / measured) of the time that each row took."""
        n = {name: _number(name, x[i]) for i, name in enumerate(PRIORS)}
        own = np.exp([*x[len(PRIORS) :], 0.0])
        compute, memory, cached, unpack, launch, link = self.ideal
        eta = np.asarray([1.0, n["gemm"], n["conv"], n["attention"]])[self.kind]
        compute = compute / np.minimum(1.0, eta * own[self.products])
        memory = memory / n["memory"] + cached
        overlap = np.asarray([n["overlap"], n["overlap"], 1.0, n["overlap"]])[self.kind]
        each = np.maximum(compute, memory) + (1 - overlap) * np.minimum(compute, memory)
        each = each + unpack * n["unpack_cycles"] + link
        each = each + launch * n["kernel_cycles"] * own[self.launches]
        total = np.bincount(self.row, self.times * each, len(self.rows))
        return np.log((total + self.steps * n["sequence_us"] * 1e-6) / self.measured)

    def solve(self, seen: np.ndarray, near: np.ndarray | None = None) -> Any:
        """The numbers that explain the rows that are `seen` best."""

        def residuals(x: np.ndarray) -> np.ndarray:
            z = self.errors(x)[seen] / NOISE
            data = np.sign(z) * np.sqrt(self.weight[seen] * np.log1p(z * z))
            return np.concatenate([data, (x - self.start) / self.spread])

        start = self.start if near is None else near
        return least_squares(
            residuals, start, x_scale=0.1, diff_step=1e-4, xtol=1e-5, ftol=1e-5, max_nfev=40
        )

    def left_out(self, by: Callable[[r.Row], object], near: np.ndarray) -> np.ndarray:
        """The error of each row by the numbers that saw no row of its part."""
        parts = [by(row) for row in self.rows]
        found = np.zeros(len(parts))
        for part in dict.fromkeys(parts):
            inside = np.asarray([one == part for one in parts])
            found[inside] = self.errors(self.solve(~inside, near).x)[inside]
        return found

    def numbers(self, x: np.ndarray) -> Efficiencies:
        fixed = {name: _number(name, x[i]) for i, name in enumerate(PRIORS)}
        own = zip(self.own, np.exp(x[len(PRIORS) :]), strict=True)
        return Efficiencies(**fixed, own={key: float(factor) for key, factor in own})


def _kept(name: str, value: float) -> float:
    return value if name == "overlap" else log(value)


def _number(name: str, x: float) -> float:
    return float(min(max(x, 0.0), 1.0)) if name == "overlap" else exp(x)


def deviations(found: Any) -> list[float]:
    """One standard deviation of each number by the curvature at the minimum."""
    return [float(sqrt(value)) for value in np.diag(np.linalg.inv(found.jac.T @ found.jac))]


NINE = 0.9  # of ten measurements, that an interval is to hold
FEW = 4  # the least groups whose largest error holds four of five further ones


@dataclass(frozen=True)
class Errors:
    """Errors of rows that were left out with all of their GPU, their publication, their generation
    of devices, and their kind of work."""

    rows: Sequence[r.Row]
    gpu: np.ndarray
    publication: np.ndarray
    generation: np.ndarray
    kind: np.ndarray

    def without(self, left: Callable[[r.Row], bool]) -> Errors:
        """Of the rows that are not `left` out."""
        kept = np.asarray([not left(row) for row in self.rows])
        rows = [row for row, keep in zip(self.rows, kept, strict=True) if keep]
        return Errors(rows, self.gpu[kept], self.publication[kept], self.generation[kept],
                      self.kind[kept])  # fmt: skip

    @property
    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """What to expect of a further GPU, and of a further publication. A generation of one GPU
        says nothing of a further GPU of it."""
        found = covered(self.rows, self.rows)
        return np.where(found, self.gpu, self.publication), self.publication

    @property
    def unseen(self) -> tuple[np.ndarray, np.ndarray]:
        """What to expect of a further generation, and of a further kind of work."""
        return self.generation, self.kind


def covered(rows: Sequence[r.Row], by: Sequence[r.Row]) -> list[bool]:
    """Of each row, whether `by` has another GPU of its generation."""
    boards = {(row.gpu, str(row.target.compute_capability)) for row in by}
    of = dict(boards) | {row.gpu: str(row.target.compute_capability) for row in rows}
    gpus = {gpu: any(one != gpu and its == of[gpu] for one, its in boards) for gpu in of}
    return [gpus[row.gpu] for row in rows]


def left_out(fits: Fit, near: np.ndarray) -> Errors:
    return Errors(
        fits.rows,
        fits.left_out(lambda row: row.gpu, near),
        fits.left_out(lambda row: row.publication, near),
        fits.left_out(lambda row: row.target.compute_capability, near),
        fits.left_out(lambda row: row.kind, near),
    )


def widths(errors: Errors) -> dict[str, float]:
    """Category → factor k of the interval [t / k, k · t] of a time, and `ratio` with the category →
    that of a gain between two precisions. `all`, `ratio`: of all categories together; a category of
    few groups has no less than that. `unseen`: of a generation or a kind that no row covers."""
    scarce, found = few(errors), {}
    for name, errs, gone in (("", _times(errors.rows, errors.expected),
                              _times(errors.rows, errors.unseen)),
                             ("ratio ", _pairs(errors.rows, errors.expected),
                              _pairs(errors.rows, errors.unseen))):  # fmt: skip
        every = "all" if not name else "ratio"
        found[every] = _reach(errs)
        for category in sorted({row.category for row, _ in errs}):
            own = _reach([one for one in errs if one[0].category == category])
            wide = name + category in scarce and category != r.KERNEL
            found[name + category] = max(own, found[every]) if wide else own
        found[f"{name}unseen"] = _reach(gone)
    return found


def of_kernels(errors: Errors, left: str) -> float:
    """The factor for kernels of a kind that was left out, from the other kinds' errors."""
    sizes = np.abs(errors.kind)
    return _reach([(row, float(size)) for row, size in zip(errors.rows, sizes, strict=True)
                   if row.category == r.KERNEL and row.kind != left])  # fmt: skip


def few(errors: Errors) -> dict[str, int]:
    """Categories of `widths` that few groups of measurements cover, with how many do."""
    found = {}
    for name, errs in (("", _times(errors.rows, errors.expected)),
                       ("ratio ", _pairs(errors.rows, errors.expected))):  # fmt: skip
        groups = Counter(category for *_, category in {_group(row) for row, _ in errs})
        found |= {name + one: n for one, n in sorted(groups.items()) if n < FEW}
    return found


_Sized = list[tuple[r.Row, float]]


def _times(rows: Sequence[r.Row], errors: tuple[np.ndarray, ...]) -> _Sized:
    """Each row with the largest of its errors; kernels are no whole models."""
    sizes = np.max(np.abs(errors), axis=0)
    return [(row, float(size)) for row, size in zip(rows, sizes, strict=True)
            if row.category != r.KERNEL]  # fmt: skip


def _pairs(rows: Sequence[r.Row], errors: tuple[np.ndarray, ...]) -> _Sized:
    """The same of gains: of one model on one GPU at one batch by one publication."""
    return [
        (rows[i], float(max(abs(each[i] - each[j]) for each in errors))) for i, j in pairs(rows)
    ]


def pairs(rows: Sequence[r.Row]) -> list[tuple[int, int]]:
    """Places of rows that differ in precision alone."""
    settings: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(rows):
        settings.setdefault(_setting(row), []).append(place)
    same = (pair for places in settings.values() for pair in combinations(places, 2))
    return [(i, j) for i, j in same if rows[i].precision != rows[j].precision]


def _reach(errors: _Sized) -> float:
    """The factor that holds nine of ten, each group counting as one: conformal prediction over
    groups that were left out."""
    sizes = Counter(_group(row) for row, _ in errors)
    reached, wanted = 0.0, NINE * len(sizes) - 1e-9
    for row, error in sorted(errors, key=lambda one: one[1]):
        reached += 1 / sizes[_group(row)]
        if reached >= wanted:
            return exp(error)
    raise ValueError("no errors")


def _group(row: r.Row) -> tuple[str, str, str]:
    """Rows that err together."""
    return row.publication, row.gpu, row.kind


def _setting(row: r.Row) -> tuple[object, ...]:
    return row.model.split(" (")[0], row.gpu, row.batch, row.metric, row.publication
