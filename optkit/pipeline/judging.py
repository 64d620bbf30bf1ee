"""What a graph is worth: compiled, scored, timed."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optkit import runtimes, store
from optkit.benchmarking import sequential
from optkit.errors import UsageError
from optkit.evidence import Evidence
from optkit.execute import reads
from optkit.execute.runner import Steps
from optkit.execute.step import Input
from optkit.pipeline.job import Build, EngineRole, Look, Role
from optkit.pipeline.scores import decided
from optkit.pipeline.sources import roots_of
from optkit.precisions import PRECISIONS
from optkit.recipe import Bench
from optkit.steps import GRAPH
from optkit.steps.accept import Accept
from optkit.steps.bench import MeasureLatency, Side, Timed
from optkit.steps.collect import Samples
from optkit.steps.compare import CompareOutputs
from optkit.steps.compile import Compile, Compiled
from optkit.steps.draw import Draw
from optkit.steps.evaluate import Evaluate, Evaluated
from optkit.steps.graph import Graph
from optkit.steps.peak import InProcess, MeasurePeak
from optkit.steps.predict import PredictedLatency, PredictLatency
from optkit.steps.sessions import CpuSession, DeviceSession, Engines
from optkit.tensors import AxisRange

_PAIR: tuple[Role, ...] = ("baseline", "candidate")
_BYTES_TO_READ = 8  # per parameter: float32, and the copy that the compiler keeps


def accept(build: Build, runner: Steps) -> None:
    """Ask the compiler whether it knows all operators, as soon as the graph is fused: a refusal
    after calibration and quantization comes late. A graph that memory does not hold is not asked
    about, nor is a backend that runs any graph, since ONNX Runtime has run it."""
    needed = _BYTES_TO_READ * build.source.parameters
    graph_runs = build.backend is None or build.traits.engine == "graph"
    if graph_runs or needed > runner.limits.memory_bytes:
        return
    versions = runtimes.backend(build.compiler).versions()
    step = Accept(graph=build.fused, backend=build.compiler, versions=versions)
    runner.do(step, f"ask {build.backend} about the operators")


def compile_(build: Build, runner: Steps) -> None:
    """graph → engine, for candidate and baseline, with the backend's own layer list."""
    build.engine = _compile(build, "engine", runner)
    build.baseline_engine = _compile(build, "baseline_engine", runner)


def _compile(build: Build, role: EngineRole, runner: Steps) -> Compiled | None:
    """None where its compiler is pending."""
    precision, graph, planned = build.job.precision, build.graph, build.planned
    if role == "baseline_engine":
        precision, graph, planned = build.baseline_precision, build.baseline, {}
    backend, axes = runtimes.backend(build.compiler), build.job.recipe.axis_ranges()
    wanted = build.job.recipe.compiler.model_dump(exclude_none=True)
    asked = {
        name: runtimes.backend(name)
        .spec(build.inputs, build.job.target, precision, axes)
        .asking(wanted)
        for name in (build.compiler, *build.pending)
    }
    spec = build.specs[role] = asked.pop(build.compiler)
    build.pending_specs[role] = asked
    if build.backend is None:
        return None
    step = Compile(
        graph=graph, backend=build.backend, spec=spec, planned=planned, versions=backend.versions(),
        host=_host(build), kept=kept(runner),
    )  # fmt: skip
    return runner.do(step, f"compile {precision} for {build.job.target.name}")


Roles = Mapping[Role, tuple[Graph, str, Evidence]]
"""Of each role the graph, its file that is scored, and how the score is known."""


def evaluate(build: Build, runner: Steps) -> None:
    """Task scores of candidate, baseline and reference on the same samples; fidelity to FP32."""
    roles: dict[Role, tuple[Graph, str, Evidence]] = {
        # the baseline first: a task of agreement compares with what it said
        "baseline": (build.baseline, GRAPH, build.evidence),
        "candidate": (build.graph, build.simulation, build.evidence),
    }
    if build.baseline_precision.name != "fp32":  # where it is, the baseline says what FP32 is worth
        roles["reference"] = (build.fused, GRAPH, Evidence.SIMULATED)
    looked = _look(build, runner, roles)
    for role, (graph, file, evidence) in roles.items():
        if build.scored is not None and not looked:
            build.scores[role] = score(build, runner, role, graph, file, evidence)
        step = CompareOutputs(
            graph=graph, reference=build.fused, file=file, batch=build.batch, evidence=evidence,
            samples=build.looks[0].samples if build.looks else build.probe,
        )  # fmt: skip
        build.fidelities[role] = runner.do(step, f"compare {_named(build, role)} with FP32")


