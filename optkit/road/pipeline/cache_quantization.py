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
from optkit.road.steps.kv_cache import QuantizeCache

_KEY = "quantization.kv_cache"


def check_cache(job: Job, compiler: str) -> None:
    """Refuse a cache of codes that the compiler cannot have, or whose scales nothing tells. Raises
    Impossible, ToolchainMissing, InputRefused."""
    wanted = _wanted(job)
    if wanted is None:
        return
    if wanted not in runtimes.backend(compiler).traits.caches:
        raise Impossible(
            f"{compiler} reads the key-value cache of a decoder as floats: optkit stores it in "
            f"{wanted} only for GroupQueryAttention of ONNX Runtime on a CPU",
            where=f"{job.target.name} × {_KEY}",
            hint=f"build for cpu, or leave it out: --set {_KEY}=null",
        )
    if (version := installed("onnxruntime")) is not None:
        require_codes(version, _KEY)
    if job.calibration is None and job.recipe.calibration_source is None:
        raise InputRefused(
            "the scales of the cache follow from calibration samples and there are none",
            where=_KEY,
            hint="give --calibration PATH, `calibration: {source: ...}` in the recipe or "
            "calibration=batches in Python",
        )


def quantize_cache(build: Build, runner: Steps) -> None:
    """Store the cache of the quantized graph as codes. A graph of floats keeps its cache, so the
    baseline does too."""
    wanted = _wanted(build.job)
    if wanted is None:
        return
    samples = observed(build, runner)
    assert samples is not None
    step = QuantizeCache(
        graph=build.graph, samples=samples, batch=sample_batch(build), dtype=wanted
    )
    build.graph = runner.do(step, f"store the key-value cache in {wanted}")


def _wanted(job: Job) -> Literal["int8", "int4"] | None:
    """The encoder of an encoder-decoder has no cache of its own."""
    quantizes = job.precision.quantized and job.part != "encoder"
    return job.recipe.quantization.kv_cache if quantizes else None
