"""From what the steps left on disk to figures, a verdict, the result object and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from optkit import pipeline, runtimes
from optkit.assignment import Assignment
from optkit.benchmarking import accuracy, gates
from optkit.benchmarking.latency import ratio
from optkit.engines import Engine
from optkit.evidence import Evidence
from optkit.execute.runner import Record
from optkit.execute.step import Folder
from optkit.measurement import Difference, Fidelity, Latency, Memory, Score, Verdict
from optkit.pipeline.job import Build
from optkit.pipeline.scores import slices, stopped, task_scores
from optkit.precisions import Precision
from optkit.recipe.schema import ENGINE_LIMITS
from optkit.report import document
from optkit.report.document import Rewrites
from optkit.report.result import Findings, Run, Side, result, to_finish
from optkit.steps import TIMES


@dataclass(frozen=True)
class Judged:
    """A finished build: the result object, the report document, and the records behind them."""

    result: dict[str, Any]
    report: dict[str, Any]
    findings: Findings


def judge(
    made: Build,
    records: list[Record],
    *,
    artifact: str,
    scores: Mapping[str, Score] | None = None,
) -> Judged:
    """All figures of a build. `scores`: by role, when the caller evaluated by itself."""
    times = latencies(made)
    sides = _sides(made, times, dict(scores) if scores is not None else task_scores(made))
    found = _findings(made, sides, times, slices(made) if scores is None else [])
    outcome = _result(made, sides, found, records, artifact)
    report = document.compose(
        outcome,
        document.measured(
            outcome, sides["candidate"], sides["baseline"], found, times, _conditions(made)
        ),
        rewrites=_rewrites(made),
        layer_fidelity=_layer_fidelity(made),
        provenance=_provenance(made, records),
    )
    return Judged(outcome, report, found)


def judge_again(
    made: Build,
    records: list[Record],
    report: Mapping[str, Any],
    *,
    artifact: str,
    rescored: bool,
) -> Judged:
    """All figures of a build that was finished on its device; what was known before stays in its
    `report`: how the graph was made, and the accuracy of references (unless `rescored`, on samples
    that those have not seen)."""
    before = report["result"]
    times = latencies(made)
    sides = _sides(made, times, task_scores(made))
    found = _findings(made, sides, times, slices(made))
    outcome = _result(made, sides, found, records, artifact)
    outcome["references"] = [] if rescored else before["references"]
    outcome["calibration"] = before.get("calibration")
    for key, seconds in before["seconds"].items():
        outcome["seconds"][key] = round(outcome["seconds"].get(key, 0.0) + seconds, 3)
    outcome["cache_hits"] += before["cache_hits"]
    again = document.finished(
        report,
        outcome,
        document.measured(
            outcome, sides["candidate"], sides["baseline"], found, times, _conditions(made)
        ),
        {
            "steps": [asdict(record) for record in records],
            "build_spec": _specs(made),
            "finished": {"machine": made.machine, "versions": pipeline.tool_versions()},
        },
    )  # fmt: skip
    return Judged(outcome, again, found)


def latencies(made: Build) -> dict[str, list[Latency]]:
    """role ("engine", "baseline") → one Latency per batch size; none where it is pending."""
    times = _latencies(made)
    if made.is_baseline:  # one model under two names: nothing to tell apart
        times["baseline"] = times["engine"]
    return times


def _latencies(made: Build) -> dict[str, list[Latency]]:
    entry = made.entries.get("latency")
    if entry is None:
        return {"engine": [], "baseline": []}
    if made.measured:
        times = _arrays(entry, TIMES)
        return {
            role: [
                replace(
                    Latency.from_json(row[role]),
                    samples_ms=tuple(times[f"{role}/{row[role]['batch']}"].tolist()),
                    from_store=made.recalled,
                )
                for row in entry.meta["rows"]
            ]
            for role in ("engine", "baseline")
        }
    return {
        "engine": [Latency.from_json(entry.meta["latency"])],
        "baseline": [Latency.from_json(made.entries["baseline_latency"].meta["latency"])],
    }


def speedups(made: Build, times: Mapping[str, list[Latency]]) -> dict[int, Difference]:
    """batch → baseline latency over candidate latency."""
    if made.measured and not made.is_baseline:
        rows = made.entries["latency"].meta["rows"]
        return {row["engine"]["batch"]: Difference.from_json(row["speedup"]) for row in rows}
    pairs = zip(times["engine"], times["baseline"], strict=True)
    return {one.batch: ratio(base, one) for one, base in pairs}


def judge_accuracy(made: Build, scores: Mapping[str, Score]) -> Verdict:
    """The gates that need nothing but scores and outputs."""
    pair = (scores["baseline"], scores["candidate"]) if "candidate" in scores else None
    limits = made.job.recipe.gates.of(made.job.target.name)
    return gates.judge(
        limits.model_copy(update=dict.fromkeys(ENGINE_LIMITS)),
        drop=accuracy.drop(*pair) if pair else None,
        scores=pair,
        slices=slices(made),
        fidelity=fidelity(made),
        told=stopped(made),
    )


def fidelity(made: Build, role: str = "candidate") -> Fidelity:
    return Fidelity.from_json(made.entries[f"{role}_fidelity"].meta["fidelity"])


def calibration(made: Build) -> Mapping[str, Any] | None:
    """What the data check says of the calibration data; None where there is none."""
    entry = made.entries.get("data_check")
    return None if entry is None else entry.meta["check"]


def _result(
    made: Build,
    sides: Mapping[str, Side],
    found: Findings,
    records: list[Record],
    artifact: str,
) -> dict[str, Any]:
    return result(
        sides["candidate"],
        sides["baseline"],
        found,
        Run(_seconds(records), sum(record.hit for record in records)),
        model=made.job.recipe.name,
        target=made.job.target.name,
        artifact=artifact,
        references=[sides["reference"]] if sides["reference"].accuracy else [],
        pending=to_finish(artifact, made.pending),
        calibration=calibration(made),
    )


def _conditions(made: Build) -> Mapping[str, Any]:
    entry = made.entries.get("latency")
    return {} if entry is None else entry.meta.get("conditions", {})


def _sides(
    made: Build, times: Mapping[str, list[Latency]], scores: Mapping[str, Score]
) -> dict[str, Side]:
    backend = made.compiler

    def side(precision: Precision, engine: str, role: str, latency: str) -> Side:
        compiled = _engine(made, engine)
        evidence = Evidence.MEASURED if made.measured else Evidence.COMPILED
        return Side(
            precision.name,
            backend,
            compiled,
            evidence if compiled else Evidence.PENDING,
            _note(made, backend),
            _at(times[latency], made.batch),
            scores.get(role),
        )

    candidate = side(made.job.precision, "engine", "candidate", "engine")
    return {
        "candidate": candidate,
        "baseline": candidate
        if made.is_baseline
        else side(made.baseline_precision, "baseline_engine", "baseline", "baseline"),
        "reference": Side("fp32", accuracy=scores.get("reference")),
    }


def _findings(
    made: Build,
    sides: Mapping[str, Side],
    times: Mapping[str, list[Latency]],
    names: list[str],
) -> Findings:
    candidate, baseline = sides["candidate"], sides["baseline"]
    latency = candidate.latency
    speedup = speedups(made, times).get(latency.batch) if latency else None
    drop, pair = None, None
    if candidate.accuracy and baseline.accuracy:
        pair = (baseline.accuracy, candidate.accuracy)
        drop = accuracy.drop(*pair)
    likeness = fidelity(made)
    verdict = gates.judge(
        made.job.recipe.gates.of(made.job.target.name),
        drop=drop,
        scores=pair,
        slices=names,
        told=stopped(made),
        fidelity=likeness,
        latency=latency,
        speedup=speedup,
        size_bytes=candidate.engine.bytes if candidate.engine else None,
        memory=_memory(made, candidate.engine),
    )
    return Findings(likeness, speedup, drop, verdict)


def _memory(made: Build, engine: Engine | None) -> Memory | None:
    """What a run takes, where it was measured; else what the engine's compiler states."""
    if "peak" in made.entries:
        found = made.entries["peak"].meta
        return Memory(Evidence.MEASURED, found["bytes"], tuple(found.get("marks", ())))
    stated = engine.stated_bytes if engine is not None else None
    return None if stated is None else Memory(Evidence.COMPILED, stated)


