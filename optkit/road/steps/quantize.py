from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from optkit.facts.assignment import Assignment, Scheme
from optkit.ground.execute.step import Step, StepInput, always, beside_the_key, spread
from optkit.ground.recipe import Method, Quantization
from optkit.road.steps.graph import Rewritten


@dataclass(frozen=True)
class QuantizationSettings:
    """The recipe's settings of a quantization. `order`: the order of the patterns in
    `settings.nodes`, because the last pattern that matches counts. The digest needs it, because the
    keys of a JSON object have no order."""

    method: Method
    percentile: float
    settings: Quantization
    order: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QuantizationResult(Rewritten):
    """The quantized graph, with the precision of each node, and the reasons of nodes that are not
    quantized."""

    assignment: Assignment = always(Assignment())

    @property
    def has_codes(self) -> bool:
        """Whether a product or an embedding table is quantized."""
        return bool(self.assignment.planned() or self.log.get("embeddings"))


@dataclass(frozen=True, kw_only=True)
class Quantize(Step[QuantizationResult]):
    """Assignment and qparams, then Q/DQ on the carrier graph; if the carriers are not FP32, also
    the simulation.

    `planned_memory`: the weights are quantized one after the other within these bytes of memory;
    None: all of them may be in memory. `left_out`: what this size of the model does not allow.
    """

    name = "quantize"
    version = 18  # recurrent cells
    tools: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    fused: StepInput
    carrier: StepInput
    statistics: StepInput | None = None
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    planned_memory: int | None = None
    left_out: tuple[str, ...] = beside_the_key(())
