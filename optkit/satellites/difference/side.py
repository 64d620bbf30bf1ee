"""One side of a comparison: the kind of a path, and its parts that can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optkit.facts.codec import from_json
from optkit.facts.documents.diff import ComparedSide, Kind
from optkit.facts.documents.report import REPORT, Report
from optkit.facts.documents.result import RESULT, Result
from optkit.facts.errors import InputRefused, UsageError, with_nearest_file
from optkit.facts.printable import is_text
from optkit.ground import intake as stage
from optkit.ground.artifact import MODEL, Artifact
from optkit.ground.execute.runner import Runner
from optkit.ground.intake.files import show
from optkit.road.pipeline import Foreign
from optkit.road.steps import outline
from optkit.satellites.difference.graph_changes import OutlinedGraph
from optkit.show.report.build_facts import facts
from optkit.show.report.contract import ContractMismatch, conform, parsed, report_of, result_of


@dataclass(frozen=True)
class Side:
    """`digest`: of the build, or of the graph."""

    path: Path
    kind: Kind
    digest: str | None = None
    outline: OutlinedGraph | None = None
    result: Result | None = None
    report: Report | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    versions: Mapping[str, object] = field(default_factory=dict)

    def described(self) -> ComparedSide:
        """The side as the document of the comparison describes it."""
        side = ComparedSide(path=str(self.path), kind=self.kind, digest=self.digest)
        if self.result is None:
            return side
        named = {key: getattr(self.result, key) for key in ("model", "target", "precision")}
        return side.model_copy(update=named | {"build": facts(self.result, self.recipe)})


def opened(path: Path, runner: Runner) -> Side:
    """Read an artifact's folder, a .onnx file, a report.json, or the JSON of a build.

    Raises UsageError for anything else and for an artifact of several graphs, IntegrityError for an
    artifact that was changed, InputRefused for JSON of another kind.
    """
    if not is_text(str(path)):
        hint = "rename it with letters of UTF-8: the comparison names it"
        raise UsageError(f"the name {str(path)!a} is not UTF-8", where=str(path), hint=hint)
    if path.is_dir():
        return _artifact(path, runner)
    if not path.is_file():
        hint = "name an artifact, an .onnx file, a report.json or the JSON of a build"
        hint = with_nearest_file(path, hint)
        raise UsageError("no such file or folder", where=str(path), hint=hint)
    if path.suffix == ".json":
        return _report(path)
    staged = stage.stage_onnx(path, runner.store.objects)
    return Side(path, "a graph", staged.sha256, _outline(staged.path, staged.sha256, runner))


def _artifact(path: Path, runner: Runner) -> Side:
    artifact = Artifact.load(path)
    artifact.verify()
    manifest = artifact.manifest
    if manifest.parts:
        raise UsageError(
            f"it consists of {' and '.join(manifest.parts)}",
            where=str(path),
            hint=f"compare part by part, e.g. {path / next(iter(manifest.parts))}",
        )
    staged = stage.stage_onnx(path / MODEL, runner.store.objects)
    return Side(
        path,
        "an artifact",
        manifest.digest,
        _outline(staged.path, staged.sha256, runner),
        result_of(artifact),
        report_of(artifact),
        manifest.recipe,
        manifest.data,
        manifest.versions,
    )


def _report(path: Path) -> Side:
    try:
        data = parsed(path)
    except ValueError as error:
        raise InputRefused("no JSON", where=str(path)) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema not in (RESULT, REPORT):
        raise InputRefused(
            f"its schema is {show(str(schema))}", where=str(path), hint=f"give {REPORT} or {RESULT}"
        )
    try:
        report = conform(data, Report) if schema == REPORT else None
        result = report.result if report else conform(data, Result)
    except ContractMismatch as error:
        raise InputRefused(
            f"not a complete report of optkit: {error}",
            where=str(path),
            hint="give report.json as a build wrote it, or what `optkit build --json` printed",
        ) from error
    if result.parts:
        raise UsageError(
            f"it consists of {' and '.join(result.parts)}",
            where=str(path),
            hint="compare part by part: give the report.json of one part of each",
        )
    if report is None:
        return Side(path, "a report", result=result)
    provenance = report.provenance
    return Side(
        path,
        "a report",
        provenance.digests.get("build"),
        result=result,
        report=report,
        recipe=provenance.recipe,
        versions=provenance.versions,
    )


def _outline(file: Path, sha256: str, runner: Runner) -> OutlinedGraph:
    from safetensors.numpy import load_file

    entry = runner.do(outline.Outline(model=Foreign(file, sha256)), "read the graph")
    data = from_json(outline.GraphOutline, json.loads(entry.file(outline.OUTLINE).read_bytes()))
    numbers = load_file(entry.file(outline.SCALES))
    scales = {name: numbers[str(index)] for index, name in enumerate(data.scales)}
    return OutlinedGraph(data, scales)
