"""The key-value cache of a decoder as codes, where the recipe asks for it."""

from __future__ import annotations

from typing import Literal

from optkit.facts.errors import Impossible, InputRefused
from optkit.ground import runtimes
from optkit.ground.decoder import require_codes
from optkit.ground.execute.installed import installed
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build, Job
from optkit.road.pipeline.run_samples import observed, sample_batch
from optkit.road.steps.cache_reach import ObserveCache
from optkit.road.steps.kv_cache import QuantizeCache

_KEY = "quantization.kv_cache"


def check_cache(job: Job, compiler: str) -> None:
    """Refuse a cache of codes that the compiler cannot have, or whose scales nothing tells. Raises
    Impossible, ToolchainMissing, InputRefused."""
    wanted = _wanted(job)
    if wanted is None:
        return
    if wanted != "fp8":
        _check_codes(job, compiler, wanted)
    if job.calibration is None and job.recipe.calibration_source is None:
        raise InputRefused(
            "the scales of the cache follow from calibration samples and there are none",
            where=_KEY,
            hint="give --calibration PATH, `calibration: {source: ...}` in the recipe or "
            "calibration=batches in Python",
        )


def _check_codes(job: Job, compiler: str, wanted: str) -> None:
    """Raises Impossible, ToolchainMissing."""
    if wanted not in runtimes.backend(compiler).traits.caches:
        raise Impossible(
            f"{compiler} reads the key-value cache of a decoder as floats: optkit stores it in "
            f"{wanted} only for GroupQueryAttention of ONNX Runtime on a CPU",
            where=f"{job.target.name} × {_KEY}",
            hint=f"build for cpu, or leave it out: --set {_KEY}=null; {_KEY}=fp8 gives the "
            "checkpoint for vLLM the scales of a cache in FP8",
        )
    if (version := installed("onnxruntime")) is not None:
        require_codes(version, _KEY)


def quantize_cache(build: Build, runner: Steps) -> None:
    """Store the cache of the quantized graph as codes, or (`fp8`) find out how far it reaches. A
    graph of floats keeps its cache, so the baseline does too."""
    wanted = _wanted(build.job)
    if wanted is None:
        return
    samples = observed(build, runner)
    assert samples is not None
    if wanted == "fp8":
        graph, batch = build.prepared or build.fused, sample_batch(build)
        observe = ObserveCache(graph=graph, samples=samples, batch=batch)
        build.cache_reach = runner.do(observe, "observe the key-value cache")
        return
    step = QuantizeCache(
        graph=build.graph, samples=samples, batch=sample_batch(build), dtype=wanted
    )
    build.graph = runner.do(step, f"store the key-value cache in {wanted}")


def _wanted(job: Job) -> Literal["int8", "int4", "fp8"] | None:
    """The encoder of an encoder-decoder has no cache of its own."""
    quantizes = job.precision.quantized and job.part != "encoder"
    return job.recipe.quantization.kv_cache if quantizes else None
