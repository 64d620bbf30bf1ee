"""The method for a model whose FP32 graph does not fit in `--memory`, chosen before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build

Way = Literal["whole", "layers", "pieces", "parts"]
_BYTES = 4  # per parameter, as FP32
_BYTES_TO_RUN = 8  # per parameter: FP32, and the runtime's copy
_BYTES_TO_CALIBRATE = 12  # per parameter: those, and second moments
_LEARNED = ("auto", "gptq", "awq")
_DATA_FREE = ("auto", "rtn", "mse")
# experiments/large/results.json: seconds per 10^9 parameters, with 1,024 tokens to calibrate; the
# most bytes of memory in pieces
_SECONDS: Mapping[Way, float] = {"parts": 690.0, "pieces": 127.0}
_PIECES = 1 << 30
_TOO_LARGE = "the model is larger than --memory allows for a run: "
UNJUDGED = f"{_TOO_LARGE}activations were judged at their products, not at the outputs of the model"
UNCOMPENSATED = f"{_TOO_LARGE}weights do not make up for the errors of the layers before them"


def way_of(
    build: Build, rules: Mapping[Precision, PlacementRules], runner: Steps, *, rescales: bool
) -> Way:
    """How the graph of a build is quantized; a note has an estimate if it does not fit.
    `rescales`: weights may get factors. Raises InputRefused if trained scales would be quantized in
    another way than as a whole."""
    job, method = build.job, build.job.recipe.quantization
    limit = runner.limits.memory_bytes
    uses_samples = build.calibration is not None and (method.learns or method.weights == "awq")
    found = way(
        build.source.parameters, limit, rules, method.weights, sampled=uses_samples, where=job.name
    )
    if build.source.trained and found != "whole":
        raise InputRefused(
            "trained scales need the whole graph in memory", where=job.name, hint="raise --memory"
        )
    if found != "whole" and job.precision.weights is not None:
        bits = job.precision.weights.bits
        runner.note(estimate(found, build.source.parameters, limit, bits, rescales=rescales))
    return found


def way(
    parameters: int,
    limit: int,
    rules: Mapping[Precision, PlacementRules],
    weights: str,
    *,
    sampled: bool,
    where: str,
) -> Way:
    """How the model is quantized: calibrated and decided as one graph ("whole"), GPTQ or AWQ part
    by part ("layers"), each weight by itself without data ("pieces"), or calibrated part by part,
    and then decided weight by weight ("parts").

    `rules`: placement rules by precision; `weights`: the recipe's method; `sampled`: there are
    calibration samples, and the method uses them. Raises InputRefused if only "whole" is possible
    and the weights alone exceed the limit.
    """
    if parameters * _BYTES_TO_CALIBRATE <= limit:
        return "whole"
    if not all(placement.weights_in_blocks for placement in rules.values()):
        return "whole" if parameters * _BYTES_TO_RUN <= limit else "parts"
    if sampled and weights in _LEARNED:
        return "layers"
    if weights in _DATA_FREE:
        return "pieces"
    if parameters * _BYTES <= limit:
        return "whole"
    raise InputRefused(
        f"{', '.join(map(str, rules))} with weights={weights} runs the whole model, which takes "
        f"{parameters * _BYTES / 2**30:.3g} GiB as FP32; the limit is {limit / 2**30:.3g} GiB",
        where=where,
        hint="raise --memory, or take another of quantization.weights: auto, gptq and awq (with "
        "samples), mse and rtn go through the model layer by layer",
    )


def estimate(found: Way, parameters: int, limit: int, bits: int, *, rescales: bool) -> str:
    """What the quantization of a model larger than memory takes, before it starts. `bits`: of a
    code; `rescales`: weights may get factors, and are then written again in FP32."""
    codes = parameters * bits / 8
    disk = codes if found == "pieces" else 2 * codes  # codes wait until the graph is written
    if rescales and found == "parts":
        disk += parameters * _BYTES
    what = {"pieces": "its weights are quantized in pieces"}.get(found, "it goes part by part")
    memory = min(limit, _PIECES) if found == "pieces" else limit
    told = f"{disk / 2**30:.2g} GiB of disk, at most {memory / 2**30:.2g} GiB of memory"
    if found in _SECONDS:
        minutes = max(_SECONDS[found] * parameters / 60e9, 1.0)
        told += f", about {minutes:.2g} min (as 1.24 B parameters took on two busy cores)"
    return f"the model does not fit in --memory, so {what}. Estimate, not measured: {told}"


def planned_memory(limit: int) -> int:
    """The limit, rounded down to three binary digits. The key of the step contains it, because the
    result depends on it. The default limit follows the free memory: without rounding, no two runs
    would have the same key."""
    step = 1 << max(limit.bit_length() - 3, 0)
    return limit // step * step
