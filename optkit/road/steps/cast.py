from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, beside_the_key, spread
from optkit.road.steps.graph import Rewritten


@dataclass(frozen=True)
class MagnitudeSamples:
    """How values are measured: the number of samples per run (None: as they were written), and what
    the samples are."""

    batch: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Cast(Step[Rewritten]):
    """FP32 → FP16 or BF16 carriers, and the simulation of the result.
    The magnitudes of values are measured on some of the samples; `unmeasured`: the reason if they
    are not measured. `carrier`: "fp16" or "bf16"."""

    name = "cast"
    version = 6
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    graph: StepInput
    carrier: str
    samples: StepInput | None = None
    measured: MagnitudeSamples | None = spread(None)
    unmeasured: str | None = beside_the_key(None)
