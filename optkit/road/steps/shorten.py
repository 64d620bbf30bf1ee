from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, beside_the_key
from optkit.road.steps.collect import Samples


@dataclass(frozen=True, kw_only=True)
class Shorten(Step[Samples]):
    """The samples by their number of tokens, in batches of `batch`, without the padding that all
    samples of a batch share. At least `tokens` tokens remain. `optional`: axes that may be
    empty."""

    name = "shorten"
    version = 2
    tools = ("numpy", "safetensors")
    stays = True

    samples: StepInput
    batch: int
    tokens: int
    optional: tuple[str, ...]
    memory: int = beside_the_key()
