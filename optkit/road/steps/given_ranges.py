from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.calibrate import CalibrationResult


@dataclass(frozen=True, kw_only=True)
class TakeRanges(Step[CalibrationResult]):
    """FP32 graph and a file with ranges that another tool has chosen → statistics with these ranges
    of every value that a family would quantize (as in `Calibrate`). Values that the file does not
    name keep their `statistics`; without these they have no range, so what reads them stays in
    floats."""

    name = "given_ranges"
    version = 1
    tools = ("numpy", "onnx-ir")
    stays = True

    graph: StepInput
    ranges: StepInput
    statistics: StepInput | None = None
    families: tuple[Mapping[Precision, PlacementRules], ...]