def _look(build: Build, runner: Steps, roles: Roles) -> bool:
    """Score the samples part by part until the verdict is certain, where the recipe asks for it."""
    samples, asked = build.scored, build.job.recipe.eval
    if samples is None or asked is None or not asked.stop_early or samples.planned:
        return False
    if samples.agreement:
        raise UsageError(
            "agreement with the baseline takes all samples",
            where="eval.stop_early",
            hint="leave it out",
        )
    parts = sequential.segments(samples.info.samples)
    for start, stop in parts:
        step = Draw(
            samples=samples, start=start, stop=stop,
            optional=tuple(build.job.recipe.optional_axes()),
            memory=runner.limits.memory_bytes // 4,
        )  # fmt: skip
        look = Look(runner.do(step, f"draw samples up to {stop} of {parts[-1][1]}"))
        build.looks.append(look)
        for role in _PAIR:
            look.scores[role] = score(build, runner, role, *roles[role], look.samples)
        known = all(one.score is not None for one in look.scores.values())
        if not known or decided(build):  # unknown in a rehearsal, which ends at the first look
            break
    for look in build.looks if "reference" in roles else ():
        look.scores["reference"] = score(
            build, runner, "reference", *roles["reference"], look.samples
        )
    return True


def score(
    build: Build,
    runner: Steps,
    role: Role,
    graph: Graph,
    file: str,
    evidence: Evidence,
    drawn: Samples | None = None,
) -> Evaluated:
    """The task's score of a graph; where its engine runs on this machine, of the engine. `drawn`:
    of some of the evaluation samples alone."""
    samples = build.scored
    assert samples is not None
    running = _running(build, role)
    agrees = samples.agreement and role != "baseline"
    place = build.job.recipe.eval_task
    assert place is not None
    record, roots = samples.reads, roots_of(build.job.recipe, "evaluation")
    # the task's code and packages are what matters, its path only where it is
    python = {path: sha256 for path, sha256 in reads.files(record, roots).items()
              if path.endswith(".py")}  # fmt: skip
    step = Evaluate(
        graph=graph, samples=drawn or samples,
        baseline_score=build.scores["baseline"] if agrees else None,
        engine=build.engine if running and role == "candidate" else None,
        baseline_engine=build.baseline_engine if running and role == "baseline" else None,
        file=file, batch=build.batch, evidence=evidence, task=str(place),
        code=store.digest_json(reads.code(record)),
        metric=samples.metric, args=samples.scoring, running=running,
        path=place.path, imports=python, roots=tuple(roots), kept=kept(runner),
    )  # fmt: skip
    return runner.do(step, f"evaluate {_named(build, role)}")


def time(build: Build, runner: Steps) -> None:
    """Latency: measured beside the baseline where the target is this machine, else predicted; of a
    kind of CPU that this machine is not of neither, it is pending."""
    bench = build.job.recipe.bench
    span = build.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if build.measured:
        models, sides = _sides(build)
        both = Race(
            f"measure latency of {build.job.precision} beside {build.baseline_precision}",
            build.probe, models, sides, bench, batches, build.machine,
        )  # fmt: skip
        build.latency = race(both, runner, strict=build.job.strict)
        build.recalled = runner.recalled(build.latency)
        return
    if not build.predictable:
        return
    build.latency = _predict(build, "engine", span.opt, runner)
    build.baseline_latency = _predict(build, "baseline_engine", span.opt, runner)


def _predict(build: Build, role: EngineRole, batch: int, runner: Steps) -> PredictedLatency:
    precision, graph, compiled = build.job.precision, build.graph, build.engine
    if role == "baseline_engine":
        precision, graph, compiled = (
            build.baseline_precision, build.baseline, build.baseline_engine
        )  # fmt: skip
    if compiled is None and precision.quantized:
        graph = build.baseline  # a quantized graph is its carrier graph and the plan
    step = PredictLatency(
        graph=graph, device=build.job.target.name, target=build.job.target.fingerprint(),
        axes={name: axis.opt for name, axis in build.job.recipe.axis_ranges().items()}, batch=batch,
        engine=None if compiled is None or compiled.planned else compiled.engine,
        planned=build.planned if precision.quantized else {},
        carrier=(build.baseline_precision if precision.quantized else precision).name,
    )  # fmt: skip
    return runner.do(step, f"predict latency of {precision}")


