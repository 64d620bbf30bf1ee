from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optkit.data.spool_writer import SpoolInfo
from optkit.execute.step import Input, Result, Step, always, beside_the_key
from optkit.tensors import AxisRange, InputSpec

End = Literal["least", "largest"]
"""Of the declared sizes: all axes at their smallest or at their largest."""


@dataclass(frozen=True, kw_only=True)
class Resized(Result):
    """Samples at one end of the declared sizes. `info`: None if there are none, because all samples
    have these sizes already, or no axis can have them.

    `reached`: axis → the smallest and the largest size that the given samples have; `sizes`: those
    of the written samples; `told`: axis → why it is not as declared.
    """

    info: SpoolInfo | None = None
    reached: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = always(())

    @property
    def written(self) -> bool:
        return self.planned or self.info is not None


@dataclass(frozen=True, kw_only=True)
class Resize(Step[Resized]):
    """A few of the samples at one end of the declared sizes of some axes (`optkit.data.resizing`).

    graph: tells what a run takes, see `bodies.resize`; specs: its inputs; `whole`: samples are
    taken in the batches in which they were written, because the model sums over them. `optional`:
    axes that may be empty. `last`: smaller samples are the last parts of the given ones.
    """

    name = "resize"
    version = 1
    tools = ("numpy", "safetensors", "onnx-ir")
    stays = True

    samples: Input
    graph: Input
    specs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisRange]
    end: End
    whole: bool
    optional: tuple[str, ...]
    last: bool = False
    memory: int = beside_the_key()
