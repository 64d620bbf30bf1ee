"""The result of a build, from the records of its steps (`optkit.result/v1`). It has no raw samples;
these are in the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from optkit.facts.assignment import QuantizedProducts
from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import (
    RESULT,
    CalibrationCheck,
    EngineFacts,
    EngineSize,
    Failure,
    LandingCounts,
    PendingEngine,
    PrecisionFigures,
    Result,
    Status,
)
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.engines import Engine
from optkit.facts.errors import Impossible, OptkitError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency, Outcome, Score, Verdict
from optkit.show.report import recommendation_rules


@dataclass(frozen=True)
class PrecisionResult:
    """One precision of the model: its engine and its figures.

    `backend` None: there is no engine (a reference that has only an accuracy). `engine` None with a
    backend: pending. `evidence` is that of the engine: compiled, or measured if it ran. `serving`:
    the backend for which `latency` is predicted, if it is another one; `of_layers`: the latency of
    the engine itself.
    """

    precision: str
    backend: str | None = None
    engine: Engine | None = None
    evidence: Evidence = Evidence.PENDING
    note: str | None = None
    latency: Latency | None = None
    accuracy: Score | None = None
    serving: str | None = None
    of_layers: Latency | None = None

    def figures(self) -> PrecisionFigures:
        return PrecisionFigures(
            precision=self.precision,
            engine=self._engine(),
            latency=self.latency,
            accuracy=self.accuracy,
        )

    def _engine(self) -> EngineFacts | None:
        if self.backend is None:
            return None
        engine = self.engine
        if engine is None:
            return EngineFacts(backend=self.backend, evidence=self.evidence, note=self.note)
        return EngineFacts(
            backend=self.backend,
            evidence=self.evidence,
            bytes=engine.bytes,
            layers=len(engine.layers),
            bytes_moved=engine.bytes_moved,
            batch=engine.batch,
            note="; ".join(filter(None, (self.note, engine.note))) or None,
            landing=LandingCounts.from_object(engine.landing),
            serving=self.serving,
            latency=self.of_layers,
        )


@dataclass(frozen=True)
class Findings:
    """Candidate against baseline. None where there was nothing to compare."""

    fidelity: Fidelity | None = None
    speedup: Difference | None = None
    drop: Difference | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class BuildRun:
    """How the build went: seconds per step (with "total"), steps taken from the store."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    cache_hits: int = 0


def result(
    candidate: PrecisionResult,
    baseline: PrecisionResult | None,
    findings: Findings,
    run: BuildRun,
    *,
    model: str,
    target: str,
    artifact: str | None,
    references: Iterable[PrecisionResult] = (),
    pending: Iterable[PendingEngine] = (),
    calibration: CalibrationCheck | None = None,
    quantized: QuantizedProducts | None = None,
    sizes: DeclaredSizes | None = None,
    untrained: str | None = None,
) -> Result:
    """The result of a build that produced an artifact.

    Its status is gate_failed if a gate failed, else pending if there is no engine, else ok.

    Raises ValueError for a figure that is not finite.
    """
    verdict = findings.verdict
    failed_gate = verdict is not None and verdict.verdict == "fail"
    figures = candidate.figures()
    made = Result(
        schema=RESULT,
        status="gate_failed" if failed_gate else "ok" if candidate.engine else "pending",
        artifact=artifact,
        model=model,
        target=target,
        precision=figures.precision,
        engine=figures.engine,
        pending=tuple(pending),
        latency=figures.latency,
        accuracy=figures.accuracy,
        fidelity=findings.fidelity,
        baseline=baseline.figures() if baseline else None,
        references=tuple(side.figures() for side in references),
        speedup=findings.speedup,
        drop=findings.drop,
        size=_size(candidate, baseline),
        gate=None if verdict is None else GateVerdict.from_object(verdict),
        calibration=calibration,
        quantized=quantized,
        sizes=sizes,
        untrained=untrained,
        seconds=dict(run.seconds),
        cache_hits=run.cache_hits,
    )
    return made.model_copy(update={"recommendation": recommendation_rules.of_result(made)})


def joined(parts: Mapping[str, Result], *, model: str | None, artifact: str) -> Result:
    """The result of a model that is several graphs: their results by part, and what sums up.

    A status or verdict is the worst of the parts'; latency, accuracy and the like are theirs alone.
    """
    each = list(parts.values())
    statuses = {part.status for part in each}
    worst_first: tuple[Status, ...] = ("gate_failed", "pending", "ok")
    backends = dict.fromkeys(row.backend for part in each for row in part.pending)
    return Result(
        schema=RESULT,
        status=next(status for status in worst_first if status in statuses),
        artifact=artifact,
        model=model,
        target=each[0].target,
        precision=each[0].precision,
        pending=to_finish(artifact, backends),
        references=(),
        size=_joined_size([part.size for part in each]),
        gate=_joined_gate({name: part.gate for name, part in parts.items() if part.gate}),
        recommendation=recommendation_rules.of_parts(parts, artifact),
        seconds={"total": sum(part.seconds.get("total", 0.0) for part in each)},
        cache_hits=sum(part.cache_hits for part in each),
        parts=dict(parts),
    )


def _joined_size(sizes: list[EngineSize | None]) -> EngineSize | None:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    baselines = [size.baseline_bytes for size in known if size.baseline_bytes is not None]
    return EngineSize(
        bytes=sum(size.bytes for size in known),
        baseline_bytes=sum(baselines) if len(baselines) == len(known) else None,
        evidence=known[0].evidence,
    )


def _joined_gate(gates: Mapping[str, GateVerdict]) -> GateVerdict | None:
    if not gates:
        return None
    worst_first: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")
    verdicts = {gate.verdict for gate in gates.values()}
    return GateVerdict(
        verdict=next(verdict for verdict in worst_first if verdict in verdicts),
        reasons=tuple(
            f"{name}: {reason}" for name, gate in gates.items() for reason in gate.reasons
        ),
    )


def to_finish(artifact: str, backends: Iterable[str]) -> tuple[PendingEngine, ...]:
    """The pending parts, and the command that completes them on a host with the device."""
    command = f"optkit finish {shlex.quote(artifact)}"
    return tuple(PendingEngine(backend=name, finish=command) for name in backends)


def failed(
    error: OptkitError,
    *,
    model: str | None = None,
    target: str | None = None,
    precision: str | None = None,
) -> Result:
    """The result of a build without an artifact: status impossible or error."""
    return Result(
        schema=RESULT,
        status="impossible" if isinstance(error, Impossible) else "error",
        error=Failure.from_object(error),
        model=model,
        target=target,
        precision=precision,
        pending=(),
        references=(),
        seconds={},
        cache_hits=0,
    )


def _size(candidate: PrecisionResult, baseline: PrecisionResult | None) -> EngineSize | None:
    if candidate.engine is None:
        return None
    known, other = candidate.evidence, baseline
    if other is None or other.engine is None:
        return EngineSize(bytes=candidate.engine.bytes, evidence=known)
    return EngineSize(
        bytes=candidate.engine.bytes,
        baseline_bytes=other.engine.bytes,
        evidence=known.weaker(other.evidence),
    )
