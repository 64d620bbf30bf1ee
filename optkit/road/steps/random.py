from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, spread
from optkit.road.steps.collect import Samples
from optkit.road.steps.graph import RandomInputs


@dataclass(frozen=True, kw_only=True)
class Random(Step[Samples]):
    """Seeded random inputs, for a model without any samples."""

    name = "random"
    version = 5
    tools = ("numpy", "safetensors")

    random: RandomInputs = spread()
