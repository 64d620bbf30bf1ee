from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class CheckFinite(Step[StepResult]):
    """Check that the model takes the samples that contain NaN or infinities: that it computes
    numbers from them, because it masks or replaces such values. `graph`: the exported graph."""

    name = "check_finite"
    version = 1
    tools = ("onnxruntime", "numpy")
    stays = True

    samples: StepInput
    graph: StepInput
