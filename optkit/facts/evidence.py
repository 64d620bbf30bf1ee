"""How a figure was obtained."""

from __future__ import annotations

from enum import StrEnum


class Evidence(StrEnum):
    """How a figure was obtained. A figure has exactly one evidence."""

    MEASURED = "measured"  # it was measured on the target
    COMPILED = "compiled"  # read from an engine for the target, which did not run
    SIMULATED = "simulated"  # the same Q/DQ graph, run by ONNX Runtime on a CPU
    PREDICTED = "predicted"  # computed by a performance model, with an interval
    PENDING = "pending"  # a host with the target has to measure it

    def weaker(self, other: Evidence) -> Evidence:
        """The evidence of a comparison is the weaker one of its two sides, in the order above."""
        order = tuple(Evidence)
        return max(self, other, key=order.index)
