"""Latency: measured together with the baseline, or predicted."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, replace

from optkit.craft.prediction.card_lookup import measured
from optkit.craft.prediction.fitted import fitted
from optkit.facts.documents.record import Object
from optkit.facts.engines import Engine
from optkit.facts.tensors import AxisRange
from optkit.ground import runtimes
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import StepInput
from optkit.ground.recipe import Bench
from optkit.road.pipeline.compilation import device_session, engine_file, kept
from optkit.road.pipeline.job import Build, EngineRole
from optkit.road.steps.bench import BenchResult, BenchSide, MeasureLatency
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.predict import PredictedLatency, PredictLatency
from optkit.road.steps.sessions import CpuSession


def time(build: Build, runner: Steps) -> None:
    """Measure latency together with the baseline if the target is this machine, otherwise predict
    it: from the layers of the engines, and, if another compiler serves on the target, from the
    graph. The latency of a kind of CPU that this machine does not have stays pending."""
    bench = build.job.recipe.bench
    span = build.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if build.measured:
        models, sides = _sides(build)
        both = Race(
            f"measure latency of {build.job.precision} beside {build.baseline_precision}",
            build.probe,
            models,
            sides,
            bench,
            batches,
            build.machine,
        )
        build.latency = race(both, runner, strict=build.job.strict)
        build.recalled = runner.recalled(build.latency)
        return
    if not build.predictable:
        return
    engines = _compiled(build.engine), _compiled(build.baseline_engine)
    served = engines if build.serving == build.compiler else (None, None)
    build.latency = _predict(build, "engine", served[0], span.opt, runner)
    build.baseline_latency = _predict(build, "baseline_engine", served[1], span.opt, runner)
    if served != engines:
        build.compiled_latency = _predict(build, "engine", engines[0], span.opt, runner)
        build.baseline_compiled_latency = _predict(
            build, "baseline_engine", engines[1], span.opt, runner
        )


def _compiled(engine: CompiledEngine | None) -> Engine | None:
    """The engine, if it was compiled; None in a rehearsal too."""
    return None if engine is None or engine.planned else engine.engine


def _predict(
    build: Build, role: EngineRole, engine: Engine | None, batch: int, runner: Steps
) -> PredictedLatency:
    """`engine`: whose layers are predicted; None: the graph is, as compilers are documented to fuse
    it."""
    precision, graph = build.job.precision, build.graph
    if role == "baseline_engine":
        precision, graph = build.baseline_precision, build.baseline
    if engine is None and precision.quantized:
        # a quantized graph is its carrier graph and the plan
        graph = build.baseline if build.plain is build.fused else build.carrier
    step = PredictLatency(
        graph=graph,
        device=build.job.target.name,
        target=build.job.target.fingerprint(),
        fit=fitted().digest,
        axes={name: axis.opt for name, axis in build.job.recipe.axis_ranges().items()},
        batch=batch,
        engine=engine,
        planned=build.planned if precision.quantized else {},
        precision=precision,
        card=measured(build.job.target).card,
    )
    of = "" if engine is None else f" with {engine.backend}"
    return runner.do(step, f"predict latency of {precision}{of}")


@dataclass(frozen=True)
class Race:
    """Two models that are timed in one run. `sides`: "engine" and "baseline"; `models`: the inputs
    that the sides name; `machine`: the facts about this machine on which a run depends."""

    label: str
    samples: StepInput
    models: dict[str, StepInput]
    sides: dict[str, BenchSide]
    bench: Bench
    batches: list[int]
    machine: Object


def race(both: Race, runner: Steps, *, strict: bool, anew: bool = False) -> BenchResult:
    """The latencies of both models. A marked run in the store (measured under bad conditions) is
    not used: optkit measures again, and the key of a run contains the number of marked runs before
    it. `strict`: if the new run is marked, it is repeated once. `anew`: always measure."""
    bench, machine = both.bench, both.machine
    on_cpu = all(runtimes.backend(side.backend).traits.on_cpu for side in both.sides.values())
    step = MeasureLatency(
        samples=both.samples,
        models=both.models,
        batches=tuple(both.batches),
        seconds=bench.seconds,
        warmup_seconds=bench.warmup_seconds,
        sides=both.sides,
        gpu=bool(machine.get("gpus")),
        host=machine,
        kept=None if on_cpu else kept(runner),
    )

    if anew:
        timed = runner.do(replace(step, at=str(clock.time_ns())), both.label)
        if strict and timed.marked:
            timed = runner.do(replace(step, at=str(clock.time_ns())), both.label)
        return timed
    timed, tries = runner.do(step, both.label), 0
    while timed.marked and (runner.recalled(timed) or strict):
        strict = strict and runner.recalled(timed)
        tries += 1
        timed = runner.do(replace(step, marked=str(tries)), both.label)
    return timed


def _sides(build: Build) -> tuple[dict[str, StepInput], dict[str, BenchSide]]:
    """Candidate and baseline as they run on the target: as graphs if it is this CPU, otherwise as
    engines."""
    compiler = str(build.backend)
    if not build.runs_engines:
        graphs: dict[str, StepInput] = {"engine": build.graph, "baseline": build.baseline}
        cpu = CpuSession(build.job.recipe.bench.threads)
        return graphs, {name: BenchSide(name, GRAPH, compiler, cpu) for name in graphs}
    assert build.engine is not None and build.baseline_engine is not None
    engines: dict[str, StepInput] = {
        "engine": build.engine,
        "baseline_engine": build.baseline_engine,
    }
    session = device_session(build)
    return engines, {
        "engine": BenchSide("engine", engine_file(build.engine), compiler, session),
        "baseline": BenchSide(
            "baseline_engine", engine_file(build.baseline_engine), compiler, session
        ),
    }
