"""Log-likelihood of W4's next tokens: mean over a window, in nats; perplexity = exp(−mean)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

METRIC = "log_likelihood"


def samples(path: str, count: int = 200) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Windows int64 [batch, 128]; the labels are the windows themselves."""
    with np.load(path) as stored:
        windows = stored["test.input_ids"][:count]
    for start in range(0, count, 8):
        yield {"input_ids": windows[start : start + 8]}, windows[start : start + 8]


def score(outputs: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Mean log-probability of tokens 1..127 given those before: float64 [batch]."""
    logits = outputs["logits"][:, :-1].astype(np.float64)  # [batch, 127, 2048]
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], 2)[..., 0]
    return (chosen - np.log(np.exp(logits).sum(-1))).mean(1)
