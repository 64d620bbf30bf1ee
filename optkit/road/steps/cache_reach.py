from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class CacheReach(StepResult):
    """`kv_cache.json`: output with a key-value cache → the largest magnitude in it."""


@dataclass(frozen=True, kw_only=True)
class ObserveCache(Step[CacheReach]):
    """How far the key-value cache of a decoder reaches for the samples, `batch` of them per run."""

    name = "cache_reach"
    version = 1
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    graph: StepInput
    samples: StepInput
    batch: int | None
