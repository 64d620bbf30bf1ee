from __future__ import annotations

from dataclasses import dataclass, field

from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Fidelity
from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class ComparedSizes(StepResult):
    """Point of the declared sizes → the fidelity there; or `failed`: why there is none. `broken`:
    the points at which the reference has outputs and the candidate has none, or none that are
    finite."""

    fidelity: dict[str, Fidelity] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompareSizes(Step[ComparedSizes]):
    """Fidelity of a graph's outputs at points of the declared sizes, to those of the `reference`.
    `least` to `largest`: samples of these sizes; the other fields are as in `CompareOutputs`."""

    name = "compare_sizes"
    version = 2
    tools = ("onnxruntime", "numpy")
    stays = True

    graph: StepInput
    reference: StepInput
    least: StepInput | None = None
    shorter: StepInput | None = None
    longer: StepInput | None = None
    largest: StepInput | None = None
    file: str
    evidence: Evidence
    to: str = "fp32"
