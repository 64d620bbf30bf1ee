"""Why an artifact is not faster, and why its accuracy fell: `explain`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optkit import explanation
from optkit.api.artifacts import load
from optkit.artifact import MANIFEST, Artifact
from optkit.errors import OptkitError, UsageError
from optkit.execute.runner import Runner
from optkit.explanation import Explanation, Finding
from optkit.pipeline import attributing
from optkit.pipeline.finishing import whole_recipe
from optkit.recipe import Recipe
from optkit.report.contract import result_of
from optkit.report.result import plain
from optkit.store import write_durably
from optkit.workspace import Workspace

SCHEMA = "optkit.explain/v1"


def explain(
    artifact: str | Path,
    *,
    apply: str | Path | None = None,
    workspace: Workspace = Workspace(),
) -> dict[str, Any]:
    """What costs an artifact (a folder) time or accuracy, the most costly first: each with its
    cost, how that is known, and the change that would mend it.

    apply: a new file that gets the artifact's recipe with these changes.

    Returns an optkit.explain/v1 object. Raises IntegrityError (a damaged artifact), UsageError (the
    file exists), and what timing the layers raises.
    """
    file = None if apply is None else Path(apply)
    if file is not None and file.exists():
        raise UsageError("it exists already", where=str(file), hint="name a new file")
    runner = workspace.runner()
    path = Path(artifact)
    opened = load(path)
    opened.verify()
    parts = {name: _explained(part, runner) for name, part in opened.parts.items()}
    whole = None if parts else _explained(opened, runner)
    told = [*parts.values()] if whole is None else [whole]
    findings = [finding for one in told for finding in one.findings]
    return plain(
        {
            **_told(opened, whole),
            "artifact": str(path),
            "recipe": None if file is None else _written(file, opened, findings),
            "left": None if file is None else _left(findings),
            "parts": {name: _told(opened.parts[name], one) for name, one in parts.items()} or None,
        }
    )


def _explained(artifact: Artifact, runner: Runner) -> Explanation:
    return explanation.explain(attributing.subject(artifact, runner))


def _told(artifact: Artifact, found: Explanation | None) -> dict[str, Any]:
    result = result_of(artifact).to_json()
    nothing: dict[str, Any] = {"time": None, "untimed": None, "findings": []}  # but in its parts
    fidelity = found and found.subject.report.get("layer_fidelity")
    return {
        "schema": SCHEMA,
        "artifact": str(artifact.path),
        "model": result["model"],
        "target": result["target"],
        "precision": result["precision"],
        "baseline": (result["baseline"] or {"precision": None})["precision"],
        "speedup": result["speedup"],
        "latency": _of(result),
        "baseline_latency": _of(result["baseline"] or {}),
        "accuracy": result["accuracy"],
        "drop": result["drop"],
        "fidelity": result["fidelity"],
        "layers_compared": fidelity and {
            key: fidelity[key] for key in ("evidence", "samples", "sqnr_db", "reason")
        },
        **(found.to_json() if found is not None else nothing),
        "recipe": None,
        "left": None,
        "parts": None,
    }  # fmt: skip


def _of(result: Mapping[str, Any]) -> dict[str, Any] | None:
    latency = result.get("latency")
    return latency and {key: latency[key] for key in ("evidence", "p50_ms", "batch")}


def _left(findings: list[Finding]) -> list[dict[str, Any]]:
    """The findings that no setting of a recipe mends."""
    return [
        {"rule": one.rule, "nodes": list(one.nodes), "text": one.change.text}
        for one in findings
        if not one.change.settings
    ]


def _written(file: Path, artifact: Artifact, findings: list[Finding]) -> dict[str, Any] | None:
    """Write the recipe with the changes, once it is found valid. None: no finding has any."""
    from ruamel.yaml import YAML

    if not any(finding.change.settings for finding in findings):
        return None
    folder, record = file.absolute().parent, artifact.manifest.recipe
    whole_recipe(record, artifact.path / MANIFEST)
    data, missing = explanation.applied(record, findings, folder)
    try:
        recipe = Recipe.from_dict(data, folder)
    except OptkitError as error:
        error.hint = "write it beside the recipe that the artifact was built from"
        raise
    buffer = io.BytesIO()
    buffer.write(f"# {artifact.name}, changed as `optkit explain` found\n\n".encode())
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    # the last pattern of a node's name counts: their order is kept
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(recipe.model_dump(mode="json", exclude_defaults=True), buffer)
    write_durably(file, buffer.getvalue())
    return {"path": str(file), "missing": missing}
