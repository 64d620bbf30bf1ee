"""The content of an artifact or a graph: `inspect`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optkit.facts.documents.inspection import INSPECT, InspectedArtifact, Inspection
from optkit.facts.errors import InputRefused
from optkit.ground import intake as stage
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.task import TaskLimits
from optkit.ground.intake import StagedModel
from optkit.ground.recipe import torch_checkpoint
from optkit.ground.workspace import Workspace
from optkit.road import pipeline
from optkit.road.steps.summary import Summarize
from optkit.show.report.contract import result_of
from optkit.verbs.api.artifacts import load

# Limits for reading a graph, several times the largest measured figures: 0.2 GiB and 2 s for the
# libraries, 5 KiB and 0.3 ms for each node, and two copies of the weights in the file.
_MEMORY, _MEMORY_OF_NODE, _COPIES = 1 << 30, 32 << 10, 4  # bytes
_SECONDS, _SECONDS_OF_NODE = 60.0, 0.005


def inspect(path: str | Path, *, workspace: Workspace = Workspace()) -> Inspection:
    """The content of an artifact (a folder; every file is verified) or of an ONNX file.

    Reading one kilobyte of ONNX may need any amount of memory and time. Therefore limits on both
    follow from the size of the file, unless the workspace sets them.

    Raises InputRefused, IntegrityError, and WorkerFailed beyond the limits.
    """
    if Path(path).suffix in torch_checkpoint.CHECKPOINTS and Path(path).is_file():
        raise InputRefused(
            "a checkpoint of torch, and neither an artifact nor an ONNX file",
            where=str(path),
            hint=f"`optkit build {path}` says how its model is loaded",
        )
    bounded = workspace.memory is None and workspace.timeout is None
    return _inspected(Path(path), workspace.runner(), bounded)


def _inspected(path: Path, runner: Runner, bounded: bool) -> Inspection:
    axes: dict[str, int] = {}
    model, artifact = path, None
    if path.is_dir():
        opened = load(path)
        opened.verify()
        manifest = opened.manifest
        artifact = InspectedArtifact(
            name=opened.name,
            digest=opened.digest,
            files=len(manifest.files),
            omitted=tuple(sorted(manifest.omitted)),
            result=result_of(opened),
        )
        if manifest.parts:
            parts = {part: _inspected(path / part, runner, bounded) for part in manifest.parts}
            return Inspection(
                schema=INSPECT, artifact=artifact, path=str(path), axes=axes, parts=parts
            )
        axes = manifest.axes
        model = opened.model_path
    staged = stage.stage_onnx(model, runner.store.objects)
    if bounded:
        runner = replace(runner, limits=_bounds(staged, runner.limits))
    step = Summarize(model=pipeline.Foreign(staged.path, staged.sha256), axes=axes)
    summary = runner.do(step, "read the graph").summary
    return Inspection(schema=INSPECT, artifact=artifact, path=str(path), axes=axes, graph=summary)


def _bounds(staged: StagedModel, limits: TaskLimits) -> TaskLimits:
    """The limits for reading a graph of that size."""
    inline = staged.path.stat().st_size
    memory = _MEMORY + _COPIES * inline + _MEMORY_OF_NODE * staged.nodes
    seconds = _SECONDS + _SECONDS_OF_NODE * staged.nodes
    return replace(
        limits, memory_bytes=min(memory, limits.memory_bytes), seconds=min(seconds, limits.seconds)
    )
