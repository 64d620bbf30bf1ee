from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.engines import SEARCH_MINUTES, BuildSpec, Engine
from optkit.facts.precisions import Precision
from optkit.ground import runtimes
from optkit.ground.execute.step import Step, StepInput, StepResult, beside_the_key

_TIMING_SECONDS = 12 * 3600.0


@dataclass(frozen=True, kw_only=True)
class CompiledEngine(StepResult):
    """The file of an engine, and the compiler's description of it."""

    engine: Engine


@dataclass(frozen=True, kw_only=True)
class Compile(Step[CompiledEngine]):
    """graph → engine file, with the fused layers and the landing that the compiler reports.

    `planned`: node → precision; `versions`: those of the backend's library; `host`: the machine, if
    the engine depends on it; `kept`: a folder outside the folder of the step, for the caches that a
    library keeps for this device.
    """

    name = "compile"
    version = 4

    graph: StepInput
    backend: str
    spec: BuildSpec
    planned: Mapping[str, Precision]
    versions: Mapping[str, str]
    host: Mapping[str, object] | None
    kept: Path | None = beside_the_key(None)

    @property
    def shares_worker(self) -> bool:
        """An engine that is the graph itself needs no compiler."""
        return runtimes.backend(self.backend).traits.engine == "graph"

    @property
    def limit_seconds(self) -> float:
        """A compiler that times kernels on the device takes minutes to hours."""
        searches = self.spec.options.get(SEARCH_MINUTES)
        return _TIMING_SECONDS + 60 * searches if isinstance(searches, int | float) else 0.0
