"""Is one model slower than another by more than a limit: for a check in CI.

The whole 95 % interval of the ratio decides, as for gates: all of it within the limit passes, all
of it beyond fails, else the run was too short or too noisy to tell.
"""

from __future__ import annotations

from optkit.measurement import Difference, Interval, Outcome


def slowdown(speedup: Difference) -> Difference:
    """How much longer the candidate takes, as a share of the other's latency: 0.05 = 5 % slower."""
    ends = speedup.ci95
    return Difference(
        1 / speedup.value - 1,
        None if ends is None else Interval(1 / ends.high - 1, 1 / ends.low - 1),
        speedup.evidence,
    )


def judge(found: Difference, limit: float) -> tuple[Outcome, str]:
    """The outcome against the largest slowdown allowed (a share), and the reason in words."""
    low, high = found.ci95 or Interval(found.value, found.value)
    outcome: Outcome = "pass" if high <= limit else "fail" if low > limit else "inconclusive"
    verb = {"pass": "within", "fail": "beyond", "inconclusive": "may or may not be within"}[outcome]
    told = f"{100 * found.value:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} %)"
    return outcome, f"{told}, {verb} the limit of {100 * limit:+g} %"
