"""Top-k accuracy (k = 1) of a classifier on pictures in class folders, rows of text, or arrays.

eval: {task: top1, args: {path: validation, k: 5}}
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.data.labelled import samples

__all__ = ["metric", "samples", "score"]


def metric(k: int = 1) -> str:
    """What the score is called."""
    return f"top{k}"


def score(outputs: dict[str, np.ndarray], labels: np.ndarray, k: int = 1) -> np.ndarray:
    """1.0 where the label is among the k highest logits, else 0.0: float64 [batch]."""
    return metrics.in_top(metrics.output(outputs, "logits"), labels, k)
