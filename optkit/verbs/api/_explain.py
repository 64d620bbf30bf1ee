"""The reasons why an artifact is not faster and why its accuracy fell: `explain`."""

from __future__ import annotations

import io
from pathlib import Path

from optkit.facts.documents.explanation import (
    EXPLAIN,
    CallLatency,
    ComparedLayers,
    Explained,
    LeftFinding,
    WrittenRecipe,
)
from optkit.facts.errors import OptkitError, UsageError
from optkit.facts.measurement import Latency
from optkit.ground.artifact import MANIFEST, Artifact
from optkit.ground.execute.runner import Runner
from optkit.ground.recipe import Recipe
from optkit.ground.store import write_durably
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import layer_times
from optkit.road.pipeline.finishing import whole_recipe
from optkit.show import explanation
from optkit.show.explanation import ExplainFinding, Explanation
from optkit.show.report.build_facts import facts
from optkit.show.report.contract import result_of
from optkit.verbs.api.artifacts import load


def explain(
    artifact: str | Path, *, apply: str | Path | None = None, workspace: Workspace = Workspace()
) -> Explained:
    """The reasons why an artifact (a folder) loses time or accuracy, the most costly first. Each
    has its cost, the evidence of the cost, and the change that would remove it.

    apply: the path of a new file, to which the artifact's recipe with these changes is written.

    Raises IntegrityError (a damaged artifact), UsageError (the
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
    explanations = [*parts.values()] if whole is None else [whole]
    findings = [finding for one in explanations for finding in one.findings]
    return _document(opened, whole).model_copy(
        update={
            "artifact": str(path),
            "recipe": None if file is None else _written(file, opened, findings),
            "left": None if file is None else _left(findings),
            "parts": {name: _document(opened.parts[name], one) for name, one in parts.items()}
            or None,
        }
    )


def _explained(artifact: Artifact, runner: Runner) -> Explanation:
    return explanation.explain(layer_times.subject(artifact, runner))


def _document(artifact: Artifact, found: Explanation | None) -> Explained:
    """The document of an artifact or a part. `found` is None if the artifact consists of parts."""
    result = result_of(artifact)
    fidelity = found.subject.report.layer_fidelity if found else None
    return Explained(
        schema=EXPLAIN,
        artifact=str(artifact.path),
        model=result.model,
        target=artifact.manifest.target,
        precision=artifact.manifest.precision,
        baseline=result.baseline.precision if result.baseline else None,
        build=facts(result, artifact.manifest.recipe),
        speedup=result.speedup,
        latency=_call(result.latency),
        baseline_latency=_call(result.baseline.latency if result.baseline else None),
        accuracy=result.accuracy,
        drop=result.drop,
        fidelity=result.fidelity,
        layers_compared=ComparedLayers.from_object(fidelity) if fidelity else None,
        time=found.time() if found else None,
        untimed=found.subject.untimed if found else None,
        fixed=found.fixed if found else None,
        findings=found.findings if found else (),
    )


def _call(latency: Latency | None) -> CallLatency | None:
    return CallLatency.from_object(latency) if latency else None


def _left(findings: list[ExplainFinding]) -> tuple[LeftFinding, ...]:
    """The findings that no setting of a recipe can remove."""
    return tuple(
        LeftFinding(rule=one.rule, nodes=one.nodes, text=one.change.text)
        for one in findings
        if not one.change.settings
    )


def _written(
    file: Path, artifact: Artifact, findings: list[ExplainFinding]
) -> WrittenRecipe | None:
    """Write the recipe with the changes, if it is valid. None if no finding changes the recipe."""
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
    # the order of patterns of node names matters: the last match counts
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(recipe.model_dump(mode="json", exclude_defaults=True), buffer)
    write_durably(file, buffer.getvalue())
    return WrittenRecipe(path=str(file), missing=tuple(missing))
