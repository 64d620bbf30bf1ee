"""The table of steps: all that a worker may run, each from files and parameters to files.

    step(inputs: name → path, params, out folder, progress) -> meta (JSON)

A step opens foreign code and native libraries only here, in the child. Each imports its stage when
it runs, so that the parent can read the table (names, versions, tools) in a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optkit.execute.runner import StepKind
from optkit.steps.attributing import attribute
from optkit.steps.data_check import check_data
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
from optkit.steps.graphs import adopt, cast, export, fuse, ort, summary
from optkit.steps.layers import quantize_layers
from optkit.steps.likeness import compare_layers
from optkit.steps.measuring import accept, bench, compare, compile_, evaluate, predict
from optkit.steps.memory import peak
from optkit.steps.outlining import OUTLINE, SCALES, outline
from optkit.steps.quantizing import calibrate, prepare, quantize
from optkit.steps.samples import collect, divide, draw, random
from optkit.steps.searching import deviate, sensitivity, survey

__all__ = [
    "ASSETS",
    "GRAPH",
    "OUTLINE",
    "RAW_SCORES",
    "SCALES",
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


_RESUMING = ("calibrate", "quantize_layers", "evaluate", "compare")
_STAYING = ("adopt", "fuse", "cast", "divide", "check_data", "calibrate", "prepare", "quantize",
            "ort", "compare", "compare_layers", "predict", "summary", "outline", "survey",
            "sensitivity", "deviate")  # fmt: skip
_SHARDING = ("calibrate", "evaluate", "compare")

STEPS: Mapping[str, Step] = MappingProxyType(
    {
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
            ("export", 4, ("torch", "onnxscript", "onnx", "onnx-ir"), export),
            ("adopt", 1, ("onnx", "onnx-ir"), adopt),
            ("fuse", 7, ("onnx", "onnx-ir", "onnxscript", "onnxruntime"), fuse),
            ("cast", 3, ("onnxruntime", "numpy", "onnx", "onnx-ir"), cast),
            ("collect", 7, ("numpy", "safetensors"), collect),
            ("divide", 2, ("onnxruntime", "numpy", "safetensors"), divide),
            ("draw", 1, ("numpy", "safetensors"), draw),
            ("check_data", 2, ("onnxruntime", "numpy", "onnx-ir"), check_data),
            ("random", 5, ("numpy", "safetensors"), random),
            ("calibrate", 4, ("onnxruntime", "numpy", "onnx-ir"), calibrate),
            ("prepare", 2, ("onnxruntime", "numpy", "onnx-ir"), prepare),
            ("quantize", 4, ("numpy", "onnx", "onnx-ir", "ml-dtypes"), quantize),
            (
                "quantize_layers",
                1,
                ("onnxruntime", "numpy", "onnx", "onnx-ir", "ml-dtypes"),
                quantize_layers,
            ),
            ("ort", 9, ("onnx", "onnx-ir"), ort),
            ("accept", 1, (), accept),
            ("compile", 3, (), compile_),
            ("evaluate", 5, ("onnxruntime", "numpy"), evaluate),
            ("compare", 5, ("onnxruntime", "numpy"), compare),
            ("bench", 5, ("onnxruntime", "numpy"), bench),
            (
                "compare_layers",
                4,
                ("onnxruntime", "numpy", "onnx", "onnx-ir"),
                compare_layers,
            ),
            ("outline", 1, ("onnx", "onnx-ir"), outline),
            ("peak", 2, ("onnxruntime",), peak),
            ("predict", 3, ("onnx", "onnx-ir"), predict),
            ("attribute", 2, ("onnxruntime", "onnx", "onnx-ir"), attribute),
            ("summary", 1, ("onnx", "onnx-ir"), summary),
            ("survey", 1, ("onnx", "onnx-ir"), survey),
            ("sensitivity", 3, ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes"), sensitivity),
            ("deviate", 2, ("onnxruntime", "numpy"), deviate),
        )
    }
)
