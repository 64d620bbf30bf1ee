"""The loop: one run over the prompts, then one run for each further token of all rows.

    prompts, padded on the left   [ · · a b c ]  ─ prefill ─▶ cache, logits ─ choose ─▶ d
                                  [ a b c d e ]                  ▲                       │
                                                                 └──────── decode ◀──────┘

The cache stays inside the runtime (`Recurrent.loop`). The attention mask hides the padding, and
positions count only real tokens, so a prompt gives the same tokens in any batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optkit.decoder import IDS, LOGITS, MASK, POSITIONS, Decoder
from optkit.runtimes import Recurrent
from optkit.tensors import Feed

Choose = Callable[[np.ndarray], np.ndarray]
"""Logits [rows, vocabulary] → token ids [rows]."""

Heard = Callable[[int, int], None]
"""Called for every new token: its row, its id."""

FinishReason = Literal["stop", "length"]


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
class Decoded:
    """New tokens by row, without the one that ended it, and the reason why each row ended."""

    tokens: list[list[int]]
    reasons: list[FinishReason]
    prefill: Pace  # this phase includes the choice of each row's first new token
    decode: Pace

    def __add__(self, other: Decoded) -> Decoded:
        """These texts and those of another decoding, which ran after it."""
        return Decoded(
            self.tokens + other.tokens, self.reasons + other.reasons,
            self.prefill + other.prefill, self.decode + other.decode,
        )  # fmt: skip


def decode(
    session: Recurrent,
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    ending: Ending,
    choose: Choose,
    heard: Heard,
    crossed: Feed | None = None,
) -> Decoded:
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

    marks = [time.perf_counter()]
    for seen in range(longest, longest + ending.limit):
        feed = {IDS: ids}
        if decoder.masked:
            feed[MASK] = mask[:, :seen]
        if decoder.positions:
            feed[POSITIONS] = positions[:, seen - ids.shape[1] : seen]
        chosen = choose(loop.run(feed)[LOGITS][:, -1])
        marks.append(time.perf_counter())
        ids = text.extended(chosen)
        if not len(ids):
            break
    return Decoded(
        text.tokens,
        [reason or "length" for reason in text.reasons],
        Pace(sum(map(len, prompts)), marks[1] - marks[0]),
        Pace(text.choices - rows, marks[-1] - marks[1]),
    )


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
