"""Figures, a verdict, the result object and the report, from the results of the steps on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from safetensors.numpy import load_file

from optkit.craft.benchmarking import gates, paired_drop
from optkit.craft.benchmarking.latency import ratio
from optkit.craft.prediction.call import speedup
from optkit.facts import codec
from optkit.facts.assignment import Assignment, QuantizedProducts
from optkit.facts.documents.pictures import WorstPictures
from optkit.facts.documents.record import Object
from optkit.facts.documents.report import (
    AskedOfCompiler,
    ExportComparison,
    FinishedOn,
    Provenance,
    Report,
)
from optkit.facts.documents.result import CalibrationCheck, Result
from optkit.facts.engines import Engine
from optkit.facts.evidence import Evidence
from optkit.facts.listed_steps import StepTaken
from optkit.facts.measurement import (
    Difference,
    Fidelity,
    Latencies,
    Latency,
    Memory,
    Score,
    Scores,
    Verdict,
)
from optkit.facts.precisions import Precision
from optkit.ground import runtimes
from optkit.ground.recipe.sections import ENGINE_LIMITS
from optkit.road import pipeline
from optkit.road.pipeline import attribution
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.refusals import untrained
from optkit.road.pipeline.scores import slices, stopped, task_scores
from optkit.road.pipeline.simulated_arithmetic import assumed
from optkit.road.pipeline.size_findings import declared_sizes
from optkit.road.steps.bench import BenchResult
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.file_names import TIMES
from optkit.road.steps.predict import PredictedLatency
from optkit.show.report import document
from optkit.show.report.build_result import BuildRun, Findings, PrecisionResult, result, to_finish
from optkit.show.report.document import Rewrites
from optkit.show.report.titles import scored_beside


@dataclass(frozen=True)
class JudgedBuild:
    """A finished build: its result, its report, and the records behind them."""

    result: Result
    report: Report
    findings: Findings


@dataclass(frozen=True)
class _Sides:
    candidate: PrecisionResult
    baseline: PrecisionResult
    reference: PrecisionResult


def judge(
    build: Build, records: list[StepTaken], *, artifact: str, scores: Scores | None = None
) -> JudgedBuild:
    """All figures of a build. `scores`: those of a caller that evaluated the models itself."""
    times = latencies(build)
    sides = _sides(build, times, task_scores(build) if scores is None else scores)
    findings = _findings(build, sides, times, slices(build) if scores is None else [])
    outcome = _result(build, sides, findings, records, artifact)
    report = document.compose(
        outcome,
        document.measured(
            outcome, sides.candidate, sides.baseline, findings, times, conditions(build)
        ),
        rewrites=_rewrites(build),
        layer_fidelity=build.layer_fidelity.layers if build.layer_fidelity else None,
        export=_export(build),
        worst=_worst(build),
        simulation=assumed(build),
        provenance=_provenance(build, records),
    )
    return JudgedBuild(outcome, attribution.explained(report, build), findings)


def judge_again(
    build: Build, records: list[StepTaken], report: Report, *, artifact: str, rescored: bool
) -> JudgedBuild:
    """All figures of a build that was finished on its device. The `report` keeps the older facts:
    how the graph was built, and the accuracy of references. `rescored`: the samples are new, and
    the references were not evaluated on them, so the report drops the accuracy of references. It
    also does where the score of the baseline was that of a given graph, which no artifact holds."""
    before = report.result
    anew = build.evaluation is not None and scored_beside(before) is not None
    times = latencies(build)
    sides = _sides(build, times, task_scores(build))
    findings = _findings(build, sides, times, slices(build))
    outcome = _result(build, sides, findings, records, artifact)
    spent = {
        step: round(outcome.seconds.get(step, 0.0) + seconds, 3)
        for step, seconds in before.seconds.items()
    }
    outcome = outcome.model_copy(
        update={
            "references": () if rescored or anew else before.references,
            "calibration": before.calibration,
            "sizes": outcome.sizes or before.sizes,
            "untrained": before.untrained,
            "seconds": {**outcome.seconds, **spent},
            "cache_hits": outcome.cache_hits + before.cache_hits,
        }
    )
    again = document.finished(
        report,
        outcome,
        document.measured(
            outcome, sides.candidate, sides.baseline, findings, times, conditions(build)
        ),
        {
            "steps": (*report.provenance.steps, *_steps(records)),
            "build_spec": _specs(build),
            "finished": FinishedOn(machine=build.machine, versions=pipeline.tool_versions()),
        },
        _worst(build),
    )
    return JudgedBuild(outcome, attribution.explained(again, build), findings)


def latencies(build: Build) -> Latencies:
    """One Latency per batch size, of candidate and baseline; none if the latency is pending."""
    times = _latencies(build)
    if build.is_baseline:  # both names mean the same model
        return replace(times, baseline=times.engine)
    return times


def _latencies(build: Build) -> Latencies:
    timed = build.latency
    if isinstance(timed, BenchResult):
        times = load_file(timed.file(TIMES))

        def full(role: str, latency: Latency) -> Latency:
            runs = tuple(times[f"{role}/{latency.batch}"].tolist())
            return replace(latency, samples_ms=runs, from_store=build.recalled)

        return Latencies(
            [full("engine", row.engine) for row in timed.rows],
            [full("baseline", row.baseline) for row in timed.rows],
        )
    baseline = build.baseline_latency
    return Latencies(
        [] if timed is None else [timed.latency], [] if baseline is None else [baseline.latency]
    )


def speedups(build: Build, times: Latencies) -> dict[int, Difference]:
    """Batch size → baseline latency divided by candidate latency."""
    if isinstance(build.latency, BenchResult) and not build.is_baseline:
        return {row.engine.batch: row.speedup for row in build.latency.rows}
    pairs = zip(times.engine, times.baseline, strict=True)
    predicted = build.latency
    if isinstance(predicted, PredictedLatency) and not build.is_baseline:
        return {
            engine.batch: speedup(baseline, engine, predicted.kind) for engine, baseline in pairs
        }
    return {engine.batch: ratio(baseline, engine) for engine, baseline in pairs}


def judge_accuracy(build: Build, scores: Scores) -> Verdict:
    """The gates that need only scores and outputs."""
    pair = scores.pair
    limits = build.job.recipe.gates.of(build.job.target.name)
    return gates.judge(
        limits.model_copy(update=dict.fromkeys(ENGINE_LIMITS)),
        drop=paired_drop.drop(*pair) if pair else None,
        scores=pair,
        slices=slices(build),
        fidelity=fidelity(build),
        told=stopped(build),
    )


def fidelity(build: Build) -> Fidelity:
    compared = build.candidate_fidelity
    assert compared is not None and compared.fidelity is not None
    return compared.fidelity


def calibration(build: Build) -> CalibrationCheck | None:
    """The verdict of the data check on the calibration data; None if there was no check."""
    checked = build.data_check
    return None if checked is None else CalibrationCheck.from_json(checked.check)


def quantized(build: Build) -> QuantizedProducts | None:
    """How much of the graph is quantized; None for a precision of floats, and before it is."""
    assignment = build.assignment
    if assignment is None or not build.job.precision.quantized:
        return None
    return assignment.coverage()


def _result(
    build: Build, sides: _Sides, findings: Findings, records: list[StepTaken], artifact: str
) -> Result:
    return result(
        sides.candidate,
        sides.baseline,
        findings,
        BuildRun(_seconds(records), _hits(records)),
        model=build.job.recipe.name,
        target=build.job.target.name,
        artifact=artifact,
        references=[sides.reference] if sides.reference.accuracy else [],
        pending=to_finish(artifact, build.pending),
        calibration=calibration(build),
        quantized=quantized(build),
        sizes=declared_sizes(build),
        untrained=untrained(build),
    )


def _hits(records: Sequence[StepTaken]) -> int:
    """The number of steps whose results were in the store before this run."""
    made = {record.key for record in records if not record.hit}
    return len({record.key for record in records} - made)


def conditions(build: Build) -> Object:
    return build.latency.conditions.to_json() if isinstance(build.latency, BenchResult) else {}


def _sides(build: Build, times: Latencies, scores: Scores) -> _Sides:
    backend = build.compiler

    def side(
        precision: Precision,
        result: CompiledEngine | None,
        latencies: Sequence[Latency],
        accuracy: Score | None,
        layers: PredictedLatency | None,
    ) -> PrecisionResult:
        compiled = result.engine if result is not None else None
        evidence = Evidence.MEASURED if build.measured else Evidence.COMPILED
        return PrecisionResult(
            precision.name,
            backend,
            compiled,
            evidence if compiled else Evidence.PENDING,
            _note(build, backend),
            _at(latencies, build.batch),
            accuracy,
            build.serving if layers is not None else None,
            layers.latency if layers is not None and layers.of_layers else None,
        )

    candidate = baseline = side(
        build.job.precision, build.engine, times.engine, scores.candidate, build.compiled_latency
    )
    if not build.is_baseline:
        baseline = side(
            build.baseline_precision,
            build.baseline_engine,
            times.baseline,
            scores.baseline,
            build.baseline_compiled_latency,
        )
    return _Sides(candidate, baseline, PrecisionResult("fp32", accuracy=scores.reference))


def _findings(build: Build, sides: _Sides, times: Latencies, names: list[str]) -> Findings:
    candidate, baseline = sides.candidate, sides.baseline
    latency = candidate.latency
    speedup = speedups(build, times).get(latency.batch) if latency else None
    pair = Scores(candidate.accuracy, baseline.accuracy).pair
    drop = paired_drop.drop(*pair) if pair else None
    to_fp32 = fidelity(build)
    verdict = gates.judge(
        build.job.recipe.gates.of(build.job.target.name),
        drop=drop,
        scores=pair,
        slices=names,
        told=stopped(build),
        fidelity=to_fp32,
        latency=latency,
        speedup=speedup,
        size_bytes=candidate.engine.bytes if candidate.engine else None,
        memory=_memory(build, candidate.engine),
    )
    return Findings(to_fp32, speedup, drop, verdict)


def _memory(build: Build, engine: Engine | None) -> Memory | None:
    """The memory of a run if it was measured, otherwise the figure of the engine's compiler."""
    if build.peak is not None:
        return Memory(Evidence.MEASURED, build.peak.bytes, build.peak.marks)
    stated = engine.stated_bytes if engine is not None else None
    return None if stated is None else Memory(Evidence.COMPILED, stated)


