"""How a figure is known."""

from __future__ import annotations

from enum import StrEnum


class Evidence(StrEnum):
    """How a figure is known. Two of them are never blurred."""

    MEASURED = "measured"  # ran on the target
    COMPILED = "compiled"  # an engine for the target exists, not run
    SIMULATED = "simulated"  # the same Q/DQ graph, run by ONNX Runtime on a CPU
    PREDICTED = "predicted"  # a model's value, with its interval
    PENDING = "pending"  # needs a host that has the target

    def weaker(self, other: Evidence) -> Evidence:
        """A comparison is known no better than its weaker side, in the order above."""
        order = tuple(Evidence)
        return max(self, other, key=order.index)
