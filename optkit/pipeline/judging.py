"""What a graph is worth: compiled, scored, timed."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optkit import runtimes, store
from optkit.benchmarking import sequential as looks
from optkit.errors import UsageError
from optkit.evidence import Evidence
from optkit.execute import reads
from optkit.execute.runner import Steps
from optkit.execute.step import Folder, Input
from optkit.pipeline.job import Build
from optkit.pipeline.scores import decided, drawn_name, score_name
from optkit.pipeline.sources import roots_of
from optkit.precisions import PRECISIONS
from optkit.recipe import Bench
from optkit.steps import GRAPH
from optkit.steps.accept import Accept
from optkit.steps.bench import MeasureLatency, Side, Timed
from optkit.steps.compare import CompareOutputs
from optkit.steps.compile import Compile, Compiled
from optkit.steps.draw import Draw
from optkit.steps.evaluate import Evaluate, Evaluated
from optkit.steps.peak import InProcess, MeasurePeak
from optkit.steps.predict import PredictLatency
from optkit.steps.sessions import CpuSession, DeviceSession, Engines
from optkit.tensors import AxisRange

_BYTES_TO_READ = 8  # per parameter: float32, and the copy that the compiler keeps


def accept(made: Build, runner: Steps) -> None:
    """Ask the compiler whether it knows all operators, as soon as the graph is fused: a refusal
    after calibration and quantization comes late. A graph that memory does not hold is not asked
    about, nor is a backend that runs any graph, since ONNX Runtime has run it."""
    needed = _BYTES_TO_READ * made.entries["source"].meta.get("parameters", 0)
    graph_runs = made.backend is None or made.traits.engine == "graph"
    if graph_runs or needed > runner.limits.memory_bytes:
        return
    versions = runtimes.backend(made.compiler).versions()
    step = Accept(graph=made.entries["fused"], backend=made.compiler, versions=versions)
    runner.do(step, f"ask {made.backend} about the operators")


def compile_(made: Build, runner: Steps) -> None:
    """graph → engine, for candidate and baseline, with the backend's own layer list."""
    for role, graph, precision, planned in (
        ("engine", made.entries["graph"], made.job.precision, made.planned),
        ("baseline_engine", made.entries["baseline"], made.baseline_precision, {}),
    ):
        backend, axes = runtimes.backend(made.compiler), made.job.recipe.axis_ranges()
        wanted = made.job.recipe.compiler.model_dump(exclude_none=True)
        asked = {
            name: runtimes.backend(name)
            .spec(made.inputs, made.job.target, precision, axes)
            .asking(wanted)
            for name in (made.compiler, *made.pending)
        }
        spec = asked.pop(made.compiler)
        made.specs[role] = spec
        made.specs |= {f"{role}, {name}": pending for name, pending in asked.items()}
        if made.backend is not None:
            step = Compile(
                graph=graph, backend=made.backend, spec=spec, planned=planned,
                versions=backend.versions(), host=_host(made), kept=kept(runner),
            )  # fmt: skip
            made.entries[role] = runner.do(step, f"compile {precision} for {made.job.target.name}")


def evaluate(made: Build, runner: Steps) -> None:
    """Task scores of candidate, baseline and reference on the same samples; fidelity to FP32."""
    samples, entries = made.scored, made.entries
    roles = {  # the baseline first: a task of agreement compares with what it said
        "baseline": (entries["baseline"], GRAPH, made.evidence),
        "candidate": (entries["graph"], made.simulation, made.evidence),
    }
    if made.baseline_precision.name != "fp32":  # where it is, the baseline says what FP32 is worth
        roles["reference"] = (entries["fused"], GRAPH, Evidence.SIMULATED)
    looked = samples is not None and _look(made, runner, roles)
    for role, (graph, file, evidence) in roles.items():
        if samples is not None and not looked:
            entries[score_name(role)] = score(made, runner, role, graph, file, evidence)
        step = CompareOutputs(
            graph=graph, reference=entries["fused"], file=file, batch=made.batch, evidence=evidence,
            samples=entries.get(drawn_name(0), entries["probe"]),
        )  # fmt: skip
        entries[f"{role}_fidelity"] = runner.do(step, f"compare {_named(made, role)} with FP32")


