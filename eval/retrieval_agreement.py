"""Retrieval without labels: how many of the k nearest texts are the baseline's, too.

    eval: {task: retrieval_agreement, args: {path: pairs.jsonl, fields: [question, answer], k: 10}}

The first texts of the pairs are the queries, the second ones what is searched; who belongs to whom
does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optkit.benchmarking import metrics
from optkit.data import text
from optkit.data.reading import Inputs
from optkit.data.tokens import Side


def metric(k: int = 10) -> str:
    """What the score is called."""
    return f"overlap{k}"


def samples(
    path: Path,
    fields: list[str],
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """The two texts of each row, after each other (see `pairs` of optkit/data/text.py)."""
    return text.pairs(path, fields, None, length, padding_side, tokenizer, model, inputs)


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    pooling: str = "mean",
    output: str | None = None,
) -> np.ndarray:
    """The text's unit vector: float64 [batch, width]. pooling: mean, first or last of the real
    tokens' states, where the output has one per token."""
    return metrics.embedded(outputs, labels, pooling, output)


def agreement(scores: np.ndarray, baseline: np.ndarray, k: int = 10) -> np.ndarray:
    """The share of each query's k nearest texts that are among the baseline's: [pairs]."""
    return metrics.overlap(scores[::2], scores[1::2], baseline[::2], baseline[1::2], k)
