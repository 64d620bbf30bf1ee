"""What is asked for, and what the chain has made of it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optkit import runtimes
from optkit.devices import Target, gpus
from optkit.devices.machine import cpu_target
from optkit.engines import BuildSpec
from optkit.evidence import Evidence
from optkit.execute.step import Folder, Input
from optkit.precisions import Precision, precision
from optkit.recipe import MEMORY, Calibration, Recipe
from optkit.runtimes import Traits
from optkit.steps import GRAPH, SIMULATION
from optkit.steps.graph import Graph, RandomInputs
from optkit.tensors import AxisRange, TensorInfo


@dataclass(frozen=True)
class Job:
    """One model for one target in one precision.

    `deferred`: its engine is left to a host that finishes the artifact, whatever this one could do.
    `strict`: a latency that was measured under bad conditions is measured once more, and a model
    without weights is refused.
    `graph`, `calibration`: in the store already when they came from memory (an nn.Module, a
    loader); otherwise the recipe says where they come from. `code`: the folder from which
    package.module:factory is imported.
    """

    recipe: Recipe
    target: Target
    precision: Precision
    deferred: bool = False
    strict: bool = False
    graph: Input | None = None
    calibration: Folder | None = None
    code: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe.name}-{self.target.name}-{self.precision}"

    @property
    def part(self) -> str | None:
        """Which graph of an encoder-decoder this is: encoder or decoder; None of other models."""
        source = self.recipe.source
        return source.part if source is not None else None

    @property
    def quantized(self) -> list[Precision]:
        """The quantized precisions that layers may get: the job's own, if it is one, then those
        that its recipe gives to nodes."""
        if not self.precision.quantized:
            return []
        of_nodes = map(precision, sorted(self.recipe.quantization.nodes.values()))
        wanted = {one.name: one for one in (self.precision, *of_nodes)}
        return [one for one in wanted.values() if one.quantized]


@dataclass
class Build:
    """What the chain made: store entries by role, and facts about the job. All of it is on disk.

    `measured`: the target is this machine, or the kind of CPU that it is of, so that running is
    measuring. `recalled`: the latency was in the store before this run.
    """

    job: Job
    backend: str | None  # None: nothing compiles here for this target
    pending: tuple[str, ...]
    baseline_precision: Precision
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    measured: bool = False
    recalled: bool = False
    specs: dict[str, BuildSpec] = field(default_factory=dict)
    entries: dict[str, Folder] = field(default_factory=dict)

    @property
    def batch_axis(self) -> int | str | None:
        """Axis 0 of the first input, its name or its fixed size; None: no input has axes."""
        return next((info.shape[0] for info in self.inputs if info.shape), None)

    @property
    def batches(self) -> AxisRange | None:
        """The batch sizes that are built for."""
        axis = self.batch_axis
        if isinstance(axis, int):
            return AxisRange(axis, axis, axis)
        return self.job.recipe.axis_ranges().get(axis or "")

    @property
    def batch(self) -> int | None:
        """The batch size that is tuned for."""
        return self.batches.opt if self.batches else None

    @property
    def compiler(self) -> str:
        """The backend whose engine this is about: which compiles here, or else is pending."""
        return self.backend or self.pending[0]

    @property
    def traits(self) -> Traits:
        """Of the compiler."""
        return runtimes.backend(self.compiler).traits

    @property
    def runs_engines(self) -> bool:
        """Whether this machine has the device, and engines run there: the target is no CPU."""
        return self.measured and not self.traits.on_cpu

    @property
    def sizes(self) -> RandomInputs:
        """What random feeds are drawn from. An input with a declared range, such as token ids, is
        drawn from it whatever reads it."""
        recipe, source = self.job.recipe, self.entries.get("source")
        specs = recipe.describe(self.inputs)
        drawn = {spec.info.name for spec in specs if spec.range is not None}
        known = source.arguments if isinstance(source, Graph) else {}
        arguments = {name: known[name] for name in known if name not in drawn}
        return RandomInputs(specs, recipe.axis_ranges(), arguments)

    @property
    def assignment(self) -> dict[str, Any] | None:
        """Precision by node and the reasons of those left, as JSON; None before quantization."""
        quantized = self.entries.get("quantized")
        return quantized.meta.get("assignment") if quantized is not None else None

    @property
    def planned(self) -> dict[str, str]:
        """Node → precision, of those that are quantized."""
        from optkit.assignment import Assignment

        return Assignment.from_json(self.assignment).quantized() if self.assignment else {}

    @property
    def scored(self) -> Folder | None:
        """The evaluation samples, where their task scores this graph: of samples of a whole
        encoder-decoder it scores what the decoder returns."""
        found = self.entries.get("evaluation")
        beside = found is not None and self.job.part == "encoder" and found.meta.get("whole")
        return None if beside else found

    @property
    def is_baseline(self) -> bool:
        """FP16 on a GPU, FP32 on a CPU: the candidate is the baseline itself."""
        return self.job.precision == self.baseline_precision

    @property
    def predictable(self) -> bool:
        """Whether the target has rates to predict a latency by: a kind of CPU has them per cycle
        and core alone, and neither cores nor a clock of its own."""
        return bool(self.job.target.peaks) or not self.job.target.is_cpu

    @property
    def machine(self) -> dict[str, Any]:
        """What a run here depends on."""
        return machine(self.job.target)

    @property
    def simulation(self) -> str:
        """The file of `entries["graph"]` that ONNX Runtime runs for accuracy."""
        return SIMULATION if SIMULATION in self.entries["graph"].files else GRAPH

    @property
    def evidence(self) -> Evidence:
        return Evidence.MEASURED if self.measured else Evidence.SIMULATED


def machine(device: Target) -> dict[str, Any]:
    """What a run on a device here depends on: this CPU; or the GPU that is the target, its driver,
    and the host, of which there may be many like it."""
    if device.is_cpu:  # of a kind of CPU, the one that stands for it
        return cpu_target().fingerprint()
    found = [gpu for gpu in gpus().devices if gpu.target == device.name]
    own = [{"name": gpu.name, "driver": gpu.driver} for gpu in found[:1]]
    return {**device.fingerprint(), "gpus": own, "host": platform.node()}


def calibration_of(recipe: Recipe) -> dict[str, Any]:
    """Method, percentile and batch; the defaults when the samples came from memory."""
    found = recipe.calibration or Calibration(source=MEMORY)
    return {"method": found.method, "percentile": found.percentile, "batch": found.batch}


def samples_wanted(recipe: Recipe) -> int:
    """How many calibration samples are taken; the default when the recipe says nothing of them."""
    return (recipe.calibration or Calibration(source=MEMORY)).samples
