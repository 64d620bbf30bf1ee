"""F1 of a classifier on rows of text, pictures in class folders, or arrays.

eval: {task: f1, args: {path: dev.jsonl, label: label, average: macro}}
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.benchmarking.metrics import Average
from optkit.data.labelled import samples

__all__ = ["aggregate", "metric", "samples", "score"]


def metric(average: Average = "macro") -> str:
    """What the score is called."""
    return f"f1_{average}"


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    average: Average = "macro",
    positive: int = 1,
) -> np.ndarray:
    """The class of the highest logit and the label's: float64 [batch, 2]."""
    known = positive if average == "binary" else 0
    return metrics.guessed(metrics.output(outputs, "logits"), labels, known)


def aggregate(scores: np.ndarray, average: Average = "macro", positive: int = 1) -> float:
    """F1 of all samples together. average: macro, micro or binary (of class `positive`)."""
    return metrics.f1(metrics.class_counts(scores), average, positive)
