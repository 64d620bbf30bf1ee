"""F1 of a token classifier, over the words of texts (the first token of each is scored).

eval: {task: token_f1, args: {path: ner.jsonl, classes: [O, PER, LOC], exclude: [0]}}
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.benchmarking.metrics import Average
from optkit.data.text import tagged as samples

__all__ = ["aggregate", "metric", "samples", "score"]


def metric(average: Average = "micro") -> str:
    """What the score is called."""
    return f"token_f1_{average}"


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """True positives, false positives and false negatives: float64 [batch, classes, 3]."""
    return metrics.tag_counts(metrics.output(outputs, "logits"), labels)


def aggregate(
    scores: np.ndarray, average: Average = "micro", exclude: list[int] | None = None
) -> float:
    """F1 over all words, macro or micro, of the classes that are not in `exclude` (that of words
    which are nothing)."""
    return metrics.f1(scores.sum(0), average, exclude=exclude or ())
