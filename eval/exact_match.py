"""Exact match: for how many prompts greedy decoding gives the answer, token for token.

    eval: {task: exact_match, args: {path: questions.jsonl, prompt: prompt, answer: answer}}

The answer stands behind the prompt, and each of its tokens must be the most likely one given those
before it: just then greedy decoding from the prompt writes this answer.
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import metrics
from optkit.data.language import answers as samples

__all__ = ["METRIC", "samples", "score"]

METRIC = "exact_match"


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """1.0 where every token of the answer has the highest logit, else 0.0: float64 [batch]."""
    return metrics.exact(metrics.output(outputs, "logits"), labels)
