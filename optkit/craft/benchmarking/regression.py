"""Whether a model is slower than another one by more than a limit, for a check in CI.

The whole 95 % interval of the ratio decides, as for gates. If it is within the limit, the check
passes; if it is beyond the limit, it fails. Otherwise the run was too short or too noisy.
"""

from __future__ import annotations

from optkit.facts.measurement import Difference, Interval, Outcome


def slowdown(speedup: Difference) -> Difference:
    """How much longer the candidate takes, as a share of the other's latency: 0.05 = 5 % slower."""
    ends = speedup.ci95
    return Difference(
        1 / speedup.value - 1,
        None if ends is None else Interval(1 / ends.high - 1, 1 / ends.low - 1),
        speedup.evidence,
    )


def judge(change: Difference, limit: float) -> tuple[Outcome, str]:
    """The outcome against the largest slowdown allowed (a share), and the reason in words."""
    low, high = change.ci95 or Interval(change.value, change.value)
    outcome: Outcome = "pass" if high <= limit else "fail" if low > limit else "inconclusive"
    verb = {"pass": "within", "fail": "beyond", "inconclusive": "may or may not be within"}[outcome]
    text = f"{100 * change.value:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} %)"
    return outcome, f"{text}, {verb} the limit of {100 * limit:+g} %"
