"""A bill of materials: the model, its figures, its data, its tools and its files, as CycloneDX 1.6.

CycloneDX has no word for how a figure is known. So the evidence of each metric, and what its
interval means, are properties of the model card: `optkit:evidence:top1` is `simulated`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Fidelity
from optkit.ground.artifact import MANIFEST, MODEL, Artifact, Manifest
from optkit.ground.store import digest_file
from optkit.show.report.contract import REPORT_FILE, report_of, result_of

_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_SPACE = uuid.UUID("6f4dbb06-5a0c-4d2c-9a55-0f3c86a7f1d4")  # of serial numbers by optkit
_CI95, _PREDICTED = "95 % confidence interval", "interval that contains nine of ten measurements"

Interval = tuple[float, float]


@dataclass(frozen=True)
class Metric:
    """A figure with its evidence. `part`: the part of the samples, or the batch size."""

    name: str
    value: float
    evidence: Evidence
    interval: Interval | None = None
    meaning: str = _CI95
    part: str | None = None

    def to_json(self) -> dict[str, object]:
        body: dict[str, object] = {"type": self.name, "value": repr(self.value)}
        if self.part is not None:
            body["slice"] = self.part
        if self.interval is not None:
            low, high = self.interval
            body["confidenceInterval"] = {"lowerBound": repr(low), "upperBound": repr(high)}
        return body


def bill_of_materials(artifact: Artifact) -> dict[str, object]:
    """The CycloneDX document. The same files give the same document. Raises IntegrityError for a
    damaged result or report."""
    manifest = artifact.manifest
    sha256 = digest_file(artifact.path / MANIFEST)
    parts = [_model(part, name) for name, part in artifact.parts.items()]
    model = {**_model(artifact, manifest.name), **({"components": parts} if parts else {})}
    files = {**{name: file.sha256 for name, file in manifest.files.items()}, MANIFEST: sha256}
    return {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(_SPACE, sha256).urn,
        "version": 1,
        "metadata": {
            "tools": {"components": [_tool("optkit", manifest.versions.get("optkit", ""))]},
            "component": model,
        },
        "components": [
            *(_tool(name, version) for name, version in sorted(manifest.versions.items())),
            *(_file(name, sha) for name, sha in sorted(files.items())),
        ],
    }


def metrics(result: Result, report: Report | None) -> Iterator[Metric]:
    """The figures of a build. The report adds other batch sizes, and the slices that gates
    judged."""
    baseline = result.baseline.precision if result.baseline else "baseline"
    if (score := result.accuracy) is not None:
        yield Metric(score.metric, score.value, score.evidence, score.ci95)
        if result.drop is not None:
            drop = result.drop
            name = f"drop of {score.metric} against {baseline}"
            yield Metric(name, drop.value, drop.evidence, drop.ci95)
    if report is not None:
        yield from _slices(report)
    if result.fidelity is not None:
        yield from _of_fidelity(result.fidelity)
    rows = report.latencies.engine if report is not None else ()
    for row in rows or ([result.latency] if result.latency else []):
        predicted = row.ci95_ms is None
        interval, meaning = (row.band, _PREDICTED) if predicted else (row.ci95_ms, _CI95)
        part = f"batch {row.batch}"
        yield Metric("latency_p50_ms", row.p50_ms, row.evidence, interval, meaning, part)
        yield Metric("throughput", row.throughput, row.evidence, part=part)
    if (speedup := result.speedup) is not None:
        predicted = speedup.evidence is Evidence.PREDICTED
        meaning = _PREDICTED if predicted else _CI95
        name = f"speedup against {baseline}"
        yield Metric(name, speedup.value, speedup.evidence, speedup.ci95, meaning)


def _of_fidelity(fidelity: Fidelity) -> Iterator[Metric]:
    reference = fidelity.reference
    yield Metric(f"cosine to {reference}", fidelity.cosine, fidelity.evidence)
    if fidelity.sqnr_db is not None:
        name = f"sqnr_db to {reference}"
        yield Metric(name, fidelity.sqnr_db, fidelity.evidence, fidelity.ci95)
    if (worst := fidelity.worst).sqnr_db is not None and fidelity.where:
        name = f"sqnr_db of {fidelity.where} to {reference}"
        yield Metric(name, worst.sqnr_db, fidelity.evidence, worst.ci95)


def _slices(report: Report) -> Iterator[Metric]:
    """The worst slice, by each gate on slices. A reason begins with the slice: "worst of 10 slices:
    '3', 87 samples, …"."""
    for row in report.gates:
        if "slice" in row.gate and row.value is not None and row.evidence is not None:
            part = row.reason.partition(", ")[0]
            yield Metric(row.gate, row.value, row.evidence, row.ci95, part=part)


def _model(artifact: Artifact, name: str) -> dict[str, object]:
    manifest, result = artifact.manifest, result_of(artifact)
    has_report = REPORT_FILE in manifest.files
    found = [*metrics(result, report_of(artifact) if has_report else None)]
    about = {"target": manifest.target, "precision": manifest.precision, "status": result.status}
    if result.latency is not None and result.latency.marks:
        about["latency_marks"] = "; ".join(result.latency.marks)
    about |= {f"evidence:{metric.name}": metric.evidence.value for metric in found}
    about |= {f"interval:{one.name}": one.meaning for one in found if one.interval is not None}
    sha256 = manifest.files[MODEL].sha256 if MODEL in manifest.files else None
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{manifest.digest}:{name}",
        "name": name,
        "version": manifest.digest,
        "description": f"for {manifest.target} in {manifest.precision}",
        **({"hashes": _hashes(sha256)} if sha256 else {}),
        "modelCard": {
            "modelParameters": {
                "datasets": [_dataset(role, data) for role, data in sorted(manifest.data.items())],
                "inputs": _tensors(manifest, "inputs"),
                "outputs": _tensors(manifest, "outputs"),
            },
            "quantitativeAnalysis": {"performanceMetrics": [one.to_json() for one in found]},
            "properties": _properties(about),
        },
    }


def _dataset(role: str, data: Mapping[str, object]) -> dict[str, object]:
    """The samples of a role. Their content is not named, only how many they are and their
    digest."""
    about = {key: data[key] for key in ("source", "samples", "digest") if key in data}
    return {"type": "dataset", "name": role, "contents": {"properties": _properties(about)}}


def _tensors(manifest: Manifest, role: str) -> list[dict[str, object]]:
    infos = manifest.inputs if role == "inputs" else manifest.outputs
    shapes = ((info, "x".join(map(str, info.shape))) for info in infos)
    return [{"format": f"{info.name}: {info.dtype} [{shape}]"} for info, shape in shapes]


def _tool(name: str, version: str) -> dict[str, object]:
    kind = "application" if name == "optkit" else "library"
    return {"type": kind, "name": name, "version": version}


def _file(name: str, sha256: str) -> dict[str, object]:
    return {"type": "file", "name": name, "hashes": _hashes(sha256)}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _properties(about: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"name": f"optkit:{key}", "value": str(value)} for key, value in about.items()]
