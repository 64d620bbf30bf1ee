"""Greedy text of a decoder: how much of what the baseline writes it writes, too, token for token.

    eval: {task: greedy_agreement, args: {path: held-out.txt, length: 32, stride: 1024, new: 64}}

No label says what is right: the baseline does. Behind the first other token two texts go apart, so
only the tokens before it count. `new` tokens are written whatever they are, an end of text too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from optkit.benchmarking import metrics
from optkit.data import packing, reading, rows, text, tokens
from optkit.data.reading import Inputs
from optkit.decoder import IDS, Decoder
from optkit.generation.decoding import Ending, decode
from optkit.generation.sampling import greedy
from optkit.runtimes import Recurrent
from optkit.tensors import Feed

Measure = Literal["prefix", "equal"]


def metric(measure: Measure = "prefix", new: int = 64) -> str:
    """What the score is called."""
    return f"greedy_{measure}{new}"


def samples(
    path: Path,
    field: str = rows.TEXT,
    length: int = 32,
    stride: int = 1024,
    eos: str | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[Feed, np.ndarray]]:
    """Prompts of `length` tokens that start `stride` apart in the file's text (see `stream` of
    optkit/data/text.py). There are no labels: each is 0."""
    spoken = tokens.load(tokenizer, model)
    blocks = packing.pack(text.stream(path, field, spoken, eos), max(stride, length))
    for group in reading.grouped(blocks, inputs):
        yield packing.full([block[:length] for block in group]).feed(inputs), np.zeros(len(group))


def run(session: Recurrent, feed: Feed, new: int = 64) -> Feed:
    """The most likely `new` tokens behind each prompt: int64 [batch, new]."""
    decoder = Decoder.of(session.inputs, session.outputs)
    if decoder is None:
        raise ValueError("the model is no decoder with a cache")
    ending = Ending(frozenset(), new, pad=0)
    made = decode(session, decoder, feed[IDS].tolist(), ending, greedy, lambda row, token: None)
    return {"tokens": np.array(made.tokens)}


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """The tokens written: float64 [batch, new]."""
    return outputs["tokens"].astype(np.float64)


def agreement(scores: np.ndarray, baseline: np.ndarray, measure: Measure = "prefix") -> np.ndarray:
    """Of each text the share of tokens up to the first that is not the baseline's (`prefix`), or 1
    where all are and else 0 (`equal`): [prompts]."""
    share = metrics.agreed(scores, baseline) / scores.shape[1]
    return share if measure == "prefix" else np.asarray(share == 1, np.float64)
