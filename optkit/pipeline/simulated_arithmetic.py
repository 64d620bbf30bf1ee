"""What the simulation of a build assumes of the kernels of its target."""

from __future__ import annotations

from optkit.documents.report import Simulation
from optkit.dtypes import FLOATS
from optkit.pipeline.job import Build
from optkit.steps.files import SIMULATION


def assumed(build: Build) -> Simulation | None:
    """The assumptions for the report; None if the graph was measured, or has FP32 carriers."""
    if build.measured or build.simulation != SIMULATION:
        return None
    quantized = build.job.precision.quantized
    carrier = build.baseline_precision if quantized else build.job.precision
    kind = FLOATS["bfloat16" if carrier.name == "bf16" else "float16"]
    return Simulation(
        carrier="bf16" if carrier.name == "bf16" else "fp16",
        sums="fp32",
        assumed=f"Each kernel adds in FP32 and rounds its result once to {kind.short.upper()}, "
        f"beyond {kind.largest:.6g} to an infinity; a product, the constants added to it or "
        "multiplied by it, and the activation behind them are one kernel, and a kernel that fuses "
        "more rounds less often",
    )
