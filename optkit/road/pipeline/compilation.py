"""Engines: whether a compiler accepts the graph, its compilation, and how an engine runs."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.record import Object
from optkit.ground import runtimes
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build, EngineRequest, EngineRole, Role
from optkit.road.steps.accept import Accept
from optkit.road.steps.compile import Compile, CompiledEngine
from optkit.road.steps.sessions import DeviceSession, Engines

_BYTES_TO_READ = 8  # per parameter: float32, and the copy that the compiler keeps


def accept(build: Build, runner: Steps) -> None:
    """Check that the compiler knows all operators of the fused graph, so that a refusal comes
    before calibration and quantization. There is no check if the graph does not fit in memory, nor
    if the backend runs any graph, because ONNX Runtime has already run the fused graph."""
    needed = _BYTES_TO_READ * build.source.parameters
    graph_runs = build.backend is None or build.traits.engine == "graph"
    if graph_runs or needed > runner.limits.memory_bytes:
        return
    versions = runtimes.backend(build.compiler).versions()
    step = Accept(graph=build.fused, backend=build.compiler, versions=versions)
    runner.do(step, f"ask {build.backend} about the operators")


def compile_(build: Build, runner: Steps) -> None:
    """graph → engine, for candidate and baseline, with the layer list of the backend."""
    build.engine = _compile(build, "engine", runner)
    build.baseline_engine = _compile(build, "baseline_engine", runner)


def _compile(build: Build, role: EngineRole, runner: Steps) -> CompiledEngine | None:
    """The engine of a role; None if its compiler is pending."""
    planned = build.assignment.planned() if build.assignment is not None else {}
    precision, graph = build.job.precision, build.graph
    if role == "baseline_engine":
        precision, graph, planned = build.baseline_precision, build.baseline, {}
    backend, axes = runtimes.backend(build.compiler), build.job.recipe.axis_ranges()
    options = build.job.recipe.compiler.model_dump(exclude_none=True)
    specs = {
        name: runtimes.backend(name)
        .spec(build.inputs, build.job.target, precision, axes)
        .asking(options)
        for name in (build.compiler, *build.pending)
    }
    spec = specs.pop(build.compiler)
    build.specs[role] = EngineRequest(spec, specs)
    if build.backend is None:
        return None
    step = Compile(
        graph=graph,
        backend=build.backend,
        spec=spec,
        planned=planned,
        versions=backend.versions(),
        host=_host(build),
        kept=kept(runner),
    )
    return runner.do(step, f"compile {precision} for {build.job.target.name}")


def _host(build: Build) -> Object | None:
    """ONNX Runtime optimizes for the CPU on which it runs. TensorRT-RTX compiles the same engine on
    every host."""
    return build.machine if build.measured else None


def running(build: Build, role: Role) -> Engines | None:
    """How the engine of a role is run; None if it is a graph, or if its device is not here."""
    given = role == "baseline" and build.scored_beside is not None
    if not build.runs_engines or role == "reference" or given:
        return None
    name, compiled = "engine", build.engine
    if role == "baseline":
        name, compiled = "baseline_engine", build.baseline_engine
    assert compiled is not None
    return Engines(str(build.backend), {name: engine_file(compiled)}, device_session(build))


def device_session(build: Build) -> DeviceSession:
    asked = build.specs.get("engine")
    assert asked is not None
    graphs = bool(asked.spec.options.get("cuda_graph", False))
    return DeviceSession(build.job.target.name, graphs, build.plugins)


def engine_file(compiled: CompiledEngine) -> str:
    """The name of an engine's file. In a rehearsal there is no engine, and no key contains it."""
    return "" if compiled.planned else compiled.engine.file


def kept(runner: Steps) -> Path:
    """The folder for the caches that a library keeps for this device, next to the store's
    objects."""
    return runner.objects.with_name("devices")
