from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Shards, Step, StepInput, StepResult, always, beside_the_key


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(StepResult):
    """The numbers of values and of samples. Both are None for a part of the samples, whose only
    result is its file. `failed`: why the graph does not run on these samples."""

    values: int | None = None
    samples: int | None = None
    failed: str | None = None
    warnings: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class Calibrate(Shards, Step[CalibrationResult]):
    """FP32 graph and samples → statistics of every value that any backend family would quantize.

    `batch`: samples per run, None: as they were written; `families`: backend → precision →
    placement rules; `moments`: whether second moments are kept for learned rounding. `tolerant`:
    samples on which the graph does not run are a result, no error, and few of them no warning.
    `planned_memory`: the graph runs part by part, and these bytes of memory determine the size of
    the parts; None: it runs as a whole.
    """

    name = "calibrate"
    version = 8
    tools = ("onnxruntime", "numpy", "onnx-ir")
    stays = True

    graph: StepInput
    samples: StepInput
    batch: int | None
    families: tuple[Mapping[Precision, PlacementRules], ...]
    moments: bool
    tolerant: bool = False
    planned_memory: int | None = None
    memory: int = beside_the_key()
