"""The result object: what one build came to, as `--json` prints it and scripts read it.

`optkit.result/v1` (documents/result.py). Every key is always there; what does not apply is
null. Raw samples stay out: they are in the report.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optkit.engines import Engine
from optkit.errors import Impossible, OptkitError
from optkit.evidence import Evidence
from optkit.measurement import Difference, Fidelity, Latency, Score, Verdict

RESULT = "optkit.result/v1"
RESULTS = "optkit.results/v1"

_RAW = ("samples_ms", "per_sample", "replicates", "rounds")


@dataclass(frozen=True)
class Side:
    """One precision of the model: its engine and what is known of it.

    `backend` None: no engine belongs here (a reference that only has an accuracy). `engine` None
    with a backend: pending. `evidence` is the engine's: compiled, or measured where it ran.
    """

    precision: str
    backend: str | None = None
    engine: Engine | None = None
    evidence: Evidence = Evidence.PENDING
    note: str | None = None
    latency: Latency | None = None
    accuracy: Score | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision,
            "engine": self._engine(),
            "latency": without_samples(self.latency),
            "accuracy": without_samples(self.accuracy),
        }

    def _engine(self) -> dict[str, Any] | None:
        if self.backend is None:
            return None
        found = self.engine
        return {
            "backend": self.backend,
            "evidence": self.evidence,
            "bytes": found and found.bytes,
            "layers": found and len(found.layers),
            "bytes_moved": found and found.bytes_moved,
            "batch": found and found.batch,
            "note": "; ".join(filter(None, (self.note, found.note if found else None))) or None,
            "landing": found and {
                "planned": found.landing.planned,
                "landed": found.landing.landed,
                "by_dtype": found.landing.by_dtype,
                "unknown": found.landing.unknown,
            },
        }  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """Candidate against baseline. None where there was nothing to compare."""

    fidelity: Fidelity | None = None
    speedup: Difference | None = None
    drop: Difference | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Run:
    """How the build went: seconds per step (with "total"), steps taken from the store."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    cache_hits: int = 0


def result(
    candidate: Side,
    baseline: Side | None,
    findings: Findings,
    run: Run,
    *,
    model: str,
    target: str,
    artifact: str | None,
    references: Iterable[Side] = (),
    pending: Iterable[Mapping[str, str]] = (),
    calibration: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of a build that came to an artifact. `pending`: {"backend", "finish"} each.
    `calibration`: what the check of the calibration data says.

    Its status is gate_failed when a gate failed, else pending when there is no engine, else ok.
    Raises ValueError for a figure that is not finite.
    """
    verdict = findings.verdict
    failed_gate = verdict is not None and verdict.verdict == "fail"
    status = "gate_failed" if failed_gate else "ok" if candidate.engine else "pending"
    side = candidate.to_json()
    found = {
        **_empty(status, model, target, candidate.precision),
        "artifact": artifact,
        "engine": side["engine"],
        "pending": [dict(row) for row in pending],
        "latency": side["latency"],
        "accuracy": side["accuracy"],
        "fidelity": findings.fidelity and findings.fidelity.to_json(),
        "baseline": baseline and baseline.to_json(),
        "references": [side.to_json() for side in references],
        "speedup": findings.speedup and findings.speedup.to_json(),
        "drop": findings.drop and findings.drop.to_json(),
        "size": _size(candidate, baseline),
        "gate": verdict and {"verdict": verdict.verdict, "reasons": verdict.reasons},
        "calibration": calibration and dict(calibration),
        "seconds": dict(run.seconds),
        "cache_hits": run.cache_hits,
    }
    return plain(found)


def joined(results: Mapping[str, dict[str, Any]], **said: Any) -> dict[str, Any]:
    """The result of a model that is several graphs: their results by part, and what sums up.

    `said`: model, artifact. A status or verdict is the worst of the parts'; latency, accuracy and
    the like are theirs alone.
    """
    each = list(results.values())
    first = each[0]
    worst = {one["status"]: one for one in each}
    status = next(name for name in ("gate_failed", "pending", "ok") if name in worst)
    gates = {name: one["gate"] for name, one in results.items() if one["gate"]}
    verdict = next((name for name in ("fail", "inconclusive", "pass")
                    if name in {gate["verdict"] for gate in gates.values()}), None)  # fmt: skip
    sizes = [one["size"] for one in each]
    found = {
        **_empty(status, None, first["target"], first["precision"]),
        **said,
        "pending": to_finish(
            said["artifact"],
            list(dict.fromkeys(row["backend"] for one in each for row in one["pending"])),
        ),
        "size": None if None in sizes else {
            "bytes": sum(size["bytes"] for size in sizes),
            "baseline_bytes": None
            if any(size["baseline_bytes"] is None for size in sizes)
            else sum(size["baseline_bytes"] for size in sizes),
            "evidence": sizes[0]["evidence"],
        },
        "gate": verdict and {
            "verdict": verdict,
            "reasons": [
                f"{name}: {reason}" for name, gate in gates.items() for reason in gate["reasons"]
            ],
        },
        "seconds": {"total": sum(one["seconds"].get("total", 0.0) for one in each)},
        "cache_hits": sum(one["cache_hits"] for one in each),
        "parts": dict(results),
    }  # fmt: skip
    return plain(found)


def to_finish(artifact: str, backends: Iterable[str]) -> list[dict[str, str]]:
    """What is pending, and the command that does it on a host with the device."""
    command = f"optkit finish {shlex.quote(artifact)}"
    return [{"backend": name, "finish": command} for name in backends]


def failed(
    error: OptkitError, *, model: str | None, target: str | None, precision: str | None
) -> dict[str, Any]:
    """The result of a build that came to no artifact: status impossible or error."""
    status = "impossible" if isinstance(error, Impossible) else "error"
    facts = error.to_json()
    told = {key: facts[key] for key in ("code", "message", "where", "hint")}
    return {**_empty(status, model, target, precision), "error": told}


def several(results: Sequence[dict[str, Any]], fleet: str | None) -> dict[str, Any]:
    """The envelope for several targets or precisions. `fleet`: the folder of their report."""
    return {"schema": RESULTS, "results": list(results), "fleet": fleet}


def without_samples(record: Latency | Score | None) -> dict[str, Any] | None:
    """A record's JSON without what only a report carries."""
    if record is None:
        return None
    return {key: value for key, value in record.to_json().items() if key not in _RAW}


def plain(data: dict[str, Any]) -> dict[str, Any]:
    """The same data as JSON gives it back. Raises ValueError for NaN or infinity."""
    made: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return made


def _size(candidate: Side, baseline: Side | None) -> dict[str, Any] | None:
    if candidate.engine is None:
        return None
    other = baseline.engine if baseline else None
    return {
        "bytes": candidate.engine.bytes,
        "baseline_bytes": other and other.bytes,
        "evidence": Evidence.COMPILED,
    }


def _empty(
    status: str, model: str | None, target: str | None, precision: str | None
) -> dict[str, Any]:
    """Every key of the contract, in its order."""
    return {
        "schema": RESULT,
        "status": status,
        "error": None,
        "artifact": None,
        "model": model,
        "target": target,
        "precision": precision,
        "engine": None,
        "pending": [],
        "latency": None,
        "accuracy": None,
        "fidelity": None,
        "baseline": None,
        "references": [],
        "speedup": None,
        "drop": None,
        "size": None,
        "gate": None,
        "calibration": None,
        "seconds": {},
        "cache_hits": 0,
        "parts": None,
    }
