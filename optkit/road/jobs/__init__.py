"""A recipe, a target and a precision, and so a job, from the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.facts.errors import UsageError
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.facts.precisions import precision as find_precision
from optkit.facts.request import Request
from optkit.facts.tensors import TensorInfo
from optkit.ground.devices import Target
from optkit.ground.devices import target as find_target
from optkit.ground.execute.runner import Runner
from optkit.ground.recipe import Recipe
from optkit.ground.recipe import resolve as resolved
from optkit.ground.workspace import Workspace
from optkit.road import pipeline
from optkit.road.jobs import in_memory
from optkit.road.jobs.batches import Batch
from optkit.road.pipeline import Job

if TYPE_CHECKING:
    from torch.nn import Module


Pair = tuple[Target, Precision]
DEFAULT = PRECISIONS["int8"]

RecipeLike = Recipe | str | Path | Mapping[str, object]
"""A recipe, the name or path of one, or its keys and values as in the YAML file."""


def job_of(
    model: Module | Request | str | Path | None,
    example_inputs: Batch | None,
    pair: Pair,
    *,
    recipe: RecipeLike | None,
    calibration: Iterable[Batch] | None,
    name: str | None,
    runner: Runner,
) -> Job:
    """The job that the arguments of `build` describe. A module and batches in memory are written
    into the store. Raises what `settings` and `in_memory.job` raise."""
    if model is None or isinstance(model, str | Path | Request):
        job = Job(settings(model, recipe, runner), *pair, code=Path.cwd())
        return job if calibration is None else in_memory.with_calibration(job, calibration, runner)
    return in_memory.job(model, example_inputs, recipe, name, pair, runner, calibration)


def settings(
    model: Request | str | Path | None, recipe: RecipeLike | None, runner: Runner
) -> Recipe:
    """The recipe for a model, with the settings of `recipe`. Raises UsageError if both are None,
    RecipeError for settings that do not fit the model."""
    if isinstance(recipe, Recipe):
        if model is None:
            return recipe
        if not isinstance(model, Request):
            return recipe.with_model(str(model))
        raise UsageError("the recipe is already in the Request", where="recipe")
    if not isinstance(model, Request):
        model = Request(None if model is None else str(model))
    request = model if recipe is None else replace(model, recipe=recipe)

    def shapes_of(described: Recipe) -> Mapping[str, tuple[int | str, ...]]:
        if described.source is None or described.source.kind not in ("onnx", "hf"):
            return {}
        return {info.name: info.shape for info in pipeline.signature(described, runner)}

    return resolved(request, shapes_of)


def resolve(request: Request, *, workspace: Workspace = Workspace()) -> Recipe:
    """The recipe that a request describes. The model is read, and kept in the store, if the request
    gives shapes for inputs that no recipe declares. Raises what `settings` raises."""
    return settings(request, None, workspace.runner())


def precision_of(
    model: Module | Request | str | Path | None, recipe: RecipeLike | None, runner: Runner
) -> Precision:
    """The precision of a build whose caller names none: that of the graph if another tool has
    quantized the file of the model, otherwise int8."""
    if model is not None and not isinstance(model, str | Path | Request):
        return DEFAULT
    return pipeline.quantized_to(settings(model, recipe, runner), runner) or DEFAULT


def signature(model: str, *, workspace: Workspace = Workspace()) -> tuple[TensorInfo, ...]:
    """The inputs that an `.onnx` file declares, with a name for each dynamic axis. The checked
    model is kept in the store for the build. Raises InputRefused."""
    return pipeline.signature(Recipe.for_model(model), workspace.runner())


def pair(target: str | Target, precision: str | Precision) -> Pair:
    """Target and precision, looked up if they are names. Raises UnknownName, or Impossible if the
    target does not support the precision."""
    if not isinstance(target, str | Target):
        raise _no_name(target, "target", "l4")
    if not isinstance(precision, str | Precision):
        raise _no_name(precision, "precision", "int8")
    device = target if isinstance(target, Target) else find_target(target)
    scheme = precision if isinstance(precision, Precision) else find_precision(precision)
    pipeline.check_pair(device, scheme)
    return device, scheme


def _no_name(given: object, kind: str, example: str) -> UsageError:
    return UsageError(
        f"{given!r} is not the name of a {kind}",
        where=f"{kind}=",
        hint=f"give one name, e.g. {kind}={example!r}; for several, use optkit.build_fleet",
    )
