"""Forms of the graph: fused, cast to its carriers, in the operators of the backend."""

from __future__ import annotations

from typing import Any

from optkit.execute.runner import Input, Made, Steps
from optkit.pipeline.job import Build, calibration_of
from optkit.pipeline.sources import given_samples
from optkit.steps import STEPS

_BYTES_TO_COMPARE = 12  # per parameter: float32, of two sessions, one laying its copy out anew

_BYTES_TO_MEASURE = 8  # per parameter: float32, and laid out anew by the runtime


def fuse(made: Build, runner: Steps) -> None:
    """graph → graph: the `standard` form, compared before and after where memory allows it."""
    source = made.entries["source"]
    params, here = comparison(made, runner, "fused")
    inputs: dict[str, Input] = {"graph": source}
    # a shape or an axis that is an input: random numbers may be none, and samples are
    if any(one["numbers"] is None for one in params.get("arguments", {}).values()):
        samples = given_samples(made, runner)
        inputs |= {} if samples is None else {"samples": samples}
    made.entries["fused"] = runner.step(STEPS["fuse"].kind, "fuse", inputs, params, here)


def carry(made: Build, runner: Steps) -> None:
    """The carriers: FP16 on GPUs, FP32 on a CPU; and the casts that the job asks for."""
    fused, entries = made.entries["fused"], made.entries
    wanted = {made.baseline_precision.name, made.job.precision.name}
    casts: dict[str, Made] = {
        name: cast(made, fused, name, runner) for name in ("fp16", "bf16") if name in wanted
    }
    entries["carrier"] = casts.get(made.baseline_precision.name, fused)
    if casts:
        entries["cast"] = casts.get(made.job.precision.name, entries["carrier"])


def refer(made: Build, runner: Steps) -> None:
    """What the candidate is compared with: the carrier graph in the backend's own operators, so
    that a speedup is due to precision alone."""
    carrier = made.entries["carrier"]
    made.entries["baseline"] = written(made, carrier, made.baseline_precision.name, runner)


def cast(made: Build, graph: Made, carrier: str, runner: Steps, what: str = "") -> Made:
    """FP32 graph → its cast, with FP32 islands by the reach of values on calibration samples, else
    on evaluation samples or random inputs; by the operators alone where memory forbids a run."""
    label = f"cast {what}to {carrier.upper()}"
    params, inputs = {"carrier": carrier}, {"graph": graph}
    needed = _BYTES_TO_MEASURE * made.entries["source"].meta.get("parameters", 0)
    limit = runner.limits.memory_bytes
    if needed > limit:
        reason = (
            f"values were not measured for the cast to {carrier.upper()}: a run needs about "
            f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
        )
        return runner.step(STEPS["cast"].kind, label, inputs, params, {"unmeasured": reason})
    role = next((r for r in ("calibration", "evaluation") if r in made.entries), "probe")
    told = "random inputs" if role == "probe" else f"{role} samples"
    return runner.step(
        STEPS["cast"].kind,
        label,
        {**inputs, "samples": made.entries[role]},
        # one at a time: the runtime keeps all watched values, and larger batches are no faster
        {**params, "batch": sample_batch(made) and 1, "what": told},
    )


def sample_batch(made: Build) -> int | None:
    """Samples per run of the graph; None, as they were written, where its batch size is fixed."""
    found: int = calibration_of(made.job.recipe)["batch"]
    return found if isinstance(made.batch_axis, str) else None


def written(made: Build, graph: Made, what: str, runner: Steps) -> Made:
    """The graph in the operators of ONNX Runtime, where the backend wants them."""
    if made.traits.operators == "standard":
        return graph
    label = f"write {what} in ONNX Runtime's operators"
    return runner.step(STEPS["ort"].kind, label, {"graph": graph}, {})


def comparison(made: Build, runner: Steps, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, what is only here) of a step that compares its graph with the one it is given,
    where memory allows to run both."""
    params, limit = made.sizes, runner.limits.memory_bytes
    needed = _BYTES_TO_COMPARE * made.entries["source"].meta.get("parameters", 0)
    if needed <= limit:
        return params, {}
    reason = (
        f"the {what} graph is not compared with what it was made of: running both needs about "
        f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
    )
    return {**params, "compare": False}, {"uncompared": reason}
