"""The kernels of `optkit devices --measure` that the acceptance test judges: products in FP16, INT8
and FP8, attention, convolutions, 100 where the card has FP8. The card's own times say whether the
predictor's intervals hold for single kernels; they were fitted to whole models.
"""

from __future__ import annotations

from typing import Any

from optkit.craft.prediction import work_time
from optkit.craft.prediction.card_kernels import products as kernels
from optkit.craft.prediction.card_kernels import work_of
from optkit.craft.prediction.fitted import fitted
from optkit.facts.card_facts import CardKernel
from optkit.ground.devices import Target

__all__ = ["compared", "kernels"]


def compared(kernel: CardKernel, target: Target, ms: float) -> dict[str, Any]:
    """A kernel's time beside its prediction and the interval of that, by the fit alone."""
    known = fitted()
    predicted = 1e3 * work_time.seconds([work_of(kernel)], target, known.efficiencies).total
    category = "convolution" if kernel.kind == "conv" else "encoder"
    band = known.band(category, predicted)
    return {
        "kernel": kernel.name,
        "ms": ms,
        "predicted_ms": predicted,
        "low_ms": band.low,
        "high_ms": band.high,
    }
