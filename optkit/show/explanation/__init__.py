"""Why an artifact is not faster, and why its accuracy fell: findings, the most costly first.

    findings ← rules(report of the build, time of each layer)        pure functions

subject             the input of the rules: the report and the times of the layers
quantization_gains  what quantization gained, layer by layer
speed               rules about products: in float, slower than before, limited by memory
fixed               the time that no precision shortens, and rules about it
sample_rules        rules about padding, and about calibration samples unlike those evaluated
data_movement       rules about kernels that only convert, cast or move data
accuracy_loss       rules about noise: ranges, scales of weights
noisy_layers        layers with most of the noise, and those whose values are lost
rule_table          all rules, in order, with what each reports in words
applying            a recipe with the changes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.documents.explanation import ExplainFinding, FixedTime, LayerTime, SpentTime
from optkit.show.explanation import fixed, noisy_layers
from optkit.show.explanation.applying import applied
from optkit.show.explanation.quantization_gains import LEAST
from optkit.show.explanation.rule_table import RULES
from optkit.show.explanation.subject import KINDS, Subject, Times

__all__ = ["RULES", "ExplainFinding", "Explanation", "Subject", "Times", "applied", "explain"]

_FAULTS = (
    "left_in_float",
    "clipped",
    "coarse",
    "duplicated",
    "weight_axis",
    "weight_scale",
    "other_calibration_data",
)
_GENERAL = ("heavy_weight", "sensitive")


@dataclass(frozen=True)
class Explanation:
    """`findings`: faults, the most costly first, then limits. `spent`: side → kind of layer →
    milliseconds; None if the times of layers are not known."""

    subject: Subject
    findings: tuple[ExplainFinding, ...]
    spent: Mapping[str, Mapping[str, float]] | None

    @property
    def fixed(self) -> FixedTime | None:
        """What no precision makes faster."""
        return fixed.fixed(self.subject)

    def time(self) -> LayerTime | None:
        """The time of the layers by kind; None if it is not known."""
        times = self.subject.times
        if times is None or self.spent is None:
            return None
        sides = {name: SpentTime(**spent) for name, spent in self.spent.items()}
        copies = times.layers.copies_ms
        return LayerTime(evidence=times.evidence, note=times.note, copies_ms=copies, **sides)


def explain(subject: Subject) -> Explanation:
    """Apply every rule. A node with a specific fault is not reported again for a heavy weight, much
    noise or lost values, which have the same cause; layers whose values are lost are reported
    unless each of them has one. A share of the noise counts as much as one of the time only where
    the noise matters (`noisy_layers.weight`)."""
    findings = [finding for rule in RULES for finding in rule(subject)]
    costly = [finding for finding in findings if finding.cost.share >= LEAST or finding.always]
    faulty = {node for finding in costly if finding.rule in _FAULTS for node in finding.nodes}

    def told(one: ExplainFinding) -> bool:
        nodes = set(one.nodes)
        same = nodes <= faulty if one.always else bool(nodes & faulty)
        return one.rule not in _GENERAL or not same

    kept = [one for one in costly if told(one)]
    noise = noisy_layers.weight(subject)

    def cost(one: ExplainFinding) -> float:
        return one.cost.share * (noise if one.cost.of == "noise" and not one.always else 1.0)

    ranked = sorted(kept, key=lambda one: (one.limit, -cost(one)))
    return Explanation(subject, tuple(ranked), _spent(subject))


def _spent(subject: Subject) -> dict[str, dict[str, float]] | None:
    if subject.times is None:
        return None
    spent: dict[str, dict[str, float]] = {}
    known = subject.times.layers
    for side, layers in (("candidate", known.candidate), ("baseline", known.baseline)):
        spent[side] = dict.fromkeys(KINDS, 0.0)
        for timed in layers:
            spent[side][subject.kind(timed)] += timed.ms
    return spent