def weigh(build: Build, runner: Steps) -> None:
    """Peak memory of a run, where a gate asks for it and the target is this machine: of the
    process on a CPU, of the device where an engine of its own runs there."""
    limits = build.job.recipe.gates.of(build.job.target.name)
    if limits.max_memory_bytes is None or not build.measured or build.traits.memory is None:
        return
    in_process = build.traits.memory == "process"
    running = None if in_process else _running(build, "candidate")
    step = MeasurePeak(
        samples=build.probe, graph=build.graph if in_process else None,
        engine=None if in_process else build.engine,
        running=running or InProcess(build.job.recipe.bench.threads), batch=build.batch or 1,
        host=build.machine, kept=kept(runner),
    )  # fmt: skip
    build.peak = runner.do(step, f"measure memory of {build.job.precision}")


@dataclass(frozen=True)
class Race:
    """Two models to be timed in one run. `sides`: "engine" and "baseline"; `machine`: what a run
    here depends on."""

    label: str
    samples: Input
    models: dict[str, Input]
    sides: dict[str, Side]
    bench: Bench
    batches: list[int]
    machine: dict[str, Any]


def race(both: Race, runner: Steps, *, strict: bool, anew: bool = False) -> Timed:
    """Their latencies. What the store has of a run under bad conditions is never served, it is done
    again: the key of a try counts those that were marked before it. `strict`: so is one of now,
    once; `anew`: nothing that was measured before counts."""
    bench, machine = both.bench, both.machine
    on_cpu = runtimes.backend(both.sides["engine"].backend).traits.on_cpu
    step = MeasureLatency(
        samples=both.samples, models=both.models, batches=tuple(both.batches),
        seconds=bench.seconds, warmup_seconds=bench.warmup_seconds, sides=both.sides,
        gpu=bool(machine.get("gpus")), host=machine, kept=None if on_cpu else kept(runner),
    )  # fmt: skip

    if anew:
        found = runner.do(replace(step, at=str(clock.time_ns())), both.label)
        if strict and found.marked:
            found = runner.do(replace(step, at=str(clock.time_ns())), both.label)
        return found
    found, tries = runner.do(step, both.label), 0
    while found.marked and (runner.recalled(found) or strict):
        strict = strict and runner.recalled(found)
        tries += 1
        found = runner.do(replace(step, marked=str(tries)), both.label)
    return found


def _sides(build: Build) -> tuple[dict[str, Input], dict[str, Side]]:
    """Candidate and baseline as they run on the target: as graphs where that is this CPU, else as
    engines."""
    compiler = str(build.backend)
    if not build.runs_engines:
        graphs: dict[str, Input] = {"engine": build.graph, "baseline": build.baseline}
        cpu = CpuSession(build.job.recipe.bench.threads)
        return graphs, {name: Side(name, GRAPH, compiler, cpu) for name in graphs}
    assert build.engine is not None and build.baseline_engine is not None
    engines: dict[str, Input] = {"engine": build.engine, "baseline_engine": build.baseline_engine}
    session = _session(build)
    return engines, {
        "engine": Side("engine", _file(build.engine), compiler, session),
        "baseline": Side("baseline_engine", _file(build.baseline_engine), compiler, session),
    }


def _named(build: Build, role: Role) -> str:
    """ "int8 candidate", "fp16 baseline", "fp32 reference"."""
    known = {"candidate": build.job.precision, "baseline": build.baseline_precision,
             "reference": PRECISIONS["fp32"]}  # fmt: skip
    return f"{known[role]} {role}"


def _running(build: Build, role: Role) -> Engines | None:
    """How the engine of a role is run; None where it is a graph, or its device is not here."""
    if not build.runs_engines or role == "reference":
        return None
    name, compiled = "engine", build.engine
    if role == "baseline":
        name, compiled = "baseline_engine", build.baseline_engine
    assert compiled is not None
    return Engines(str(build.backend), {name: _file(compiled)}, _session(build))


def _session(build: Build) -> DeviceSession:
    graphs = build.specs["engine"].options.get("cuda_graph", False)
    return DeviceSession(build.job.target.name, graphs)


def _file(compiled: Compiled) -> str:
    """Of an engine; in a rehearsal, which has none, it is in no key."""
    return "" if compiled.planned else compiled.engine.file


def kept(runner: Steps) -> Path:
    """Where a library may keep what it learned on this device: beside the store's objects."""
    return runner.objects.with_name("devices")


def _host(build: Build) -> dict[str, Any] | None:
    """ONNX Runtime optimizes for the CPU it runs on; a TensorRT-RTX engine is the same anywhere."""
    return build.machine if build.measured else None
