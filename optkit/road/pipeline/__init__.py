"""The order of a build. No other module knows it.

    source ─export→ graph ─fuse→ graph ─┬─ calibrate (FP32) → statistics ─┐
                                        └─ cast FP16 (TensorRT family) ───┼─ quantize → graph ─┐
                                                   └─ baseline graph ──────────── compile → engines
    engines ─measure or predict→ latency;  graphs ─evaluate→ accuracy ─gate→ verdict → artifact

A candidate that is slower than its baseline goes back to `quantize` (`faster_placement`).

If another tool has quantized the source, its Q/DQ graph takes the place of the quantized graph, and
the same without Q/DQ is the graph (`separate`).

Each arrow is a step whose result the store keeps, so a second run of a build resumes it. On CPUs
there is no cast: carriers and baseline are FP32. `findings` computes the figures and the verdict
from the results of the steps; `delivery` writes the artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optkit.facts import codec
from optkit.ground import store
from optkit.ground.execute.installed import installed
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import Foreign
from optkit.road.pipeline.attribution import attribute, count_padding
from optkit.road.pipeline.collected import COMPARED
from optkit.road.pipeline.compilation import accept, compile_
from optkit.road.pipeline.evaluation import evaluate
from optkit.road.pipeline.faster_placement import place_faster
from optkit.road.pipeline.foreign_graph import quantized_to, separate
from optkit.road.pipeline.graphs import cast_carriers, fuse, write_baseline
from optkit.road.pipeline.job import Build, Job, calibration_of
from optkit.road.pipeline.job_rules import rules_of
from optkit.road.pipeline.layer_fidelity import compare_layers
from optkit.road.pipeline.peak_memory import weigh
from optkit.road.pipeline.quantization import quantize
from optkit.road.pipeline.refusals import bound, check, check_pair, check_timed, trained
from optkit.road.pipeline.sample_checks import check_data
from optkit.road.pipeline.sources import (
    collect,
    data_of,
    export,
    parts,
    positions,
    signature,
    windows,
)
from optkit.road.pipeline.timing import time
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph

__all__ = [
    "AS_PLACED",
    "BENCH",
    "BUILD",
    "COMPARED",
    "COMPILE",
    "EVAL",
    "EXAMINE",
    "EXPORT",
    "FUSE",
    "QUANTIZE",
    "Build",
    "Foreign",
    "Job",
    "Stage",
    "calibration_of",
    "check",
    "check_pair",
    "check_timed",
    "data_of",
    "identity",
    "parts",
    "positions",
    "quantized_to",
    "rules_of",
    "run",
    "signature",
    "tool_versions",
    "windows",
]

_VERSIONED = ("optkit", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu",
              "tensorrt-rtx", "tensorrt", "numpy", "ml-dtypes")  # fmt: skip

Stage = Callable[[Build, Steps], None]

EXPORT: tuple[Stage, ...] = (export,)
EXAMINE: tuple[Stage, ...] = (export, bound, collect)
FUSE: tuple[Stage, ...] = (export, separate, fuse)
QUANTIZE: tuple[Stage, ...] = (*FUSE, collect, check_data, cast_carriers, quantize)
COMPILE: tuple[Stage, ...] = (
    export,
    bound,
    separate,
    fuse,
    accept,
    *QUANTIZE[3:],
    write_baseline,
    compile_,
)
EVAL: tuple[Stage, ...] = (export, trained, bound, *QUANTIZE[1:], write_baseline, evaluate)
BENCH: tuple[Stage, ...] = (*COMPILE, time)
_TIMED = (export, trained, *COMPILE[1:], time, evaluate)
_TOLD = (compare_layers, weigh, count_padding, attribute)
AS_PLACED: tuple[Stage, ...] = (*_TIMED, *_TOLD)
BUILD: tuple[Stage, ...] = (*_TIMED, place_faster, *_TOLD)


def run(job: Job, runner: Steps, stages: Sequence[Stage]) -> Build:
    """Run `stages`, in order, for one job. Raises what a step raises. The store keeps the steps
    that are complete, so the same call later continues where this one ended."""
    build = check(job)
    for stage in stages:
        stage(build, runner)
    runner.tell_cost()
    return build


def identity(build: Build) -> str:
    """`manifest.digest`: what was built, without engine bytes, timings, measurements and paths."""
    assignment = build.assignment
    return store.digest_json(
        {
            "recipe": build.job.recipe.to_json(),
            "target": build.job.target.name,
            "precision": build.job.precision.name,
            "graph": _model_files(build.graph),
            "baseline": _model_files(build.baseline),
            "statistics": None if build.statistics is None else build.statistics.digest,
            "assignment": codec.to_json(assignment),
            "spec": {role: codec.to_json(spec) for role, spec in sorted(build.build_spec.items())},
            "versions": tool_versions(),
        }
    )


def tool_versions() -> dict[str, str]:
    """Installed versions of everything that a build may depend on."""
    return {name: found for name in _VERSIONED if (found := installed(name)) is not None}


def _model_files(entry: Graph) -> dict[str, str]:
    """The file of the graph and the files of its weights, with their digests."""
    return {name: sha for name, sha in entry.files.items() if name.startswith(GRAPH)}
