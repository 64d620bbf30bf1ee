"""What a graph is worth: compiled, scored, timed."""

from __future__ import annotations

from typing import Any

from optkit import precision as precisions
from optkit import runtime, store
from optkit.execute.runner import Made, Steps
from optkit.pipeline.job import Build
from optkit.runtime import AxisRange, Evidence
from optkit.steps import GRAPH, STEPS


def compile_(made: Build, runner: Steps) -> None:
    """graph → engine, for candidate and baseline, with the backend's own layer list."""
    for role, graph, precision, planned in (
        ("engine", made.entries["graph"], made.job.precision, made.planned),
        ("baseline_engine", made.entries["baseline"], made.baseline_precision, {}),
    ):
        backend = runtime.backend(made.compiler)
        spec = backend.spec(made.inputs, made.job.target, precision, made.job.recipe.axis_ranges())
        made.specs[role] = spec
        if made.backend is not None:
            made.entries[role] = runner.step(
                STEPS["compile"].kind,
                f"compile {precision} for {made.job.target.name}",
                {"graph": graph},
                {"backend": made.backend, "spec": spec.to_json(), "planned": planned,
                 "versions": backend.versions(), "host": _host(made)},
            )  # fmt: skip


def evaluate(made: Build, runner: Steps) -> None:
    """Task scores of candidate, baseline and reference on the same samples; fidelity to FP32."""
    samples, entries = made.scored, made.entries
    reference = entries["cast"] if made.measured else entries["fused"]
    roles = {
        "candidate": (entries["graph"], made.simulation, made.evidence),
        "baseline": (entries["baseline"], GRAPH, made.evidence),
        "reference": (reference, GRAPH, Evidence.SIMULATED),
    }
    for role, (graph, file, evidence) in roles.items():
        params = {"file": file, "batch": made.batch, "evidence": evidence}
        if samples is not None:
            task, here = _task(made, samples)
            entries[f"{role}_score"] = runner.step(
                STEPS["evaluate"].kind,
                f"evaluate {role}",
                {"graph": graph, "samples": samples},
                {**params, **task},
                here,
            )
        entries[f"{role}_fidelity"] = runner.step(
            STEPS["compare"].kind,
            f"compare {role} with FP32",
            {"graph": graph, "reference": entries["fused"], "samples": entries["probe"]},
            params,
        )


def time(made: Build, runner: Steps) -> None:
    """Latency: measured beside the baseline where the target is this machine, else predicted."""
    bench, entries = made.job.recipe.bench, made.entries
    span = made.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if made.measured:
        entries["latency"] = runner.step(
            STEPS["bench"].kind,
            "measure latency",
            {"graph": entries["graph"], "baseline": entries["baseline"],
             "samples": entries["probe"]},
            {"batches": batches, "seconds": bench.seconds, "warmup_seconds": bench.warmup_seconds,
             "threads": bench.threads, "host": made.job.target.fingerprint()},
        )  # fmt: skip
        return
    sizes = {name: axis.opt for name, axis in made.job.recipe.axis_ranges().items()}
    planned = made.planned
    for role, graph, engine, precision in (
        ("latency", "graph", "engine", made.job.precision),
        ("baseline_latency", "baseline", "baseline_engine", made.baseline_precision),
    ):
        compiled = entries.get(engine)
        quantized = precisions.precision(precision).quantized
        entries[role] = runner.step(
            STEPS["predict"].kind,
            "predict latency",
            # without an engine, a quantized graph is its carrier graph and the plan
            {"graph": entries[graph if compiled or not quantized else "baseline"]},
            {"name": made.job.target.name, "target": made.job.target.fingerprint(), "axes": sizes,
             "batch": span.opt, "engine": compiled and compiled.meta.get("engine"),
             "planned": planned if quantized else {},
             "carrier": made.baseline_precision if quantized else precision},
        )  # fmt: skip


def _task(made: Build, samples: Made) -> tuple[dict[str, Any], dict[str, Any]]:
    """The task's score function: its code's digest is what matters, its path only where it is."""
    place = made.job.recipe.eval_task
    assert place is not None
    code = samples.meta.get("reads", {}).get("files", {})
    digest = store.digest_json(sorted(code.values()))
    params = {"task": str(place), "code": digest, "metric": samples.meta.get("metric"),
              "args": samples.meta.get("scoring", {})}  # fmt: skip
    return params, {"path": str(place.path)}


def _host(made: Build) -> dict[str, Any] | None:
    """ONNX Runtime optimizes for the CPU it runs on; a TensorRT-RTX engine is the same anywhere."""
    return made.job.target.fingerprint() if made.measured else None
