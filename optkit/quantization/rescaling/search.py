"""The search that SmoothQuant, equalization and AWQ share: the factors with the least error win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log10
from typing import NamedTuple

import numpy as np

Candidate = tuple[float | None, np.ndarray | None]
"""The exponent alpha that gave the factors [K] (None: they come from elsewhere), the factors."""


class Choice(NamedTuple):
    """The factors s [K] to divide by, or None to leave the activation; `alpha` None likewise.

    `sqnr_db`: of the outputs with the choice. `gain_db`: over leaving the activation as it is.
    """

    alpha: float | None
    factors: np.ndarray | None
    sqnr_db: float
    gain_db: float


def search(
    candidates: Sequence[Candidate],
    error: Callable[[np.ndarray | None], float],
    *,
    leave: bool = True,
) -> Choice:
    """The candidate with the least error; `leave`: leaving the activation is one of them.

    `error`: noise power of the outputs over their signal's, of factors; None: without any.
    """
    candidates = [(None, None), *candidates]
    errors = [error(factors) for _, factors in candidates]
    first = 0 if leave else 1
    best = first + int(np.argmin(errors[first:]))
    return Choice(*candidates[best], _db(1.0, errors[best]), _db(errors[0], errors[best]))


def _db(a: float, b: float) -> float:
    """a / b in dB; infinite where nothing is lost."""
    return 10.0 * log10(a / b) if a and b else (inf if a else 0.0)
