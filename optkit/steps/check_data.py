from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.execute.step import Input, Result, Step, always, named
from optkit.recipe import InputSpec


@dataclass(frozen=True, kw_only=True)
class DataCheck(Result):
    """Verdict "clean" or "suspect", and the findings, as the result has them."""

    check: Mapping[str, object]
    warnings: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class CheckData(Step[DataCheck]):
    """Whether calibration data is what the model expects, told before hours are spent on it.
    `graph`: the model's as exported, of which only the nodes up to the first batch-norm are run;
    the inputs are given with the ranges that the recipe declares."""

    name = "check_data"
    version = 2
    tools = ("onnxruntime", "numpy", "onnx-ir")
    stays = True

    samples: Input
    graph: Input
    evaluation: Input | None = None
    specs: tuple[InputSpec, ...] = named("inputs")
