from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, beside_the_key
from optkit.road.steps.collect import Samples


@dataclass(frozen=True, kw_only=True)
class Draw(Step[Samples]):
    """Some samples at random: those from `start` to `stop` of a random order.
    `optional`: axes that may be empty."""

    name = "draw"
    version = 2
    tools = ("numpy", "safetensors")
    stays = True

    samples: StepInput
    start: int
    stop: int
    optional: tuple[str, ...]
    memory: int = beside_the_key()
