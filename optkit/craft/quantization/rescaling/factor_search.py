"""The search of SmoothQuant, equalization and AWQ: it returns the factors with the least error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log10
from typing import NamedTuple

import numpy as np

Candidate = tuple[float | None, np.ndarray | None]
"""A candidate: the exponent alpha of the factors (None if they are not from an exponent), and the
factors [K]."""


class FactorChoice(NamedTuple):
    """The factors s [K] by which the activation is divided, or None if it does not change, with
    their `alpha`.

    `sqnr_db`: SQNR of the outputs with this choice. `gain_db`: its gain over the unchanged
    activation.
    """

    alpha: float | None
    factors: np.ndarray | None
    sqnr_db: float
    gain_db: float


def least_error(
    candidates: Sequence[Candidate],
    error: Callable[[np.ndarray | None], float],
    *,
    leave: bool = True,
) -> FactorChoice:
    """The candidate with the least error. `leave`: the unchanged activation is one of the
    candidates.

    `error`: a function from factors (None: without factors) to the noise of the outputs, as noise
    power over signal power.
    """
    candidates = [(None, None), *candidates]
    errors = [error(factors) for _, factors in candidates]
    first = 0 if leave else 1
    best = first + int(np.argmin(errors[first:]))
    return FactorChoice(*candidates[best], _db(1.0, errors[best]), _db(errors[0], errors[best]))


def _db(a: float, b: float) -> float:
    """a / b in dB; infinite if b is zero."""
    return 10.0 * log10(a / b) if a and b else (inf if a else 0.0)
