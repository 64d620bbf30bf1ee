"""How many tokens the prompts or the answers of requests have: one number, a range, or a lognormal
distribution.

    512         every one
    128..1024   each number of the range equally often
    300~1200    lognormal: half of them up to 300, 95 % up to 1200; the longest of a thousand is cut
                to the 99.9th percentile, as a server cuts what its cache does not hold
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, exp, log
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from optkit.facts.errors import UsageError

_Z95 = 1.6448536269514722  # quantile of the normal distribution
_LONGEST = 0.999  # of a lognormal distribution, the share of the requests that is not cut
_MOST = 10_000_000
_FORM = re.compile(r"(\d+)(?:(\.\.|~)(\d+))?")


@dataclass(frozen=True)
class TokenLengths:
    """`low` and `high`: the ends of a range; of a lognormal distribution the median and the 95th
    percentile."""

    shape: Literal["one", "range", "lognormal"]
    low: int
    high: int

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Raises UsageError for a text of another form, or that ends below its start."""
        found = _FORM.fullmatch(text.replace(" ", "").replace(",", ""))
        if found is None:
            raise _malformed(text, where)
        low, high = int(found[1]), int(found[3] or found[1])
        if not 1 <= low <= high <= _MOST:
            raise _malformed(text, where)
        return cls(
            "one" if low == high else "range" if found[2] == ".." else "lognormal", low, high
        )

    @property
    def mean(self) -> float:
        if self.shape != "lognormal":
            return (self.low + self.high) / 2
        from scipy.special import ndtr, ndtri

        below = self.low * exp(self._sigma**2 / 2) * ndtr(ndtri(_LONGEST) - self._sigma)
        return float(below) + (1 - _LONGEST) * self.percentile(_LONGEST)

    @property
    def longest(self) -> int:
        """Tokens that no request exceeds."""
        return ceil(self.percentile(_LONGEST)) if self.shape == "lognormal" else self.high

    def percentile(self, share: float) -> float:
        """The number of tokens that this share of the requests does not exceed."""
        if self.shape == "lognormal":
            from scipy.special import ndtri

            return self.low * exp(self._sigma * float(ndtri(share)))
        return self.low + share * (self.high - self.low)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """So many numbers of tokens, each at least 1."""
        if self.shape == "lognormal":
            drawn = rng.lognormal(log(self.low), self._sigma, count)
            return np.clip(np.rint(drawn), 1, self.longest).astype(np.int64)
        return rng.integers(self.low, self.high, count, endpoint=True)

    @property
    def _sigma(self) -> float:
        return log(self.high / self.low) / _Z95

    def __str__(self) -> str:
        if self.shape == "one":
            return f"{self.low:,}"
        if self.shape == "range":
            return f"{self.low:,} to {self.high:,}"
        return f"lognormal, median {self.low:,}, p95 {self.high:,}"


def _malformed(text: str, where: str) -> UsageError:
    return UsageError(
        f"{text!r} is no number of tokens",
        where=where,
        hint="write 512, or a range 128..1024, or median and 95th percentile 300~1200",
    )
