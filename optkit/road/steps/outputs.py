from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optkit.facts.evidence import Evidence
from optkit.ground.execute.step import Shards, Step, StepInput, StepResult, beside_the_key, spread
from optkit.road.steps.sessions import Engines


@dataclass(frozen=True, kw_only=True)
class Outputs(StepResult):
    """The outputs of each batch of the samples. `kept`: False if they would take too much space;
    then there is no file."""

    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class KeepOutputs(Shards, Step[Outputs]):
    """Run a graph, or its engine, on samples, and keep what it returns, so that the user's code can
    score it again when this code changes. `file`, `running`, `kept`: as in `Evaluate`; `most`:
    bytes that may be kept."""

    name = "outputs"
    version = 1
    tools = ("onnxruntime", "numpy")

    graph: StepInput
    samples: StepInput
    engine: StepInput | None = None
    baseline_engine: StepInput | None = None
    file: str
    batch: int | None
    evidence: Evidence
    most: int
    running: Engines | None = spread(None)
    kept: Path | None = beside_the_key(None)
