"""Why an artifact is not faster, and why its accuracy fell: findings, the most costly first.

    findings ← rules(report of the build, time of each layer)        pure functions

subject        what the rules look at, and what it means
layer_times    what quantizing gave, layer by layer
speed          rules about products: in floats, slower than before, waiting for memory
data_movement  rules about kernels that only convert, cast or move
accuracy       rules about noise: ranges, weights' scales, layers that make most of it
applying       a recipe with the changes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from optkit.documents.explanation import LayerTime, SpentTime
from optkit.explanation import accuracy, data_movement, speed
from optkit.explanation.applying import applied
from optkit.explanation.finding import Change, Cost, Finding
from optkit.explanation.layer_times import LEAST
from optkit.explanation.subject import KINDS, Subject, Times

__all__ = ["RULES", "Change", "Cost", "Explanation", "Finding", "Subject", "Times", "applied",
           "explain"]  # fmt: skip

Rule = Callable[[Subject], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    data_movement.unfused_pairs,
    speed.left_in_float,
    speed.does_not_pay,
    data_movement.layout,
    data_movement.casts,
    speed.alignment,
    speed.memory_bound,
    speed.heavy_weights,
    accuracy.clipped,
    accuracy.coarse,
    accuracy.duplicated,
    accuracy.unread,
    accuracy.weight_axis,
    accuracy.weight_scale,
    accuracy.sensitive,
)


_FAULTS = ("left_in_float", "clipped", "coarse", "duplicated", "weight_axis", "weight_scale")
_GENERAL = ("heavy_weight", "sensitive")


@dataclass(frozen=True)
class Explanation:
    """`findings`: faults, the most costly first, then limits. `spent`: side → kind of layer →
    milliseconds; None where no layer's time is known."""

    subject: Subject
    findings: tuple[Finding, ...]
    spent: Mapping[str, Mapping[str, float]] | None

    def time(self) -> LayerTime | None:
        """Where the time of the layers goes; None where it is not known."""
        times = self.subject.times
        if times is None or self.spent is None:
            return None
        sides = {name: SpentTime(**spent) for name, spent in self.spent.items()}
        return LayerTime(evidence=times.evidence, note=times.note, **sides)


def explain(subject: Subject) -> Explanation:
    """Ask every rule. A node with a fault of its own is not told of as one that merely has a heavy
    weight or much noise."""
    found = [finding for rule in RULES for finding in rule(subject)]
    worth = [one for one in found if one.cost.share >= LEAST]
    faulty = {node for one in worth if one.rule in _FAULTS for node in one.nodes}
    kept = [one for one in worth if one.rule not in _GENERAL or not faulty & set(one.nodes)]
    ranked = sorted(kept, key=lambda one: (one.limit, -one.cost.share))
    return Explanation(subject, tuple(ranked), _spent(subject))


def _spent(subject: Subject) -> dict[str, dict[str, float]] | None:
    if subject.times is None:
        return None
    found: dict[str, dict[str, float]] = {}
    for side, layers in (("candidate", subject.times.candidate),
                         ("baseline", subject.times.baseline)):  # fmt: skip
        found[side] = dict.fromkeys(KINDS, 0.0)
        for one in layers:
            found[side][subject.kind(one)] += one.ms
    return found
