from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.ort import OrtGraph


@dataclass(frozen=True, kw_only=True)
class QuantizeCache(Step[OrtGraph]):
    """A decoder in ONNX Runtime's operators, whose key-value cache becomes codes. Their scales
    follow from the caches that this graph computes for the samples, `batch` samples per run."""

    name = "kv_cache"
    version = 1
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    graph: StepInput
    samples: StepInput
    batch: int | None
    dtype: Literal["int8", "int4"]
