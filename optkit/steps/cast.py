from __future__ import annotations

from dataclasses import dataclass

from optkit.execute.step import Input, Step, beside_the_key, spread
from optkit.steps.graph import Rewritten


@dataclass(frozen=True)
class Measured:
    """How values are measured: samples in a run (None: as they were written), and what they are."""

    batch: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Cast(Step[Rewritten]):
    """FP32 → FP16 or BF16 carriers; of BF16, which ONNX Runtime lacks, also the simulation. The
    magnitude of values is measured on some of the samples; `unmeasured`: why there are none.
    `carrier`: "fp16" or "bf16"."""

    name = "cast"
    version = 3
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    graph: Input
    carrier: str
    samples: Input | None = None
    measured: Measured | None = spread(None)
    unmeasured: str | None = beside_the_key(None)
