"""Retrieval: for which texts the other text of their pair is among the k nearest of all.

eval: {task: retrieval, args: {path: pairs.jsonl, fields: [question, answer], k: 1}}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optkit.benchmarking import metrics
from optkit.data import text
from optkit.data.reading import Inputs
from optkit.data.tokens import Side


def metric(k: int = 1) -> str:
    """What the score is called."""
    return f"recall{k}"


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


def combine(scores: np.ndarray, k: int = 1) -> np.ndarray:
    """1.0 for each pair whose second text is among the k nearest to the first, else 0.0."""
    return metrics.found_first(scores[::2], scores[1::2], k)