def _note(build: Build, backend: str) -> str | None:
    option = next((o for o in build.job.target.backends if o.name == backend), None)
    if build.backend is None:
        if build.job.deferred:
            return "deferred"
        reason = runtimes.backend(backend).offline(build.job.target)
        if build.job.target.is_cpu and reason is not None:
            return f"{reason}: finish or build it on a machine of the kind {build.job.target.name}"
        return "no engine can be built on this machine"
    if build.runs_engines:  # the notes below are about engines that never ran
        return None
    never_run = runtimes.backend(backend).traits.any_machine
    return (option.note if option else None) or (
        "compiled here without the device; never run" if never_run else None
    )


def _at(latencies: Sequence[Latency], batch: int | None) -> Latency | None:
    """The latency at a batch size. It gets the marks of all latencies, because one run measured
    them. None where there are none."""
    if not latencies:
        return None
    latency = next((row for row in latencies if row.batch == batch), latencies[0])
    marks = dict.fromkeys(mark for row in latencies for mark in row.marks)
    return replace(latency, marks=tuple(marks))


def _rewrites(build: Build) -> Rewrites:
    cast = build.cast if build.baseline_precision.name == "fp16" else None
    return Rewrites(
        build.fused.log,
        cast.log if cast is not None else {},
        build.prepared.log if build.prepared is not None else {},
        build.quantized.log if build.quantized is not None else {},
        build.assignment or Assignment(),
    )


def _export(build: Build) -> ExportComparison | None:
    return ExportComparison.from_object(build.log) if build.log and build.log.checks else None


def _worst(build: Build) -> WorstPictures | None:
    return build.worst.worst if build.worst is not None and not build.worst.planned else None


def _provenance(build: Build, records: list[StepTaken]) -> Provenance:
    return Provenance(
        recipe=build.job.recipe.to_json(),
        digests={"build": pipeline.identity(build), **build.digests},
        versions=pipeline.tool_versions(),
        steps=_steps(records),
        build_spec=_specs(build),
        machine=build.machine if build.measured else None,
    )


def _steps(records: list[StepTaken]) -> tuple[StepTaken, ...]:
    """Each step once: samples are collected for the export, and asked for again later."""
    first = {record.key: record for record in reversed(records)}
    return tuple(first.values())[::-1]


def _specs(build: Build) -> dict[str, AskedOfCompiler]:
    specs = build.build_spec.items()
    return {role: AskedOfCompiler.from_json(codec.to_json(spec)) for role, spec in specs}


def _seconds(records: list[StepTaken]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for record in records:
        spent[record.step] = round(spent.get(record.step, 0.0) + record.seconds, 3)
    return {**spent, "total": round(sum(spent.values()), 3)}
