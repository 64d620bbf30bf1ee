"""One streaming observer per value: extremes and the histogram that every range method reads."""

from __future__ import annotations

import numpy as np

from optkit.statistics import ValueStatistics, count_bins


class Observer:
    """Accumulates `ValueStatistics` over batches; holds only the bins that were hit."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._bins = np.empty(0, np.uint16)
        self._counts = np.empty(0, np.int64)

    def update(self, x: np.ndarray) -> bool:
        """Count one batch (floats, any shape). False, and nothing is counted, for NaN or Inf."""
        if not x.size:
            return True
        low, high = float(x.min()), float(x.max())  # both are NaN if one element is
        if not np.isfinite(low) or not np.isfinite(high):
            return False
        counts = count_bins(x)
        counts[self._bins] += self._counts
        self._bins = np.flatnonzero(counts).astype(np.uint16)
        self._counts = counts[self._bins]
        # + 0.0 turns -0.0 into 0.0, so that the sign does not depend on the order of samples
        self._low, self._high = min(self._low, low) + 0.0, max(self._high, high) + 0.0
        return True

    def result(self) -> ValueStatistics:
        return ValueStatistics(self._low, self._high, self._bins, self._counts)
