"""Graphs that another tool has quantized: their repair, the float graph, the graph that a build
takes as quantized, and what would land."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.engines import Landing
from optkit.facts.errors import Impossible, InputRefused, UsageError, WorkerFailed
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Fidelity
from optkit.facts.precisions import Precision
from optkit.ground import intake, runtimes
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import Foreign, StepInput
from optkit.ground.recipe import Quantization, Recipe, Source
from optkit.road.pipeline.compilation import kept
from optkit.road.pipeline.graphs import cast
from optkit.road.pipeline.job import Build, Job
from optkit.road.pipeline.refusals import (
    FILES,
    check_optimizer,
    check_pair,
    check_samples,
    one_wheel,
)
from optkit.road.pipeline.run_samples import sample_batch
from optkit.road.pipeline.sources import exported_model
from optkit.road.steps.compare import CompareOutputs
from optkit.road.steps.compile import Compile
from optkit.road.steps.dequantize import Dequantize
from optkit.road.steps.export import ExportedGraph
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph
from optkit.road.steps.import_quantized import ImportQuantized
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.repair import RepairedGraph, RepairGraph


def separate(build: Build, runner: Steps) -> None:
    """If another tool has quantized the source, go on with its float graph, and keep the given one
    beside it. Pairs on values alone do not make the products quantized: they are removed, and the
    build quantizes the float graph. Raises UsageError for another precision than its own;
    InputRefused if no codes are of a precision of optkit, or, for a float graph, if the precision
    needs samples that the job does not have."""
    exported = build.source
    if isinstance(exported, ExportedGraph):
        check_optimizer(build, exported, runner)
    if not (isinstance(exported, ExportedGraph) and exported.quantized):
        if not exported.planned:
            check_samples(build.job)
        return
    build.shipped = exported
    given = repaired(build, runner)
    if given.planned:
        build.given = given
    elif given.of_products:
        build.given = given
        _check_given(build.job, given, runner)
    else:
        check_samples(build.job)
        runner.note("no weight has codes: the Q/DQ pairs of the graph are removed first")
    build.source = dequantized(build, runner)


def _check_given(job: Job, repaired: RepairedGraph, runner: Steps) -> None:
    asked, own = repaired.precision, job.precision
    if asked is None:
        raise InputRefused(
            "its products have codes of no precision of optkit",
            where=job.recipe.name,
            hint="`optkit doctor` shows what the graph asks for; build the float model",
        )
    if own.quantized and own != asked:
        raise UsageError(
            f"{repaired.tool.name} has quantized the graph to {asked}, and a build keeps its codes",
            where=f"precision {own}",
            hint=f"leave the precision out, or give {asked}; for {own}, build the float model",
        )
    for asked in sorted(set(repaired.assignment.values()), key=str):
        check_pair(job.target, asked)
    if own.quantized and job.recipe.quantization != Quantization():
        runner.note(
            "the graph keeps its codes and scales: `quantization` of the recipe is not used"
        )


def quantized_to(recipe: Recipe, runner: Steps) -> Precision | None:
    """The precision to which another tool has quantized the file of the model; None for a float
    model, and for a model that is no file. Raises ToolchainMissing for two wheels of ONNX
    Runtime."""
    source = recipe.source
    if source is None or source.kind not in FILES:
        return None
    one_wheel()
    exported = exported_model(recipe, None, runner)
    if not exported.quantized:
        return None
    return _repaired(exported, source, runner).precision


def imported(build: Build, given: RepairedGraph, runner: Steps) -> QuantizationResult:
    """The given graph as the quantized one, with the carriers of the build."""
    carrier = build.baseline_precision
    graph: Graph = given
    if carrier.name != "fp32":
        graph = cast(build, given, carrier.name, runner, "the quantized graph ")
    step = ImportQuantized(graph=graph, carrier=carrier)
    return runner.do(step, "keep the codes of the given graph")


@dataclass(frozen=True)
class GraphLanding:
    """Whether the compiler takes a graph, and how many products then run as asked. `landing`: None
    if it refuses the graph (`refusal` says why), or if nothing compiles here."""

    backend: str | None
    landing: Landing | None
    refusal: str | None


def repaired(build: Build, runner: Steps) -> RepairedGraph:
    """The exported graph with the repairs that TensorRT needs. ONNX Runtime on a CPU needs none of
    its numbers changed: it gets Q/DQ pairs instead of other forms."""
    source = build.job.recipe.source
    assert source is not None
    return _repaired(build.source, source, runner, forms_only=build.traits.on_cpu)


def _repaired(
    exported: Graph, source: Source, runner: Steps, *, forms_only: bool = False
) -> RepairedGraph:
    file: StepInput = exported
    if source.kind == "onnx" and source.place is not None:  # it names the tool
        staged = intake.stage_onnx(source.place.path, runner.objects)
        file = Foreign(staged.path, staged.sha256)
    step = RepairGraph(graph=exported, file=file, forms_only=forms_only)
    return runner.do(step, "repair Q/DQ")


def dequantized(build: Build, runner: Steps) -> Graph:
    """The exported graph without quantization."""
    return runner.do(Dequantize(graph=build.source), "remove Q/DQ")


def landed(
    build: Build,
    graph: Graph,
    planned: Mapping[str, Precision],
    precision: Precision,
    runner: Steps,
    label: str,
) -> GraphLanding:
    """Compile the graph for the target of the build, if a compiler for it is here."""
    if build.backend is None:
        reason = runtimes.backend(build.compiler).offline(build.job.target)
        return GraphLanding(None, None, reason)
    backend, axes = runtimes.backend(build.backend), build.job.recipe.axis_ranges()
    step = Compile(
        graph=graph,
        backend=build.backend,
        spec=backend.spec(build.inputs, build.job.target, precision, axes),
        planned=planned,
        versions=backend.versions(),
        host=build.machine if build.measured else None,
        kept=kept(runner),
    )
    try:
        engine = runner.do(step, label).engine
    except (InputRefused, Impossible, WorkerFailed) as error:
        return GraphLanding(build.backend, None, f"{error.where}: {error.message}")
    return GraphLanding(build.backend, engine.landing, None)


def fidelity(build: Build, graph: Graph, reference: Graph, runner: Steps, label: str) -> Fidelity:
    """How closely the outputs of a graph follow those of another one, on the samples of the
    build."""
    step = CompareOutputs(
        graph=graph,
        reference=reference,
        samples=build.probe,
        file=GRAPH,
        batch=sample_batch(build),
        evidence=Evidence.SIMULATED,
    )
    found = runner.do(step, label).fidelity
    assert found is not None
    return found
