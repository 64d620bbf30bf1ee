"""Artifacts again: `load`, `inspect`, and what a build leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit import pipeline
from optkit.execute.runner import Runner

if TYPE_CHECKING:
    from optkit.artifact import Artifact


@dataclass(frozen=True)
class Built:
    """One build: its result object and where the artifact lies."""

    result: dict[str, Any]
    path: Path


def load(path: str | Path) -> Artifact:
    """Open an artifact folder; its manifest is validated, `verify()` rehashes every file."""
    from optkit.artifact import Artifact

    return Artifact.load(Path(path))


def inspect(path: Path, *, runner: Runner) -> dict[str, Any]:
    """What an artifact (a folder, every file verified) or an ONNX file holds."""
    from optkit import stage
    from optkit.steps import STEPS

    found: dict[str, Any] = {"schema": "optkit.inspect/v1", "artifact": None}
    axes: dict[str, int] = {}
    model = path
    if path.is_dir():
        opened = load(path)
        opened.verify()
        manifest = opened.manifest
        found["artifact"] = {
            "name": opened.name,
            "digest": opened.digest,
            "files": len(manifest.files),
            "result": opened.result,
        }
        if manifest.parts:
            each = {part: inspect(path / part, runner=runner) for part in manifest.parts}
            return {**found, "path": str(path), "axes": axes, "graph": None, "parts": each}
        ranges = manifest.recipe.get("axes", {})
        axes = {name: sizes["opt"] for name, sizes in ranges.items()}
        model = opened.model_path
    staged = stage.stage_onnx(model, runner.store.objects)
    entry = runner.step(
        STEPS["summary"].kind, "read the graph",
        {"model": pipeline.Foreign(staged.path, staged.sha256)}, {"axes": axes},
    )  # fmt: skip
    return {**found, "path": str(path), "axes": axes, "graph": entry.meta["summary"], "parts": None}
