from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.tensors import InputSpec
from optkit.ground.execute.step import Step, StepInput, StepResult, always, named


@dataclass(frozen=True, kw_only=True)
class DataCheck(StepResult):
    """Verdict "clean" or "suspect", and the findings, in the form of the result object."""

    check: Mapping[str, object]
    warnings: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class CheckData(Step[DataCheck]):
    """Check that calibration data looks like what the model expects, before the long steps use it.
    `graph`: the exported graph, of which only the nodes up to the first batch norm run. The inputs
    have the ranges that the recipe declares. `without`: inputs with NaN or infinities, which are
    not looked at."""

    name = "check_data"
    version = 2
    tools = ("onnxruntime", "numpy", "onnx-ir")
    stays = True

    samples: StepInput
    graph: StepInput
    evaluation: StepInput | None = None
    specs: tuple[InputSpec, ...] = named("inputs")
    without: tuple[str, ...] = ()
