from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from optkit.facts.tensors import AxisRange, InputSpec
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.execute.step import Step, StepInput, StepResult, always, beside_the_key

Point = Literal["least", "shorter", "longer", "largest"]
"""Of the declared sizes: all axes at their smallest or at their largest, or at the geometric mean
of one of these ends and of the samples' own size."""
ENDS: Final[tuple[Point, ...]] = ("least", "largest")
POINTS: Final[tuple[Point, ...]] = ("least", "shorter", "longer", "largest")


@dataclass(frozen=True, kw_only=True)
class ResizedSamples(StepResult):
    """Samples at one point of the declared sizes. `info`: None if there are none, because all
    samples have these sizes already, no axis can have them, or an end is near the samples' sizes
    and nothing is between.

    `reached`: axis → the smallest and the largest size that the given samples have; `sizes`: those
    of the written samples; `told`: axis → why an end is not as declared; `distinct`: how many
    samples of these sizes the values of all given samples fill once, if that is less than what is
    written.
    """

    info: SpoolInfo | None = None
    reached: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    distinct: int | None = None
    warnings: tuple[str, ...] = always(())

    @property
    def written(self) -> bool:
        return self.planned or self.info is not None


@dataclass(frozen=True, kw_only=True)
class Resize(Step[ResizedSamples]):
    """A few of the samples at one point of the declared sizes of some axes (`data.resizing`).

    graph: tells what a run takes, see `bodies.resize`; specs: its inputs; `whole`: samples are
    taken in the batches in which they were written, because the model sums over them. `optional`:
    axes that may be empty. `last`: smaller samples are cut from the
    second half of the given ones, not from the first.
    """

    name = "resize"
    version = 3
    tools = ("numpy", "safetensors", "onnx-ir")
    stays = True

    samples: StepInput
    graph: StepInput
    specs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisRange]
    at: Point
    whole: bool
    optional: tuple[str, ...]
    last: bool = False
    memory: int = beside_the_key()
