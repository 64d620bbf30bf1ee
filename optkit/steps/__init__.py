"""The table of steps: all that a worker may run, each from files and parameters to files.

A module of this package says what a step is: identity, inputs, parameters, result. What it does is
the module of the same name in `bodies`, which a worker imports when it runs the step, so that the
parent can read the table in a millisecond, and foreign code and native libraries are opened in the
child alone. The steps that score, measure, predict and search are still functions:

    step(inputs: name → path, params, out folder, progress) -> meta (JSON)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optkit.execute import step as typed
from optkit.execute.runner import StepKind, kind_of
from optkit.steps.accept import Accept
from optkit.steps.adopt import Adopt
from optkit.steps.attributing import attribute
from optkit.steps.calibrate import Calibrate
from optkit.steps.cast import Cast
from optkit.steps.check_data import CheckData
from optkit.steps.collect import Collect
from optkit.steps.compile import Compile
from optkit.steps.divide import Divide
from optkit.steps.draw import Draw
from optkit.steps.export import Export
from optkit.steps.files import (
    ASSETS,
    GRAPH,
    RAW_SCORES,
    SCORES,
    SIMULATION,
    STATISTICS,
    TIMES,
    Inputs,
    Params,
    Progress,
)
from optkit.steps.fuse import Fuse
from optkit.steps.likeness import compare_layers
from optkit.steps.measuring import bench, compare, evaluate, predict
from optkit.steps.memory import peak
from optkit.steps.ort import ToOrt
from optkit.steps.outline import Outline
from optkit.steps.prepare import Prepare
from optkit.steps.quantize import Quantize
from optkit.steps.quantize_layers import QuantizeLayers
from optkit.steps.random import Random
from optkit.steps.searching import deviate, sensitivity, survey
from optkit.steps.summary import Summarize

__all__ = [
    "ASSETS",
    "GRAPH",
    "RAW_SCORES",
    "SCORES",
    "SIMULATION",
    "STATISTICS",
    "STEPS",
    "TIMES",
    "Step",
]


@dataclass(frozen=True)
class Step:
    """A step's identity and the function that performs it."""

    kind: StepKind
    run: Callable[[Inputs, Params, Path, Progress], dict[str, Any]]


def _listed(step: type[typed.Step[typed.Result]]) -> Step:
    """A typed step as the worker runs it."""

    def run(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
        return step.of(inputs, params).run(out, progress).to_json()

    return Step(kind_of(step), run)


_TYPED: tuple[type[typed.Step[typed.Result]], ...] = (
    Export, Adopt, Fuse, Cast, Collect, Divide, Draw, CheckData, Random, Calibrate, Prepare,
    Quantize, QuantizeLayers, ToOrt, Accept, Compile, Outline, Summarize,
)  # fmt: skip
_RESUMING = ("evaluate", "compare")
_STAYING = ("compare", "compare_layers", "predict", "survey", "sensitivity", "deviate")
_SHARDING = ("evaluate", "compare")

STEPS: Mapping[str, Step] = MappingProxyType(
    {step.name: _listed(step) for step in _TYPED}
    | {
        name: Step(
            StepKind(
                name,
                version,
                tools,
                resumes=name in _RESUMING,
                stays=name in _STAYING,
                shards=name in _SHARDING,
            ),
            run,
        )
        for name, version, tools, run in (
            ("evaluate", 5, ("onnxruntime", "numpy"), evaluate),
            ("compare", 5, ("onnxruntime", "numpy"), compare),
            ("bench", 5, ("onnxruntime", "numpy"), bench),
            (
                "compare_layers",
                4,
                ("onnxruntime", "numpy", "onnx", "onnx-ir"),
                compare_layers,
            ),
            ("peak", 2, ("onnxruntime",), peak),
            ("predict", 3, ("onnx", "onnx-ir"), predict),
            ("attribute", 2, ("onnxruntime", "onnx", "onnx-ir"), attribute),
            ("survey", 1, ("onnx", "onnx-ir"), survey),
            ("sensitivity", 3, ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes"), sensitivity),
            ("deviate", 2, ("onnxruntime", "numpy"), deviate),
        )
    }
)
