"""Perplexity of a language model by a sliding window; lower is better.

    eval: {task: perplexity, args: {path: held-out.txt, length: 512, stride: 256}}

Each window starts `stride` tokens after the one before, and only its last `stride` tokens count, so
that every token is predicted once, with at least length - stride tokens before it.
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.data.language import windows as samples

__all__ = ["LOWER_IS_BETTER", "METRIC", "aggregate", "samples", "score"]

METRIC = "perplexity"
LOWER_IS_BETTER = True


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Negative log-likelihood in nats and number of tokens of each window: float64 [batch, 2]."""
    return metrics.surprise(metrics.output(outputs, "logits"), labels)


def aggregate(scores: np.ndarray) -> float:
    """exp of the mean negative log-likelihood per token."""
    return metrics.perplexity(scores)
