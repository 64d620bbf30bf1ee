from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optkit.facts.assignment import Scheme
from optkit.facts.placement import ProductForm
from optkit.ground.execute.step import Step, StepInput, StepResult, spread
from optkit.road.steps.quantize import QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class NoisyNodes(StepResult):
    """`nodes`: those whose activation needs more than one scale for all of it, and the form of
    their products; `reasons`: why each has this form. The noise at the outputs, relative to their
    power, of activations with one scale: `noise` of those that may have more, `others` of the rest;
    None: not measured."""

    nodes: dict[str, ProductForm] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    noise: float | None = None
    others: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FindNoisyNodes(Step[NoisyNodes]):
    """Products whose activation needs more than one scale: where this leaves too much noise in the
    product, and so many more that little noise is left at the outputs of the model; and the form
    of them that is fastest. The fields are as in `Quantize`; `sizes`: of named axes."""

    name = "noisy_nodes"
    version = 8  # recurrent cells
    tools = ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
    statistics: StepInput
    samples: StepInput
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    sizes: Mapping[str, int]
