from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, beside_the_key
from optkit.road.steps.collect import Samples


@dataclass(frozen=True, kw_only=True)
class Pick(Step[Samples]):
    """At most `most` of the samples: the smallest one, the largest one, and others at equal
    distances. `optional`: axes that may be empty."""

    name = "pick"
    version = 1
    tools = ("numpy", "safetensors")
    stays = True

    samples: StepInput
    most: int
    optional: tuple[str, ...]
    memory: int = beside_the_key()
