"""The loop: a run over the prompts, then a run for each further token of all of them.

    prompts, padded on the left   [ · · a b c ]  ─ prefill ─▶ cache, logits ─ choose ─▶ d
                                  [ a b c d e ]                  ▲                       │
                                                                 └──────── decode ◀──────┘

The cache stays inside the runtime (`Recurrent.loop`). Padding is hidden by the attention mask, and
positions count real tokens alone, so a prompt gives the same tokens in any batch.
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
"""Told of every new token: its row, its id."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Ending:
    """When a row is done: behind a token of `ends`, or at `limit` new tokens."""

    ends: frozenset[int]
    limit: int
    pad: int  # what done rows, and rows before their prompt, are fed


@dataclass(frozen=True)
class Pace:
    """How many tokens a phase took, and how long: those read in prefill, those made in decode."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Decoded:
    """New tokens by row, without the one that ended it, and why each row ended."""

    tokens: list[list[int]]
    reasons: list[FinishReason]
    prefill: Pace  # the first new token of each row is chosen in it
    decode: Pace


def decode(
    session: Recurrent,
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    ending: Ending,
    choose: Choose,
    heard: Heard,
    crossed: Feed | None = None,
) -> Decoded:
    """Continue all prompts together; each has a token or more, and without a mask all have as many.
    `crossed`: what an encoder made, the same for every token. Raises what the session raises."""
    rows, longest = len(prompts), max(map(len, prompts))
    ids = np.full((rows, longest), ending.pad, np.int64)
    mask = np.ones((rows, longest + ending.limit), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, : longest - len(prompt)] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    found: list[list[int]] = [[] for _ in prompts]
    made = -rows  # choices behind the first, which is prefill's; one that ends a row is one too
    reasons: list[FinishReason | None] = [None] * rows
    start = {**_empty(decoder, rows), **(crossed or {})}
    # the last of the new tokens is chosen and not read
    loop = session.loop(decoder.carried, start, longest + ending.limit - 1)

    marks = [time.perf_counter()]
    for seen in range(longest, longest + ending.limit):
        feed = {IDS: ids, MASK: mask[:, :seen], POSITIONS: positions[:, seen - ids.shape[1] : seen]}
        if not decoder.positions:
            del feed[POSITIONS]
        if not decoder.masked:
            del feed[MASK]
        chosen = choose(loop.run(feed)[LOGITS][:, -1])
        marks.append(time.perf_counter())
        made += reasons.count(None)
        for row in (row for row in range(rows) if reasons[row] is None):
            token = int(chosen[row])
            if token in ending.ends:
                reasons[row] = "stop"
                continue
            found[row].append(token)
            heard(row, token)
        if None not in reasons:
            break
        ids = np.array([[ending.pad if r else t] for r, t in zip(reasons, chosen, strict=True)])
    read = sum(map(len, prompts))
    return Decoded(
        found,
        [reason or "length" for reason in reasons],
        Pace(read, marks[1] - marks[0]),
        Pace(made, marks[-1] - marks[1]),
    )


def _empty(decoder: Decoder, rows: int) -> Feed:
    """The cache before the first run: [rows, heads, 0, head size]."""
    found = {}
    for info in decoder.cache:
        _, heads, _, size = info.shape
        found[info.name] = np.zeros((rows, int(heads), 0, int(size)), np.dtype(info.dtype))
    return found