def _look(made: Build, runner: Steps, roles: dict[str, tuple[Folder, str, Evidence]]) -> bool:
    """Score the samples part by part until the verdict is certain, where the recipe asks for it."""
    samples, asked = made.scored, made.job.recipe.eval
    if samples is None or asked is None or not asked.stop_early or "info" not in samples.meta:
        return False
    if samples.meta.get("agreement"):
        raise UsageError(
            "agreement with the baseline takes all samples",
            where="eval.stop_early",
            hint="leave it out",
        )
    parts = looks.segments(samples.meta["info"]["samples"])
    for part, (start, stop) in enumerate(parts):
        step = Draw(
            samples=samples, start=start, stop=stop,
            optional=tuple(made.job.recipe.optional_axes()),
            memory=runner.limits.memory_bytes // 4,
        )  # fmt: skip
        drawn = runner.do(step, f"draw samples up to {stop} of {parts[-1][1]}")
        made.entries[drawn_name(part)] = drawn
        known = True
        for role in ("baseline", "candidate"):
            found = score(made, runner, role, *roles[role], drawn)
            made.entries[score_name(role, part)] = found
            known = known and found.score is not None
        if not known or decided(made):  # unknown in a rehearsal, which ends at the first look
            break
    for done in range(part + 1) if "reference" in roles else ():
        looked = made.entries[drawn_name(done)]
        found = score(made, runner, "reference", *roles["reference"], looked)
        made.entries[score_name("reference", done)] = found
    return True


def score(
    made: Build,
    runner: Steps,
    role: str,
    graph: Folder,
    file: str,
    evidence: Evidence,
    drawn: Folder | None = None,
) -> Evaluated:
    """The task's score of a graph; where its engine runs on this machine, of the engine. `drawn`:
    of some of the evaluation samples alone."""
    samples = made.scored
    assert samples is not None
    running, agrees = _running(made, role), samples.meta.get("agreement") and role != "baseline"
    engines = running.engines if running else ()
    place = made.job.recipe.eval_task
    assert place is not None
    record, roots = samples.meta.get("reads", {}), roots_of(made.job.recipe, "evaluation")
    # the task's code and packages are what matters, its path only where it is
    python = {path: sha256 for path, sha256 in reads.files(record, roots).items()
              if path.endswith(".py")}  # fmt: skip
    step = Evaluate(
        graph=graph, samples=drawn or samples,
        baseline_score=made.entries["baseline_score"] if agrees else None,
        engine=made.entries["engine"] if "engine" in engines else None,
        baseline_engine=made.entries["baseline_engine"] if "baseline_engine" in engines else None,
        file=file, batch=made.batch, evidence=evidence, task=str(place),
        code=store.digest_json(reads.code(record)),
        metric=samples.meta.get("metric"), args=samples.meta.get("scoring", {}), running=running,
        path=place.path, imports=python, roots=tuple(roots), kept=kept(runner),
    )  # fmt: skip
    return runner.do(step, f"evaluate {_named(made, role)}")


