"""What the simulation of a build assumes of the kernels of its target."""

from __future__ import annotations

from optkit.facts.documents.report import Simulation
from optkit.facts.dtypes import FLOATS
from optkit.road.pipeline.job import Build
from optkit.road.steps.file_names import SIMULATION


def assumed(build: Build) -> Simulation | None:
    """The assumptions for the report; None if the graph was measured, or has FP32 carriers."""
    quantized = build.job.precision.quantized
    carrier = (build.baseline_precision if quantized else build.job.precision).name
    if build.measured or carrier not in ("fp16", "bf16"):
        return None
    kind = FLOATS["bfloat16" if carrier == "bf16" else "float16"]
    half, largest = kind.short.upper(), f"{kind.largest:.6g}"
    if build.simulation == SIMULATION:
        said = (
            f"Each kernel adds in FP32 and rounds its result once to {half}, beyond {largest} to "
            "an infinity; a product, the constants added to it or multiplied by it, and the "
            "activation behind them are one kernel, and a kernel that fuses more rounds less often"
        )
    else:  # quantized piece by piece
        said = (
            "The graph is too large to be written a second time, so it is not simulated: ONNX "
            "Runtime runs it on a CPU, most of it in FP32, and does not round every value between "
            f"two kernels to {half}; beyond {largest} a value may stay finite"
        )
    return Simulation(carrier="bf16" if carrier == "bf16" else "fp16", sums="fp32", assumed=said)
