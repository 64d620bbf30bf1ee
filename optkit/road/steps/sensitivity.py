from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.assignment import Scheme
from optkit.facts.measurement import Deviation
from optkit.ground.execute.step import Step, StepInput, StepResult, named, spread
from optkit.ground.recipe import Method, Quantization


@dataclass(frozen=True, kw_only=True)
class Sensitivities(StepResult):
    """The noise at the outputs for each group."""

    rows: tuple[Deviation, ...]


@dataclass(frozen=True, kw_only=True)
class MeasureSensitivity(Step[Sensitivities]):
    """The noise at the outputs when only one group of layers is quantized, for each group.

    `groups`: names of nodes; `count`: the number of samples, `batch` per run; the other fields are
    as in `Quantize`.
    """

    name = "sensitivity"
    version = 8
    tools = ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
    samples: StepInput
    statistics: StepInput | None = None
    scheme: Scheme = spread()
    groups: tuple[tuple[str, ...], ...]
    method: Method
    percentile: float
    settings: Quantization
    count: int = named("samples")
    batch: int | None
