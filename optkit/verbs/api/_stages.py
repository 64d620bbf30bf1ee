"""`export`, `fuse`, `quantize` and `compile` run the stages of `build` up to one stage, and put the
files of this stage into a new folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from optkit.facts import codec
from optkit.facts.documents.record import Object
from optkit.facts.documents.rewrites import rewrites
from optkit.facts.documents.stages import StageFiles
from optkit.facts.errors import ToolchainMissing, UsageError
from optkit.facts.precisions import Precision
from optkit.facts.request import Request
from optkit.ground.devices import Target
from optkit.ground.execute.step import StepResult
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike
from optkit.road.pipeline import Build, Job, delivery, graphs, judged_build

Stage = Literal["export", "fuse", "quantize", "compile"]

_STAGES: dict[Stage, tuple[tuple[pipeline.Stage, ...], Callable[[Build], StepResult | None]]] = {
    "export": (pipeline.EXPORT, lambda build: build.source),
    "fuse": (pipeline.FUSE, lambda build: build.fused),
    "quantize": (pipeline.QUANTIZE, lambda build: build.graph),
    "compile": (pipeline.COMPILE, lambda build: build.engine),
}


def export(
    model: Request | str | Path | None = None,
    *,
    out: str | Path,
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Path:
    """Export MODEL to ONNX (opset 21 or newer), and compare the graph with the model.

    model, recipe: as for `build`. out: a folder that does not exist yet. Returns it. Raises
    UsageError (`out` exists), RecipeError, ExportFailed, InputRefused, WorkerFailed.
    """
    return _folder("export", model, out, recipe, workspace)


def fuse(
    model: Request | str | Path | None = None,
    *,
    out: str | Path,
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Path:
    """Export and fuse MODEL to the `standard` form. Arguments, result and errors: see `export`."""
    return _folder("fuse", model, out, recipe, workspace)


def quantize(
    model: Request | str | Path | None = None,
    *,
    out: str | Path,
    target: str | Target = "cpu",
    precision: str | Precision = "fp32",
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Path:
    """Quantize MODEL to a Q/DQ graph, by the placement rules of the target's backend.

    Arguments, result and errors as for `export`; also Impossible for a precision that the target
    does not support.
    """
    return _folder("quantize", model, out, recipe, workspace, target, precision)


def compile(
    model: Request | str | Path | None = None,
    *,
    out: str | Path,
    target: str | Target = "cpu",
    precision: str | Precision = "fp32",
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Path:
    """Compile MODEL to an engine for the target.

    Arguments, result and errors as for `quantize`; also ToolchainMissing if this machine cannot
    build an engine for the target.
    """
    return _folder("compile", model, out, recipe, workspace, target, precision)


def stage_files(
    stage: Stage,
    model: Request | str | Path | None = None,
    *,
    out: str | Path,
    target: str | Target = "cpu",
    precision: str | Precision = "fp32",
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> StageFiles[str]:
    """Run all stages up to `stage` and copy its files into `out`, which must not exist yet. Raises
    what the function of the stage raises."""
    out = Path(out)
    if out.exists():
        raise UsageError("it exists already", where=str(out), hint="choose another --out")
    runner = workspace.runner()
    settings = jobs.settings(model, recipe, runner)
    job = Job(settings, *jobs.pair(target, precision), code=Path.cwd())
    stages, result_of = _STAGES[stage]
    build = pipeline.run(job, runner, stages)
    result = result_of(build)
    if result is None:
        name = job.target.name
        raise ToolchainMissing(
            f"no engine for {name} can be built on this machine",
            where=name,
            hint=f"`optkit build --target {name}` makes an artifact to finish on a host with it",
        )
    details = dict(result.meta)
    if build.quantized is not None:  # a later step wrote the graph
        details = {**build.quantized.meta, **details, "quantization": dict(build.quantized.log)}
    if stage in ("export", "fuse"):
        result = graphs.lowered(
            build, build.source if stage == "export" else build.fused, "it", runner
        )
    names = delivery.copy_out(result, out, details, build.origin)
    return StageFiles[str](
        schema=f"optkit.{stage}/v1",
        status="ok",
        out=str(out),
        files=tuple(names),
        notes=tuple(rewrite.note for rewrite in rewrites(details)),
        details=cast(Object, codec.to_json(details)),
        calibration=judged_build.calibration(build),
        quantized=judged_build.quantized(build),
    )


def _folder(
    stage: Stage,
    model: Request | str | Path | None,
    out: str | Path,
    recipe: RecipeLike | None,
    workspace: Workspace,
    target: str | Target = "cpu",
    precision: str | Precision = "fp32",
) -> Path:
    stage_files(
        stage,
        model,
        out=out,
        target=target,
        precision=precision,
        recipe=recipe,
        workspace=workspace,
    )
    return Path(out)
