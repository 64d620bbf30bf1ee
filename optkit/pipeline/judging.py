"""What a graph is worth: compiled, scored, timed."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optkit import runtimes, store
from optkit.benchmarking import sequential as looks
from optkit.errors import UsageError
from optkit.evidence import Evidence
from optkit.execute import reads
from optkit.execute.runner import Made, Steps
from optkit.execute.step import Input
from optkit.pipeline.job import Build
from optkit.pipeline.scores import decided, drawn_name, score_name
from optkit.pipeline.sources import roots_of
from optkit.precisions import PRECISIONS
from optkit.recipe import Bench
from optkit.steps import GRAPH, STEPS
from optkit.steps.accept import Accept
from optkit.steps.compile import Compile
from optkit.steps.draw import Draw
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
                versions=backend.versions(), host=_host(made), kept=Path(kept(runner)["kept"]),
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
        params = {"file": file, "batch": made.batch, "evidence": evidence}
        if samples is not None and not looked:
            entries[score_name(role)] = score(made, runner, role, graph, file, evidence)
        entries[f"{role}_fidelity"] = runner.step(
            STEPS["compare"].kind,
            f"compare {_named(made, role)} with FP32",
            {
                "graph": graph,
                "reference": entries["fused"],
                "samples": entries.get(drawn_name(0), entries["probe"]),
            },
            params,
        )


def _look(made: Build, runner: Steps, roles: dict[str, tuple[Made, str, Evidence]]) -> bool:
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
            known = known and "score" in found.meta
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
    graph: Made,
    file: str,
    evidence: Evidence,
    drawn: Made | None = None,
) -> Made:
    """The task's score of a graph; where its engine runs on this machine, of the engine. `drawn`:
    of some of the evaluation samples alone."""
    samples = made.scored
    assert samples is not None
    task, here = _task(made, samples)
    inputs, params = _running(made, {"graph": graph, "samples": drawn or samples}, role)
    if samples.meta.get("agreement") and role != "baseline":
        inputs["baseline_score"] = made.entries["baseline_score"]
    return runner.step_reading_code(
        STEPS["evaluate"].kind,
        f"evaluate {_named(made, role)}",
        inputs,
        {"file": file, "batch": made.batch, "evidence": evidence, **task, **params},
        {**here, **kept(runner)},
        roots=roots_of(made.job.recipe, "evaluation"),
        anywhere=True,
    )


def time(made: Build, runner: Steps) -> None:
    """Latency: measured beside the baseline where the target is this machine, else predicted; of a
    kind of CPU that this machine is not of neither, it is pending."""
    bench, entries = made.job.recipe.bench, made.entries
    span = made.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if made.measured:
        inputs, sides = _sides(made)
        both = Race(
            f"measure latency of {made.job.precision} beside {made.baseline_precision}",
            {**inputs, "samples": entries["probe"]}, sides, bench, batches, made.machine,
        )  # fmt: skip
        entries["latency"] = race(both, runner, strict=made.job.strict)
        made.recalled = runner.recalled(entries["latency"])
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
        entries[role] = runner.step(
            STEPS["predict"].kind,
            f"predict latency of {precision}",
            # without an engine, a quantized graph is its carrier graph and the plan
            {"graph": entries[graph if compiled or not precision.quantized else "baseline"]},
            {"name": made.job.target.name, "target": made.job.target.fingerprint(), "axes": sizes,
             "batch": span.opt, "engine": compiled and compiled.meta.get("engine"),
             "planned": planned if precision.quantized else {},
             "carrier": (made.baseline_precision if precision.quantized else precision).name},
        )  # fmt: skip


def weigh(made: Build, runner: Steps) -> None:
    """Peak memory of a run, where a gate asks for it and the target is this machine: of the
    process on a CPU, of the device where an engine of its own runs there."""
    limits = made.job.recipe.gates.of(made.job.target.name)
    if limits.max_memory_bytes is None or not made.measured or made.traits.memory is None:
        return
    inputs: dict[str, Input] = {"samples": made.entries["probe"]}
    if made.traits.memory == "process":
        inputs["graph"] = made.entries["graph"]
        params: dict[str, Any] = {"threads": made.job.recipe.bench.threads}
    else:
        inputs, params = _running(made, inputs, "candidate")
    made.entries["peak"] = runner.step(
        STEPS["peak"].kind,
        f"measure memory of {made.job.precision}",
        inputs,
        {"batch": made.batch or 1, **params, "host": made.machine},
        kept(runner),
    )


@dataclass(frozen=True)
class Race:
    """Two models to be timed in one run. `sides`: "engine" and "baseline" → the input and file each
    is in, its backend and the session's options; `machine`: what a run here depends on."""

    label: str
    inputs: dict[str, Input]
    sides: dict[str, dict[str, Any]]
    bench: Bench
    batches: list[int]
    machine: dict[str, Any]


