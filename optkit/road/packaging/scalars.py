"""The figures of a build as single numbers, each with its evidence, and its facts as text: for
formats and experiment trackers that keep values by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Latency, Score
from optkit.ground.artifact import Manifest

Interval = tuple[int | float, int | float]


@dataclass(frozen=True)
class Scalar:
    """One figure. `interval`: 95 % for what was measured or evaluated; for a prediction, the
    interval that contains nine of ten measurements; None: unknown."""

    value: int | float
    evidence: Evidence
    interval: Interval | None = None

    def to_json(self) -> dict[str, JsonValue]:
        interval: dict[str, JsonValue] = {"interval": [*self.interval]} if self.interval else {}
        return {"value": self.value, "evidence": self.evidence.value, **interval}


def facts(manifest: Manifest, result: Result) -> dict[str, str]:
    """What is known about a build and is no figure. `batch`: that of the latencies."""
    latency = result.latency
    found = {
        "target": manifest.target,
        "precision": manifest.precision,
        "digest": manifest.digest,
        "status": result.status,
        "gate": result.gate.verdict if result.gate else None,
        "batch": str(latency.batch) if latency else None,
        "measured_on": latency.machine if latency else None,
        "optkit": manifest.versions.get("optkit"),
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def scalars(result: Result) -> dict[str, Scalar]:
    """The figures of a build by name; one that the build does not have is absent."""
    found = {**_latency(result.latency), **_score(result.accuracy)}
    for name, difference in (("speedup", result.speedup), ("accuracy_drop", result.drop)):
        if difference is not None:
            found[name] = Scalar(difference.value, difference.evidence, difference.ci95)
    if (fidelity := result.fidelity) is not None:
        if fidelity.sqnr_db is not None:
            found["sqnr_db"] = Scalar(fidelity.sqnr_db, fidelity.evidence, fidelity.ci95)
        if (worst := fidelity.worst).sqnr_db is not None:
            found["sqnr_db_worst"] = Scalar(worst.sqnr_db, fidelity.evidence, worst.ci95)
        found["cosine"] = Scalar(fidelity.cosine, fidelity.evidence)
    if (size := result.size) is not None:
        found["engine_bytes"] = Scalar(size.bytes, size.evidence)
    if (base := result.baseline) is not None:
        both = {**_latency(base.latency), **_score(base.accuracy)}
        found |= {f"baseline_{name}": scalar for name, scalar in both.items()}
    return found


def _latency(latency: Latency | None) -> dict[str, Scalar]:
    if latency is None:
        return {}
    evidence = latency.evidence
    found = {
        "latency_ms_p50": Scalar(latency.p50_ms, evidence, latency.ci95_ms or latency.band),
        "samples_per_second": Scalar(latency.throughput, evidence),
    }
    found |= {name: Scalar(value, evidence) for name, value in _percentiles(latency)}
    return found


def _percentiles(latency: Latency) -> Iterator[tuple[str, int | float]]:
    for percent, value in ((90, latency.p90_ms), (95, latency.p95_ms), (99, latency.p99_ms)):
        if value is not None:
            yield f"latency_ms_p{percent}", value


def _score(score: Score | None) -> dict[str, Scalar]:
    if score is None:
        return {}
    metric = re.sub("[^A-Za-z0-9_.-]", "_", score.metric)
    return {f"accuracy_{metric}": Scalar(score.value, score.evidence, score.ci95)}
