"""The choice of the next token: the most likely one, or a random one.

    logits ─ / temperature ─ the top k ─ the smallest set of probability ≥ p ─ draw

in this order, as in transformers. Top-p is nucleus sampling (Holtzman et al., arXiv:1904.09751).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from optkit.facts.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """The parameters of sampling. `top_k` None and `top_p` 1: all tokens."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for wrong, what, hint in (
            (not 0 < self.temperature < inf, "temperature", "above 0; greedy is without it"),
            (self.top_k is not None and self.top_k < 1, "top_k", "1 or more"),
            (not 0 < self.top_p <= 1, "top_p", "above 0, at most 1"),
        ):
            if wrong:
                raise UsageError(f"{what} is {getattr(self, what)}", where="sampling", hint=hint)


class Sampler:
    """Random choices for the rows of one batch. Each row has separate random numbers, so its text
    does not depend on the other rows."""

    def __init__(self, sampling: Sampling, rows: int) -> None:
        self._sampling = sampling
        self._random = [np.random.default_rng([sampling.seed, row]) for row in range(rows)]

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """int64 [rows] of logits [rows, vocabulary]."""
        shares = probabilities(logits, self._sampling)
        rows = zip(shares, self._random, strict=True)
        return np.array([drawn(row, generator.random()) for row, generator in rows], np.int64)


def drawn(shares: np.ndarray, uniform: float) -> int:
    """The token that a number in [0, 1) draws from shares [vocabulary] of any positive sum, by the
    inverse of the cumulative distribution."""
    cumulated = shares.cumsum()
    return int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))


def greedy(logits: np.ndarray) -> np.ndarray:
    """int64 [rows]: the most likely token of each row; of equal ones the first."""
    tokens: np.ndarray = logits.argmax(axis=1)
    return tokens


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities of the choice: float64 [rows, vocabulary]; the sum of each row is 1."""
    scores = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # all tokens except the most likely ones get probability 0
        scores = (scores - scores.max(axis=1, keepdims=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        least = np.partition(scores, -sampling.top_k, axis=1)[:, -sampling.top_k, None]
        scores = np.where(scores < least, -np.inf, scores)
    shares = _softmax(scores)
    if sampling.top_p < 1:
        order = np.argsort(-shares, axis=1, kind="stable")
        falling = np.take_along_axis(shares, order, axis=1)
        # the tokens before it do not reach `top_p`
        kept = falling.cumsum(axis=1) - falling < sampling.top_p
        np.put_along_axis(shares, order, np.where(kept, falling, 0.0), axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return shares
