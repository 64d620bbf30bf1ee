"""`optkit init`: a commented recipe to start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optkit.facts.errors import UsageError
from optkit.facts.request import Request
from optkit.ground import places, shipped
from optkit.ground.recipe.template import Preset, template
from optkit.ground.store import OUT_OPTION, storage_errors, write_durably
from optkit.ground.workspace import Workspace
from optkit.road.jobs import signature
from optkit.satellites.translation import ToolCommand
from optkit.verbs.cli import api_calls, command_output, translated
from optkit.verbs.cli.command_output import Output


def init(
    model: str | None,
    weights: str | None,
    calibration: str | None,
    evaluation: str | None,
    command: ToolCommand,
    out: Path,
) -> None:
    if out.exists():
        raise UsageError(
            "it exists already", where=str(out), hint="choose another --out, or edit it"
        )
    with storage_errors(out, OUT_OPTION):
        out.resolve().parent.stat()  # paths in the recipe are relative to this folder
    asked = translated.read(command, Request(model, calibration=calibration), (), Output())
    if asked.refusal is not None:
        raise asked.refusal
    if asked.request.model is None:
        hint = "e.g. optkit init model.onnx or optkit init model.py:create"
        raise UsageError("there is no MODEL", where="command line", hint=hint)
    model = asked.request.model
    _check_inside(model, out)
    started = template(
        model,
        out,
        weights=weights,
        calibration=asked.request.calibration,
        evaluation=evaluation,
        read=signature(model) if model.endswith(".onnx") and weights is None else (),
        preset=_preset(asked),
    )
    with storage_errors(out, OUT_OPTION):
        write_durably(out.resolve(), started.text.encode())
    command_output.put(f"wrote {out}; next: {started.then}")


def _check_inside(model: str, out: Path) -> None:
    """A recipe names only files of its own project. Raises UsageError for another one."""
    path = Path(model.partition(":")[0] if places.is_python_file(model) else model)
    home = places.project_root(out.resolve().parent)
    known = path.resolve().is_relative_to(home) or shipped.relative(path.resolve()) is not None
    if path.exists() and not known:
        raise UsageError(
            f"it is outside the project of the recipe, {home}, and a recipe names only files of "
            "its project",
            where=f"MODEL {model}",
            hint=f"copy it into {home}, or write the recipe beside it: "
            f"--out {path.parent / 'optkit.yaml'}; without a recipe, `optkit build {model}` takes "
            "it from anywhere",
        )


def _preset(asked: translated.CommandRequest) -> Preset:
    """The settings of a translated command. The model may have to be read, because only it knows
    which axes the shapes are about."""
    if asked.account is None:
        return Preset()
    named = {"name": places.model_name(str(asked.request.model))}
    recipe = api_calls.recipe(replace(asked.request, recipe=named), Workspace(), asked.output)
    settings = {one.key: (one.yaml, " ".join(one.flag.split())) for one in asked.settings}
    return Preset(recipe.axes, settings, next(iter(asked.precisions), None))
