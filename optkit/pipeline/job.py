"""What is asked for, and what the chain has made of it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from optkit import runtimes
from optkit.assignment import Assignment
from optkit.devices import Target, gpus
from optkit.devices.machine import cpu_target
from optkit.engines import BuildSpec
from optkit.evidence import Evidence
from optkit.execute.step import Input, Result
from optkit.precisions import Precision, precision
from optkit.recipe import MEMORY, Calibration, Recipe
from optkit.runtimes import Traits
from optkit.steps import GRAPH, SIMULATION
from optkit.steps.bench import Timed
from optkit.steps.calibrate import Calibrated
from optkit.steps.check_data import DataCheck
from optkit.steps.collect import Collected, Samples
from optkit.steps.compare import ComparedOutputs
from optkit.steps.compare_layers import ComparedLayers
from optkit.steps.compile import Compiled
from optkit.steps.evaluate import Evaluated
from optkit.steps.fuse import Fused
from optkit.steps.graph import Graph, RandomInputs
from optkit.steps.peak import PeakMemory
from optkit.steps.predict import PredictedLatency
from optkit.steps.quantize import Quantized
from optkit.tensors import AxisRange, TensorInfo

Role = Literal["candidate", "baseline", "reference"]
EngineRole = Literal["engine", "baseline_engine"]


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
    calibration: Samples | None = None
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


@dataclass(frozen=True)
class Look:
    """Some of the evaluation samples, and their scores by role, of a build that is scored until its
    verdict is certain."""

    samples: Samples
    scores: dict[Role, Evaluated] = field(default_factory=dict)


@dataclass
class Build:
    """A job, facts about it, and what the stages have made so far: results of steps, all on disk.

    `measured`: the target is this machine, or the kind of CPU that it is of, so that running is
    measuring. `recalled`: the latency was in the store before this run. `specs`: what the compiler
    is asked for each engine; `pending_specs`: the same of the backends that are pending, by name.

    Every stage behind `export`, `fuse`, … relies on the results without a default: to read one
    before its stage has run is a bug, and an AttributeError. The others are None where a build has
    no such result.
    """

    job: Job
    backend: str | None  # None: nothing compiles here for this target
    pending: tuple[str, ...]
    baseline_precision: Precision
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    measured: bool = False
    recalled: bool = False
    specs: dict[EngineRole, BuildSpec] = field(default_factory=dict)
    pending_specs: dict[EngineRole, dict[str, BuildSpec]] = field(default_factory=dict)

    source: Graph = field(init=False, repr=False)
    fused: Graph = field(init=False, repr=False)
    probe: Samples = field(init=False, repr=False)  # of the evaluation, else what there is
    carrier: Graph = field(init=False, repr=False)
    graph: Graph = field(init=False, repr=False)
    baseline: Graph = field(init=False, repr=False)
    encoder: Graph | None = None
    calibration: Samples | None = None
    evaluation: Collected | None = None
    data_check: DataCheck | None = None
    cast: Graph | None = None
    statistics: Calibrated | None = None
    prepared: Fused | None = None
    quantized: Quantized | None = None
    engine: Compiled | None = None
    baseline_engine: Compiled | None = None
    scores: dict[Role, Evaluated] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    fidelities: dict[Role, ComparedOutputs] = field(default_factory=dict)
    layer_fidelity: ComparedLayers | None = None
    latency: Timed | PredictedLatency | None = None
    baseline_latency: PredictedLatency | None = None
    peak: PeakMemory | None = None

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
        recipe = self.job.recipe
        specs = recipe.describe(self.inputs)
        drawn = {spec.info.name for spec in specs if spec.range is not None}
        known = self.source.arguments
        arguments = {name: known[name] for name in known if name not in drawn}
        return RandomInputs(specs, recipe.axis_ranges(), arguments)

    @property
    def assignment(self) -> Assignment | None:
        """None before quantization, and of floats."""
        return self.quantized.assignment if self.quantized is not None else None

    @property
    def planned(self) -> dict[str, str]:
        """Node → precision, of those that are quantized."""
        return self.assignment.quantized() if self.assignment is not None else {}

    @property
    def scored(self) -> Collected | None:
        """The evaluation samples, where their task scores this graph: of samples of a whole
        encoder-decoder it scores what the decoder returns."""
        samples = self.evaluation
        beside = samples is not None and self.job.part == "encoder" and samples.whole
        return None if beside else samples

    @property
    def build_spec(self) -> dict[str, BuildSpec]:
        """What compilers are asked, by engine; of pending backends by "engine, backend"."""
        asked: dict[str, BuildSpec] = {}
        for role, spec in self.specs.items():
            pending = self.pending_specs.get(role, {})
            asked |= {role: spec, **{f"{role}, {name}": one for name, one in pending.items()}}
        return asked

    @property
    def digests(self) -> dict[str, str]:
        """Of all results, by name."""
        results = {one.name: getattr(self, one.name, None) for one in fields(self)}
        results |= {f"{role}_score": one for role, one in self.scores.items()}
        results |= {f"{role}_fidelity": one for role, one in self.fidelities.items()}
        for number, look in enumerate(self.looks):
            results[f"drawn/{number}"] = look.samples
            results |= {f"{role}_score/{number}": one for role, one in look.scores.items()}
        known = {name: one.digest for name, one in results.items() if isinstance(one, Result)}
        return dict(sorted(known.items()))

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
        """The file of `graph` that ONNX Runtime runs for accuracy."""
        return SIMULATION if SIMULATION in self.graph.files else GRAPH

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


def calibration_of(recipe: Recipe) -> Calibration:
    """The recipe's section; with the defaults where the samples come from memory."""
    return recipe.calibration or Calibration(source=MEMORY)
