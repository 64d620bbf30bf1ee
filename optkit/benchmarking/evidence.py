"""Combining evidence: a comparison is known no better than its weaker side."""

from __future__ import annotations

from optkit.evidence import Evidence

_STRONGEST_FIRST = tuple(Evidence)


def weaker(a: Evidence, b: Evidence) -> Evidence:
    """The weaker of two, in the order measured, compiled, simulated, predicted, pending."""
    return max(a, b, key=_STRONGEST_FIRST.index)
