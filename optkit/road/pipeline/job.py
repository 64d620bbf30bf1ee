"""A job, and the state of its build: the results of the steps so far."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from optkit.craft.sources.export_log import ExportLog, OnnxOrigin
from optkit.facts.assignment import Assignment
from optkit.facts.documents.record import Object
from optkit.facts.engines import BuildSpec
from optkit.facts.evidence import Evidence
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground import runtimes
from optkit.ground.decoder import Decoder
from optkit.ground.devices import Target, gpus
from optkit.ground.devices.machine import cpu_target
from optkit.ground.execute.step import StepInput, StepResult
from optkit.ground.operator_library import OperatorLibrary
from optkit.ground.recipe import MEMORY, Calibration, Recipe
from optkit.ground.runtimes import Traits
from optkit.road.steps.attribute import AttributedTimes
from optkit.road.steps.bench import BenchResult
from optkit.road.steps.cache_reach import CacheReach
from optkit.road.steps.calibrate import CalibrationResult
from optkit.road.steps.check_data import DataCheck
from optkit.road.steps.collect import CollectedSamples, Samples
from optkit.road.steps.compare import ComparedOutputs
from optkit.road.steps.compare_layers import LayerComparison
from optkit.road.steps.compare_sizes import ComparedSizes
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.evaluate import EvaluationResult
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.fuse import FusedGraph
from optkit.road.steps.graph import Graph, RandomInputs, Rewritten, infos
from optkit.road.steps.padding import Padding
from optkit.road.steps.peak import PeakMemory
from optkit.road.steps.predict import PredictedLatency
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.repair import RepairedGraph
from optkit.road.steps.resize import Point, ResizedSamples
from optkit.road.steps.show_worst import ShownWorst

Role = Literal["candidate", "baseline", "reference"]
EngineRole = Literal["engine", "baseline_engine"]


@dataclass(frozen=True)
class Job:
    """One model for one target in one precision.

    `deferred`: another host compiles the engine and finishes the artifact, even if this host could.
    `strict`: a latency that was measured under bad conditions is measured once more, and a model
    without trained weights is refused. `embed_pictures`: the report contains the worst samples as
    pictures.
    `graph`, `calibration`: entries of the store, if they came from memory (an nn.Module, a loader);
    None: the recipe says where they come from. `code`: the folder from which package.module:factory
    is imported.
    """

    recipe: Recipe
    target: Target
    precision: Precision
    deferred: bool = False
    strict: bool = False
    embed_pictures: bool = False
    graph: StepInput | None = None
    calibration: Samples | None = None
    code: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe.name}-{self.target.name}-{self.precision}"

    @property
    def part(self) -> str | None:
        """Which graph of an encoder-decoder this is: encoder or decoder; None for other models."""
        source = self.recipe.source
        return source.part if source is not None else None

    @property
    def quantized(self) -> list[Precision]:
        """The quantized precisions that layers may get: the job's precision, then those that its
        recipe gives to nodes. Empty if the job's precision is not quantized."""
        if not self.precision.quantized:
            return []
        of_nodes = sorted(self.recipe.quantization.nodes.values(), key=str)
        return [one for one in dict.fromkeys((self.precision, *of_nodes)) if one.quantized]


@dataclass(frozen=True)
class Look:
    """A part of the evaluation samples and its scores by role. A build with early stopping scores
    one part after the other until its verdict is certain."""

    samples: Samples
    scores: dict[Role, EvaluationResult] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineRequest:
    """The build specification of one engine. `pending`: pending backend → its specification."""

    spec: BuildSpec
    pending: dict[str, BuildSpec]


