"""Which drafted tokens are kept, so that the text is what the target alone would write.

Greedy: the drafted tokens that agree with the most likely ones, and then the target's own token.

Sampled: speculative sampling (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al.
2023, arXiv:2302.01318). With the probabilities p of the target and q of the draft, a drafted token
x is kept with probability min(1, p(x) / q(x)). In place of the first one that is not kept, a token
is drawn from max(0, p − q), scaled to a sum of 1. So each token has the probability p.

The tokens of a lookup have q(x) = 1: x is kept with probability p(x), and otherwise another token y
is drawn with p(y) / (1 − p(x)). This is to draw y from p, and to keep x if y = x. So the draws are
those of plain sampling, and with the same seed the text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from optkit.satellites.generation.sampling import Sampling, drawn, greedy, probabilities


@dataclass(frozen=True)
class DraftTokens:
    """Tokens that may come next. `shares`: the probabilities from which each one was drawn, float64
    [tokens, vocabulary of the target]; None: they were not drawn."""

    tokens: Sequence[int] = ()
    shares: np.ndarray | None = None


Accept = Callable[[np.ndarray, DraftTokens], list[int]]
"""Logits of the target, [drafted + 1, vocabulary], and the draft that it read → the next tokens:
those that are kept, and one of the target's own."""


def accept_greedy(logits: np.ndarray, draft: DraftTokens) -> list[int]:
    chosen: list[int] = greedy(logits).tolist()
    return chosen[: agreement(chosen, draft.tokens) + 1]


def agreement(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The number of tokens after which the two differ, or one of them ends."""
    length = 0
    for token, other in zip(tokens, others, strict=False):
        if token != other:
            break
        length += 1
    return length


class SampledAcceptance:
    """Speculative sampling for the text of one row. Without a draft it draws what `Draw` draws."""

    def __init__(self, sampling: Sampling, row: int) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng([sampling.seed, row])

    def __call__(self, logits: np.ndarray, draft: DraftTokens) -> list[int]:
        tokens: list[int] = []
        for at, drafted in enumerate(draft.tokens):
            shares = self._shares(logits, at)
            if draft.shares is None:
                tokens.append(drawn(shares, self._random.random()))
            else:
                tokens.append(self._kept_or_drawn(shares, drafted, draft.shares[at]))
            if tokens[-1] != drafted:
                return tokens
        return [*tokens, drawn(self._shares(logits, -1), self._random.random())]

    def _shares(self, logits: np.ndarray, at: int) -> np.ndarray:
        shares: np.ndarray = probabilities(logits[at][None], self._sampling)[0]
        return shares

    def _kept_or_drawn(self, shares: np.ndarray, drafted: int, others: np.ndarray) -> int:
        """`shares`: p, `others`: q."""
        if self._random.random() * others[drafted] < shares[drafted]:
            return drafted
        rest = np.maximum(shares - others, 0.0)
        # 0 only where p and q differ by rounding alone
        return drawn(rest if rest.any() else shares, self._random.random())
