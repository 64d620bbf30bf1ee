"""Embeddings without labels: the cosine between each text's vector and the baseline's.

eval: {task: similarity_agreement, args: {path: sts.jsonl, fields: [sentence1, sentence2]}}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optkit.benchmarking import metrics
from optkit.data import text
from optkit.data.reading import Inputs
from optkit.data.tokens import Side

METRIC = "cosine"


def samples(
    path: Path,
    fields: list[str],
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """The texts in these columns of each row, after each other (see `pairs` of
    optkit/data/text.py)."""
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


def agreement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """The cosine between each text's vector and the baseline's: [texts]."""
    return metrics.cosines(scores, baseline)