def _note(made: Build, backend: str) -> str | None:
    option = next((o for o in made.job.target.backends if o.name == backend), None)
    if made.backend is None:
        if made.job.deferred:
            return "deferred"
        reason = runtimes.backend(backend).offline(made.job.target)
        if made.job.target.is_cpu and reason is not None:
            return f"{reason}: finish or build it on a machine of the kind {made.job.target.name}"
        return "no engine can be built on this machine"
    if made.runs_engines:  # what is said of engines that never ran
        return None
    never_run = runtimes.backend(backend).traits.any_machine
    return (option.note if option else None) or (
        "compiled here without the device; never run" if never_run else None
    )


def _at(times: list[Latency], batch: int | None) -> Latency | None:
    """The one at a batch size, with the marks of all, which one run measured; None of none."""
    if not times:
        return None
    found = next((one for one in times if one.batch == batch), times[0])
    marks = dict.fromkeys(mark for one in times for mark in one.marks)
    return replace(found, marks=tuple(marks))


def _engine(made: Build, role: str) -> Engine | None:
    entry = made.entries.get(role)
    return Engine.from_json(entry.meta["engine"]) if entry else None


def _rewrites(made: Build) -> Rewrites:
    done = made.entries["quantized"].meta if "quantized" in made.entries else None
    return Rewrites(
        made.entries["fused"].meta["log"],
        made.entries["cast"].meta["log"] if made.baseline_precision.name == "fp16" else {},
        made.entries["prepared"].meta["log"] if "prepared" in made.entries else {},
        done["log"] if done else {},
        Assignment.from_json(done["assignment"]) if done else Assignment(),
    )


def _layer_fidelity(made: Build) -> Mapping[str, Any] | None:
    entry = made.entries.get("layer_fidelity")
    return None if entry is None else entry.meta["layers"]


def _provenance(made: Build, records: list[Record]) -> dict[str, Any]:
    entries = made.entries
    return {
        "recipe": made.job.recipe.to_json(),
        "digests": {
            "build": pipeline.identity(made),
            **{role: entries[role].digest for role in sorted(entries)},
        },
        "versions": pipeline.tool_versions(),
        "steps": [asdict(record) for record in records],
        "build_spec": _specs(made),
        **({"machine": made.machine} if made.measured else {}),
    }


def _specs(made: Build) -> dict[str, Any]:
    return {role: spec.to_json() for role, spec in made.specs.items()}


def _seconds(records: list[Record]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for record in records:
        spent[record.step] = round(spent.get(record.step, 0.0) + record.seconds, 3)
    return {**spent, "total": round(sum(spent.values()), 3)}


def _arrays(entry: Folder, name: str) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = load_file(entry.file(name))
    return found
