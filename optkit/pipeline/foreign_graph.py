"""Graphs that another tool has quantized: their repair, the float graph, and what would land."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit import intake, runtimes
from optkit.engines import Landing
from optkit.errors import Impossible, InputRefused, WorkerFailed
from optkit.evidence import Evidence
from optkit.execute.runner import Steps
from optkit.execute.step import Foreign
from optkit.measurement import Fidelity
from optkit.pipeline.engines import kept
from optkit.pipeline.graphs import sample_batch
from optkit.pipeline.job import Build
from optkit.precisions import Precision
from optkit.steps.compare import CompareOutputs
from optkit.steps.compile import Compile
from optkit.steps.dequantize import Dequantize
from optkit.steps.files import GRAPH
from optkit.steps.graph import Graph
from optkit.steps.repair import RepairedGraph, RepairGraph


@dataclass(frozen=True)
class Landed:
    """Whether the compiler takes a graph, and how many products then run as asked. `landing`: None
    if it refuses the graph (`refusal` says why), or if nothing compiles here."""

    backend: str | None
    landing: Landing | None
    refusal: str | None


def repaired(build: Build, runner: Steps) -> RepairedGraph:
    """The exported graph with the repairs that TensorRT needs."""
    source = build.job.recipe.source
    assert source is not None and source.place is not None
    staged = intake.stage_onnx(source.place.path, runner.objects)
    step = RepairGraph(graph=build.source, file=Foreign(staged.path, staged.sha256))
    return runner.do(step, "repair Q/DQ")


def dequantized(build: Build, runner: Steps) -> Graph:
    """The exported graph without quantization."""
    return runner.do(Dequantize(graph=build.source), "remove Q/DQ")


def landed(
    build: Build,
    graph: Graph,
    planned: Mapping[str, str],
    precision: Precision,
    runner: Steps,
    label: str,
) -> Landed:
    """Compile the graph for the target of the build, if a compiler for it is here."""
    if build.backend is None:
        reason = runtimes.backend(build.compiler).offline(build.job.target)
        return Landed(None, None, reason)
    backend, axes = runtimes.backend(build.backend), build.job.recipe.axis_ranges()
    step = Compile(
        graph=graph, backend=build.backend,
        spec=backend.spec(build.inputs, build.job.target, precision, axes), planned=planned,
        versions=backend.versions(), host=build.machine if build.measured else None,
        kept=kept(runner),
    )  # fmt: skip
    try:
        engine = runner.do(step, label).engine
    except (InputRefused, Impossible, WorkerFailed) as error:
        return Landed(build.backend, None, f"{error.where}: {error.message}")
    return Landed(build.backend, engine.landing, None)


def fidelity(build: Build, graph: Graph, reference: Graph, runner: Steps, label: str) -> Fidelity:
    """How closely the outputs of a graph follow those of another one, on the samples of the
    build."""
    step = CompareOutputs(
        graph=graph, reference=reference, samples=build.probe, file=GRAPH,
        batch=sample_batch(build), evidence=Evidence.SIMULATED,
    )  # fmt: skip
    found = runner.do(step, label).fidelity
    assert found is not None
    return found