@dataclass
class Build:
    """A job, facts about it, and the results of its steps so far, which are all on disk.

    `measured`: the target is this machine, or the kind of CPU that it has, so figures are measured
    here. `recalled`: the latency was in the store before this run. `specs`: the build specification
    of each engine.

    A result without a default exists once its stage (`export`, `fuse`, …) has run; to read it
    earlier is a bug and raises AttributeError. The others are None where a build has no such
    result.
    """

    job: Job
    backend: str | None  # None: nothing compiles here for this target
    pending: tuple[str, ...]
    baseline_precision: Precision
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    measured: bool = False
    recalled: bool = False
    specs: dict[EngineRole, EngineRequest] = field(default_factory=dict)

    source: Graph = field(init=False, repr=False)
    fused: Rewritten = field(init=False, repr=False)
    plain: Rewritten = field(init=False, repr=False)  # `fused` as the baseline has it
    # evaluation samples; if there are none, calibration samples or random ones
    probe: Samples = field(init=False, repr=False)
    carrier: Graph = field(init=False, repr=False)
    graph: Graph = field(init=False, repr=False)
    baseline: Graph = field(init=False, repr=False)
    origin: OnnxOrigin | None = None  # of an .onnx
    plugins: OperatorLibrary | None = None  # of TensorRT, which the graph names
    shipped: Graph | None = None  # a graph that another tool has quantized, as it was given
    log: ExportLog | None = None  # of the export; None in a rehearsal
    given: RepairedGraph | None = None  # by another tool; `source` is then its float graph
    encoder: Graph | None = None
    calibration: Samples | None = None
    observed: Samples | None = None  # the calibration samples as graphs run on them
    evaluation: CollectedSamples | None = None
    compared: Samples | None = None  # the samples whose outputs are compared
    data_check: DataCheck | None = None
    padding: Padding | None = None
    cast: Rewritten | None = None
    statistics: CalibrationResult | None = None
    in_floats: frozenset[str] = frozenset()  # nodes that were measured to be slower in integers
    prepared: FusedGraph | None = None
    quantized: QuantizationResult | None = None
    cache_reach: CacheReach | None = None
    engine: CompiledEngine | None = None
    baseline_engine: CompiledEngine | None = None
    scores: dict[Role, EvaluationResult] = field(default_factory=dict)
    worst: ShownWorst | None = None
    looks: list[Look] = field(default_factory=list)
    candidate_fidelity: ComparedOutputs | None = None
    resized: dict[Point, ResizedSamples] = field(default_factory=dict)  # samples at declared sizes
    at_sizes: ComparedSizes | None = None
    layer_fidelity: LayerComparison | None = None
    latency: BenchResult | PredictedLatency | None = None
    baseline_latency: PredictedLatency | None = None
    # from the layers of the engines here, if another compiler serves
    compiled_latency: PredictedLatency | None = None
    baseline_compiled_latency: PredictedLatency | None = None
    peak: PeakMemory | None = None
    layer_times: AttributedTimes | None = None

    @property
    def batch_axis(self) -> int | str | None:
        """Axis 0 of the first input: its name or its fixed size; None: no input has axes."""
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
        """The backend of the engine: the one that compiles here, else the first pending one."""
        return self.backend or self.pending[0]

    @property
    def serving(self) -> str:
        """The backend whose engine serves on the target: the one that is documented for this board.
        The compiler itself where none is documented, or where that one lacks the precision."""
        documented = {option.name for option in self.job.target.backends if option.documented}
        names = (self.compiler, *self.pending)
        return next((name for name in names if name in documented), self.compiler)

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
        """The ranges of random feeds. If an input has a declared range, as token ids have,
        its numbers are drawn from this range, whichever operator reads them."""
        recipe = self.job.recipe
        specs = recipe.describe(self.inputs)
        drawn = {spec.info.name for spec in specs if spec.range is not None}
        arguments = {
            name: argument for name, argument in self.source.arguments.items() if name not in drawn
        }
        return RandomInputs(specs, recipe.axis_ranges(), arguments)

    @property
    def assignment(self) -> Assignment | None:
        """None before quantization, and for floating-point precisions."""
        return self.quantized.assignment if self.quantized is not None else None

    @property
    def planned(self) -> dict[str, Precision]:
        """Quantized node → its precision."""
        return self.assignment.quantized() if self.assignment is not None else {}

    @property
    def scored(self) -> CollectedSamples | None:
        """The evaluation samples, if their task scores this graph; else None. With samples of a
        whole encoder-decoder the task scores the outputs of the decoder, so an encoder has none."""
        samples = self.evaluation
        of_decoder = samples is not None and self.job.part == "encoder" and samples.whole
        return None if of_decoder else samples

    @property
    def build_spec(self) -> dict[str, BuildSpec]:
        """Build specifications by engine; those of pending backends by "engine, backend"."""
        specs: dict[str, BuildSpec] = {}
        for role, asked in self.specs.items():
            specs[role] = asked.spec
            specs |= {f"{role}, {backend}": spec for backend, spec in asked.pending.items()}
        return specs

    @property
    def digests(self) -> dict[str, str]:
        """The digests of all results, by name."""
        results = {each.name: getattr(self, each.name, None) for each in fields(self)}
        results |= {f"{role}_score": score for role, score in self.scores.items()}
        for number, look in enumerate(self.looks):
            results[f"drawn/{number}"] = look.samples
            results |= {f"{role}_score/{number}": score for role, score in look.scores.items()}
        digests = {
            name: result.digest
            for name, result in results.items()
            if isinstance(result, StepResult)
        }
        return dict(sorted(digests.items()))

    @property
    def is_baseline(self) -> bool:
        """Whether the candidate is the baseline itself: FP16 on a GPU, FP32 on a CPU."""
        return self.job.precision == self.baseline_precision

    @property
    def scored_beside(self) -> Graph | None:
        """The graph that another tool has quantized, if the candidate's accuracy is compared with
        it and its latency with another graph: on a GPU, which may not take the given one. None: the
        baseline is compared in both."""
        return None if self.is_baseline or self.traits.on_cpu else self.shipped

    @property
    def predictable(self) -> bool:
        """Whether the target has the peak rates that a prediction of latency needs. A kind of CPU
        has rates per cycle and core only: its number of cores and its clock are not known."""
        return bool(self.job.target.peaks) or not self.job.target.is_cpu

    @property
    def machine(self) -> Object:
        """What a run here depends on."""
        return machine(self.job.target)

    @property
    def signature(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """Inputs and outputs of the artifact: those of the source, but those of `graph` if it
        stores the cache of a decoder as codes."""
        written = infos(self.graph.inputs), infos(self.graph.outputs)
        decoder = Decoder.of(*written)
        coded = decoder is not None and decoder.codes is not None
        return written if coded else (self.inputs, self.outputs)

    @property
    def simulation(self) -> str:
        """The file of `graph` that is run for accuracy if no engine is."""
        return GRAPH if self.measured else self.graph.simulation

    @property
    def baseline_simulation(self) -> str:
        """The same for `baseline`."""
        return GRAPH if self.measured else self.baseline.simulation

    @property
    def evidence(self) -> Evidence:
        return Evidence.MEASURED if self.measured else Evidence.SIMULATED


def machine(device: Target) -> Object:
    """What a run on a device of this machine depends on: this CPU; or the GPU that is the target,
    its driver, and the name of the host."""
    if device.is_cpu:  # this CPU stands for its kind
        return cpu_target().fingerprint()
    found: list[JsonValue] = [
        {"name": gpu.name, "driver": gpu.driver}
        for gpu in gpus().devices
        if gpu.target == device.name
    ]
    return {**device.fingerprint(), "gpus": found[:1], "host": platform.node()}


def calibration_of(recipe: Recipe) -> Calibration:
    """The recipe's section; with the defaults where the samples come from memory."""
    return recipe.calibration or Calibration(source=MEMORY)
