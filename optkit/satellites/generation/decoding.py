"""The loop: one run over the prompts, then one run for each further token of all rows.

    prompts, padded on the left   [ · · a b c ]  ─ prefill ─▶ cache, logits ─ choose ─▶ d
                                  [ a b c d e ]                  ▲                       │
                                                                 └──────── decode ◀──────┘

The cache stays inside the runtime (`Recurrent.loop`). The attention mask hides the padding, and
positions count only real tokens, so a prompt gives the same tokens in any batch.

If all layers have a sliding window of W tokens, the cache keeps only tokens that are still read:
W - 1 before the next one. They move to the start of the buffer when it is full, once for every
quarter of a window, so that a move costs less than reading the window once. The mask then begins
with the first token in the buffer; positions go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optkit.facts.tensors import Feed
from optkit.ground.decoder import IDS, LOGITS, MASK, POSITIONS, Decoder
from optkit.ground.runtimes import Loop, Recurrent

Choose = Callable[[np.ndarray], np.ndarray]
"""Logits [rows, vocabulary] → token ids [rows]."""

Heard = Callable[[int, int], None]
"""Called for every new token: its row, its id."""

FinishReason = Literal["stop", "length"]

_MOVES = 4  # of the tokens in the buffer per window


@dataclass(frozen=True)
class Ending:
    """When a row is done: after a token of `ends`, or at `limit` new tokens."""

    ends: frozenset[int]
    limit: int
    pad: int  # the input of rows that are done, and of rows before their prompt


@dataclass(frozen=True)
class Pace:
    """The number of tokens of a phase, and its seconds: tokens read in prefill, tokens generated in
    decode."""

    tokens: int
    seconds: float

    def __add__(self, other: Pace) -> Pace:
        return Pace(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(frozen=True)
class DecodedTokens:
    """New tokens by row, without the one that ended it, and the reason why each row ended.
    `window`: the sliding window of all layers, if the cache kept only the tokens in it."""

    tokens: list[list[int]]
    reasons: list[FinishReason]
    prefill: Pace  # this phase includes the choice of each row's first new token
    decode: Pace
    window: int | None = None

    def __add__(self, other: DecodedTokens) -> DecodedTokens:
        """These texts and those of another decoding, which ran after it."""
        return DecodedTokens(
            self.tokens + other.tokens,
            self.reasons + other.reasons,
            self.prefill + other.prefill,
            self.decode + other.decode,
        )


def decode(
    session: Recurrent,
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    ending: Ending,
    choose: Choose,
    heard: Heard,
    crossed: Feed | None = None,
) -> DecodedTokens:
    """Continue all prompts together. Each has at least one token; without a mask all have the same
    number. `crossed`: the encoder's outputs, the same for every token. Raises what the session
    raises."""
    rows, longest = len(prompts), max(map(len, prompts))
    ids = np.full((rows, longest), ending.pad, np.int64)
    mask = np.ones((rows, longest + ending.limit), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, : longest - len(prompt)] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    text = _Text(ending, heard, rows)
    start = {**decoder.empty(rows), **(crossed or {})}
    # the last new token is chosen but not read
    loop = session.loop(decoder.carried, start, longest + ending.limit - 1)
    kept = _Kept(loop, decoder)

    marks = [time.perf_counter()]
    for seen in range(longest, longest + ending.limit):
        feed = {IDS: ids}
        if decoder.masked:
            feed[MASK] = mask[:, kept.first(seen - ids.shape[1]) : seen]
        if decoder.positions:
            feed[POSITIONS] = positions[:, seen - ids.shape[1] : seen]
        chosen = choose(loop.run(feed)[LOGITS][:, -1])
        marks.append(time.perf_counter())
        ids = text.extended(chosen)
        if not len(ids):
            break
    return DecodedTokens(
        text.tokens,
        [reason or "length" for reason in text.reasons],
        Pace(sum(map(len, prompts)), marks[1] - marks[0]),
        Pace(text.choices - rows, marks[-1] - marks[1]),
        kept.window,
    )


class _Kept:
    """The tokens in the cache of a loop: all, or those that a sliding window still reads. A graph
    that counts positions by its cache keeps all, and one of states alone has no tokens."""

    def __init__(self, loop: Loop, decoder: Decoder) -> None:
        self._stores = bool(decoder.cache)
        self._sliding = loop.sliding if decoder.positions else None
        self._first = 0

    @property
    def window(self) -> int | None:
        return None if self._sliding is None else self._sliding.window

    def first(self, seen: int) -> int:
        """The first token in the cache before the next token is read; `seen`: those read so far.
        Makes room for it if the buffer is full."""
        if not self._stores:
            return seen
        filled = seen - self._first
        if self._sliding is not None and filled >= rows_kept(self._sliding.window):
            kept = self._sliding.window - 1
            self._sliding.slide(filled, kept, rows_kept(self._sliding.window))
            self._first = seen - kept
        return self._first


def rows_kept(window: int) -> int:
    """The largest number of tokens in the cache of layers with this sliding window, after a prompt
    that is not longer."""
    return window - 1 + max(1, window // _MOVES)


class _Text:
    """The tokens of all rows so far. `choices`: the number of tokens for rows that were not done,
    including the last one of each row."""

    def __init__(self, ending: Ending, heard: Heard, rows: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.reasons: list[FinishReason | None] = [None] * rows
        self.choices = 0
        self._ending, self._heard = ending, heard

    def extended(self, chosen: np.ndarray) -> np.ndarray:
        """The next input, [rows, 1]; None if all rows are done."""
        for row, token in enumerate(map(int, chosen)):
            if self.reasons[row] is not None:
                continue
            self.choices += 1
            if token in self._ending.ends:
                self.reasons[row] = "stop"
                continue
            self.tokens[row].append(token)
            self._heard(row, token)
        if None not in self.reasons:
            return np.empty((0, 1), np.int64)
        next_ids = zip(self.reasons, chosen, strict=True)
        return np.array([[self._ending.pad if reason else token] for reason, token in next_ids])