def race(both: Race, runner: Steps, *, strict: bool, anew: bool = False) -> Made:
    """Their latencies. What the store has of a run under bad conditions is never served, it is done
    again: the key of a try counts those that were marked before it. `strict`: so is one of now,
    once; `anew`: nothing that was measured before counts."""
    bench, machine = both.bench, both.machine
    params = {"batches": both.batches, "seconds": bench.seconds,
              "warmup_seconds": bench.warmup_seconds, "sides": both.sides,
              "gpu": bool(machine.get("gpus")), "host": machine}  # fmt: skip
    on_cpu = runtimes.backend(both.sides["engine"]["backend"]).traits.on_cpu
    here = {} if on_cpu else kept(runner)

    def run(**again: str) -> Made:
        return runner.step(STEPS["bench"].kind, both.label, both.inputs, {**params, **again}, here)

    def marked(found: Made) -> bool:
        rows = found.meta.get("rows", ())
        return any(row[side]["marks"] for row in rows for side in both.sides)

    if anew:
        found = run(at=str(clock.time_ns()))
        return run(at=str(clock.time_ns())) if strict and marked(found) else found
    found, tries = run(), 0
    while marked(found) and (runner.recalled(found) or strict):
        strict = strict and runner.recalled(found)
        tries += 1
        found = run(marked=str(tries))
    return found


def _sides(made: Build) -> tuple[dict[str, Input], dict[str, dict[str, Any]]]:
    """Candidate and baseline as they run on the target: as graphs where that is this CPU, else as
    engines."""
    roles = {"engine": "candidate", "baseline": "baseline"}
    if not made.runs_engines:
        graphs: dict[str, Input] = {"engine": made.entries["graph"],
                                    "baseline": made.entries["baseline"]}  # fmt: skip
        session = {"threads": made.job.recipe.bench.threads, "spinning": False}
        side = {"file": GRAPH, "backend": made.backend, "session": session}
        return graphs, {name: {"input": name, **side} for name in roles}
    inputs, params = _running(made, {}, *roles.values())
    sides = {}
    for name, role in roles.items():
        engine = _ENGINES[role]
        sides[name] = {"input": engine, "file": params["engines"][engine],
                       "backend": made.backend, "session": params["session"]}  # fmt: skip
    return inputs, sides


def _named(made: Build, role: str) -> str:
    """ "int8 candidate", "fp16 baseline", "fp32 reference"."""
    known = {"candidate": made.job.precision, "baseline": made.baseline_precision,
             "reference": PRECISIONS["fp32"]}  # fmt: skip
    return f"{known[role]} {role}"


_ENGINES = {"candidate": "engine", "baseline": "baseline_engine"}


def _running(
    made: Build, inputs: dict[str, Input], *roles: str
) -> tuple[dict[str, Input], dict[str, Any]]:
    """Inputs and parameters of a step that runs these roles: where the engine is no graph, and its
    device is here, engines are among them."""
    if not made.runs_engines:
        return inputs, {}
    engines = {_ENGINES[role]: made.entries[_ENGINES[role]] for role in roles}
    files = {name: entry.meta["engine"]["file"] for name, entry in engines.items()}
    session = {"target": made.job.target.name,
               "cuda_graph": made.specs["engine"].options.get("cuda_graph", False)}  # fmt: skip
    return {**inputs, **engines}, {"backend": made.backend, "engines": files, "session": session}


def kept(runner: Steps) -> dict[str, str]:
    """Where a library may keep what it learned on this device: beside the store's objects."""
    return {"kept": str(runner.objects.with_name("devices"))}


def _task(made: Build, samples: Made) -> tuple[dict[str, Any], dict[str, Any]]:
    """The task's score function: its code and packages are what matters, its path only where it is.
    `imports`: the Python files that a node must have as they are here."""
    place = made.job.recipe.eval_task
    assert place is not None
    record = samples.meta.get("reads", {})
    digest = store.digest_json(reads.code(record))
    files = reads.files(record, roots_of(made.job.recipe, "evaluation"))
    params = {"task": str(place), "code": digest, "metric": samples.meta.get("metric"),
              "args": samples.meta.get("scoring", {})}  # fmt: skip
    imports = {path: sha256 for path, sha256 in files.items() if path.endswith(".py")}
    return params, {"path": str(place.path), "imports": imports}


def _host(made: Build) -> dict[str, Any] | None:
    """ONNX Runtime optimizes for the CPU it runs on; a TensorRT-RTX engine is the same anywhere."""
    return made.machine if made.measured else None
