"""Semantic textual similarity: how the cosines of pairs of texts agree with their gold scores.

eval: {task: similarity, args: {path: sts.jsonl, fields: [sentence1, sentence2], score: score}}
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.data.text import pairs as samples

__all__ = ["aggregate", "combine", "metric", "samples", "score"]


def metric(measure: str = "spearman") -> str:
    """What the score is called: spearman or pearson."""
    return measure


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    pooling: str = "mean",
    output: str | None = None,
) -> np.ndarray:
    """The text's unit vector and its pair's gold score: float64 [batch, width + 1].

    pooling: mean, first or last of the real tokens' states, where the output has one per token.
    """
    vectors = metrics.embedded(outputs, labels, pooling, output)
    return np.concatenate([vectors, labels[:, :1]], axis=1)


def combine(scores: np.ndarray) -> np.ndarray:
    """The cosine and the gold score of each pair, whose texts follow each other: [pairs, 2]."""
    first, second = scores[::2], scores[1::2]
    cosines = (first[:, :-1] * second[:, :-1]).sum(1)
    return np.stack([cosines, first[:, -1]], axis=1)


def aggregate(scores: np.ndarray, measure: str = "spearman") -> float:
    """The correlation over all pairs: spearman or pearson."""
    return {"spearman": metrics.spearman, "pearson": metrics.pearson}[measure](*scores.T)