def time(made: Build, runner: Steps) -> None:
    """Latency: measured beside the baseline where the target is this machine, else predicted; of a
    kind of CPU that this machine is not of neither, it is pending."""
    bench, entries = made.job.recipe.bench, made.entries
    span = made.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if made.measured:
        models, sides = _sides(made)
        both = Race(
            f"measure latency of {made.job.precision} beside {made.baseline_precision}",
            entries["probe"], models, sides, bench, batches, made.machine,
        )  # fmt: skip
        timed = entries["latency"] = race(both, runner, strict=made.job.strict)
        made.recalled = runner.recalled(timed)
        return
    if not made.predictable:
        return
    sizes = {name: axis.opt for name, axis in made.job.recipe.axis_ranges().items()}
    planned = made.planned
    for role, graph, engine, precision in (
        ("latency", "graph", "engine", made.job.precision),
        ("baseline_latency", "baseline", "baseline_engine", made.baseline_precision),
    ):
        compiled = entries.get(engine)
        known = isinstance(compiled, Compiled) and not compiled.planned and compiled.engine
        step = PredictLatency(
            # without an engine, a quantized graph is its carrier graph and the plan
            graph=entries[graph if compiled or not precision.quantized else "baseline"],
            device=made.job.target.name, target=made.job.target.fingerprint(), axes=sizes,
            batch=span.opt, engine=known or None,
            planned=planned if precision.quantized else {},
            carrier=(made.baseline_precision if precision.quantized else precision).name,
        )  # fmt: skip
        entries[role] = runner.do(step, f"predict latency of {precision}")


def weigh(made: Build, runner: Steps) -> None:
    """Peak memory of a run, where a gate asks for it and the target is this machine: of the
    process on a CPU, of the device where an engine of its own runs there."""
    limits = made.job.recipe.gates.of(made.job.target.name)
    if limits.max_memory_bytes is None or not made.measured or made.traits.memory is None:
        return
    in_process = made.traits.memory == "process"
    running = None if in_process else _running(made, "candidate")
    step = MeasurePeak(
        samples=made.entries["probe"], graph=made.entries["graph"] if in_process else None,
        engine=None if in_process else made.entries["engine"],
        running=running or InProcess(made.job.recipe.bench.threads), batch=made.batch or 1,
        host=made.machine, kept=kept(runner),
    )  # fmt: skip
    made.entries["peak"] = runner.do(step, f"measure memory of {made.job.precision}")


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


def _sides(made: Build) -> tuple[dict[str, Input], dict[str, Side]]:
    """Candidate and baseline as they run on the target: as graphs where that is this CPU, else as
    engines."""
    roles = {"engine": "candidate", "baseline": "baseline"}
    compiler = str(made.backend)
    if not made.runs_engines:
        graphs: dict[str, Input] = {"engine": made.entries["graph"],
                                    "baseline": made.entries["baseline"]}  # fmt: skip
        session = CpuSession(made.job.recipe.bench.threads)
        return graphs, {name: Side(name, GRAPH, compiler, session) for name in roles}
    running = _running(made, *roles.values())
    assert running is not None
    return {name: made.entries[name] for name in running.engines}, {
        name: Side(_ENGINES[role], running.engines[_ENGINES[role]], compiler, running.session)
        for name, role in roles.items()
    }


def _named(made: Build, role: str) -> str:
    """ "int8 candidate", "fp16 baseline", "fp32 reference"."""
    known = {"candidate": made.job.precision, "baseline": made.baseline_precision,
             "reference": PRECISIONS["fp32"]}  # fmt: skip
    return f"{known[role]} {role}"


_ENGINES = {"candidate": "engine", "baseline": "baseline_engine"}


def _running(made: Build, *roles: str) -> Engines | None:
    """How the engines of these roles are run; None where they are graphs, or their device is not
    here."""
    if not made.runs_engines:
        return None
    engines = {_ENGINES[role]: made.entries[_ENGINES[role]] for role in roles}
    files = {name: entry.meta["engine"]["file"] for name, entry in engines.items()}
    graphs = made.specs["engine"].options.get("cuda_graph", False)
    session = DeviceSession(made.job.target.name, graphs)
    return Engines(str(made.backend), files, session)


def kept(runner: Steps) -> Path:
    """Where a library may keep what it learned on this device: beside the store's objects."""
    return runner.objects.with_name("devices")


def _host(made: Build) -> dict[str, Any] | None:
    """ONNX Runtime optimizes for the CPU it runs on; a TensorRT-RTX engine is the same anywhere."""
    return made.machine if made.measured else None
