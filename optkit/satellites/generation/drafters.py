"""What may come next in a text: from the text so far, or from a smaller model.

Prompt lookup (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding): the last tokens
are searched in the text so far, and what followed them there is drafted. Of several places the last
one is taken, and of several lengths the longest, up to LONGEST. It may go on into what it drafted
itself, as in LZ77, so that a short repetition is drafted at any length.

A draft model reads the same text in a cache of its own, and drafts one token per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Recurrent
from optkit.satellites.generation.acceptance import DraftTokens, agreement
from optkit.satellites.generation.cached_text import CachedText
from optkit.satellites.generation.sampling import Sampling, drawn, greedy, probabilities

LONGEST = 3


class Drafter(Protocol):
    """A source of drafts. `free`: a draft costs nothing worth counting, whether it is verified or
    not."""

    free: bool

    def begin(self, prompt: Sequence[int], row: int, room: int) -> None:
        """A new text, of at most `room` tokens. It replaces the text before."""

    def evidence(self, tokens: Sequence[int]) -> int:
        """How much there is to draft from after these tokens, which continue those of the last
        call: 0 for nothing. Drafts of equal evidence are accepted about equally often."""

    def draft(self, tokens: Sequence[int], count: int) -> DraftTokens:
        """At most `count` tokens, after tokens for which `evidence` was asked last."""


class PromptLookup:
    """Drafts from the text so far. The evidence is the number of tokens that were found."""

    free = True

    def begin(self, prompt: Sequence[int], row: int, room: int) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # tokens → the last place after them
        self._indexed = 1
        self._place = 0
        self._index(prompt)

    def evidence(self, tokens: Sequence[int]) -> int:
        self._index(tokens)
        for length in range(min(LONGEST, len(tokens)), 0, -1):
            place = self._after.get(tuple(tokens[-length:]))
            if place is not None:
                self._place = place
                return length
        return 0

    def draft(self, tokens: Sequence[int], count: int) -> DraftTokens:
        found = list(tokens[self._place : self._place + count])
        period = len(tokens) - self._place
        while len(found) < count:
            found.append(found[-period])
        return DraftTokens(found)

    def _index(self, tokens: Sequence[int]) -> None:
        for place in range(self._indexed, len(tokens)):
            for length in range(1, min(LONGEST, place) + 1):
                self._after[tuple(tokens[place - length : place])] = place
        self._indexed = max(self._indexed, len(tokens))


class DraftModel:
    """Drafts of another decoder, whose tokens have the same ids. It drafts greedily for a greedy
    text, and draws from its own probabilities for a sampled one. `vocabulary`: of the target;
    `context`: the number of positions of the draft model, None: any."""

    free = False

    def __init__(
        self,
        session: Recurrent,
        decoder: Decoder,
        vocabulary: int,
        context: int | None,
        sampling: Sampling | None,
    ) -> None:
        self._session, self._decoder = session, decoder
        self._vocabulary, self._context, self._sampling = vocabulary, context, sampling

    def begin(self, prompt: Sequence[int], row: int, room: int) -> None:
        self._room = room if self._context is None else min(room, self._context)
        self._text = CachedText(self._session, self._decoder, self._room)
        self._read: list[int] = []  # what is in its cache
        self._certain = 0  # the number of these that are the text, and not only drafted
        seed = 0 if self._sampling is None else self._sampling.seed
        self._random = np.random.default_rng([seed, row, 1])  # not those of the acceptance
        if 1 < len(prompt) <= self._room:
            self._logits(prompt[:-1])
            self._certain = len(prompt) - 1

    def evidence(self, tokens: Sequence[int]) -> int:
        return int(len(tokens) < self._room)

    def draft(self, tokens: Sequence[int], count: int) -> DraftTokens:
        known = self._certain + agreement(self._read[self._certain :], tokens[self._certain : -1])
        self._text.cut(known)
        del self._read[known:]
        self._certain = len(tokens)
        new: list[int] = []
        shares: list[np.ndarray] = []
        for _ in range(min(count, self._room - len(tokens))):
            logits = self._logits(tokens[known:] if not new else new[-1:])
            if self._sampling is None:
                new.append(int(greedy(logits)[0]))
            else:
                shares.append(probabilities(logits, self._sampling)[0])
                new.append(drawn(shares[-1], self._random.random()))
        return DraftTokens(new, np.array(shares) if shares else None)

    def _logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Of the token after these: [1, vocabulary of the target]."""
        logits = self._text.read(tokens)[-1:, : self._vocabulary]
        self._read += tokens
        missing = self._vocabulary - logits.shape[1]
        return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
