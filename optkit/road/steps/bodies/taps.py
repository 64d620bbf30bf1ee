"""The values that calibration observes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import taps
from optkit.facts.assignment import Scheme
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.statistics import Tap, merged_taps


def taps_of_families(
    model: ir.Model, families: Sequence[Mapping[Precision, PlacementRules]], *, moments: bool
) -> list[Tap]:
    """What to observe, so that every precision of every backend family can be quantized."""
    found = []
    for rules in families:
        for precision in rules:
            # also of islands that do not pay: a recipe may name their nodes
            every = {name: replace(one, kernels=None) for name, one in rules.items()}
            assignment = assign(model, Scheme(precision, "fp32", every))
            found += taps(model, assignment, rules, moments=moments)
    return merged_taps(found)
