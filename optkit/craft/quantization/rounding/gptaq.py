"""GPTAQ: the weight whose rounding makes up for the errors of the inputs of its product.

    min |X' w' - Y|²  =  min |X' (w' - v)|² + …,    v = w + (X'ᵀX')⁻¹ X'ᵀ(Y - X' w)

(Li et al. 2025, arXiv:2504.02692, who compensate row by row instead of in v.)
"""

from __future__ import annotations

import numpy as np


def compensated(
    w: np.ndarray, moments: np.ndarray, missing: np.ndarray, damping: float
) -> np.ndarray:
    """v, float32 [K, N], of a weight w [K, N].

    moments: X'ᵀX' / n of the inputs that the product reads, float64 [K, K]. missing: X'ᵀ(Y - X' w)
    / n, [K, N], where Y is what the product should return. damping: share of the mean of their
    diagonal that is added to it. Channels that are always zero keep their weights.
    """
    diagonal = moments.diagonal()
    damped = moments + np.eye(len(moments)) * ((float(diagonal.mean()) or 1.0) * damping)
    return np.asarray(w + np.linalg.solve(damped, missing), np.float32)
