from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optkit.facts.assignment import Scheme
from optkit.facts.placement import ProductForm
from optkit.ground.execute.step import Step, StepInput, StepResult, always, spread
from optkit.road.steps.quantize import QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class CoveredSizes(StepResult):
    """`widened`: the number of values whose statistics are new; 0: there is no file of statistics.
    `nodes`: those whose activation no range serves at all sizes, and the form of their products;
    `reasons`: why."""

    widened: int = 0
    nodes: dict[str, ProductForm] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class CoverSizes(Step[CoveredSizes]):
    """Statistics of the usual samples, and those at the ends of the declared sizes → statistics
    whose ranges hold at all of them, see `quantization.covering`.

    `least`, `largest`: statistics of samples at these ends; `at`: end → its sizes in words; other
    fields as in `FindNoisyNodes`.
    """

    name = "cover_sizes"
    version = 5
    tools = ("numpy", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
    statistics: StepInput
    least: StepInput | None = None
    largest: StepInput | None = None
    at: Mapping[str, str]
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    sizes: Mapping[str, int]
