"""What the arguments of a call mean together: recipe, target and precision, a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit import pipeline, places
from optkit.api import in_memory
from optkit.api.in_memory import Batch
from optkit.devices import Target
from optkit.devices import target as find_target
from optkit.errors import UsageError
from optkit.execute.runner import Runner
from optkit.pipeline import Job
from optkit.precisions import Precision
from optkit.precisions import precision as find_precision
from optkit.recipe import Recipe

if TYPE_CHECKING:
    from torch.nn import Module


RecipeLike = Recipe | str | Path | Mapping[str, object]
"""A recipe, the name or path of one, or its keys and values as in the YAML file."""


def job_of(
    model: Module | str | Path | None,
    example_inputs: Batch | None,
    pair: tuple[Target, Precision],
    *,
    recipe: RecipeLike | None,
    calibration: Iterable[Batch] | None,
    name: str | None,
    runner: Runner,
) -> Job:
    """The job that the arguments of `build` mean together; what lives only in memory is written
    into the store. Raises what `resolve` and `in_memory.job` raise."""
    if model is None or isinstance(model, str | Path):
        settings = resolve(None if model is None else str(model), recipe=recipe)
        job = Job(settings, *pair, code=Path.cwd())
    else:
        job = in_memory.job(model, example_inputs, recipe, name, pair, runner)
    if calibration is not None:
        job = replace(job, calibration=in_memory.spooled(calibration, job, runner))
    return job


def resolve(
    model: str | None = None,
    *,
    recipe: RecipeLike | None = None,
    overrides: Iterable[str] = (),
    shapes: Mapping[str, str | None] | None = None,
    calibration: str | None = None,
    eval_task: str | None = None,
    eval_data: str | None = None,
    hugging_face: Mapping[str, Any] | None = None,
    runner: Runner | None = None,
) -> Recipe:
    """The recipe that MODEL, --recipe, --set and the shape options mean together.

    Without `recipe`: the one in the model's folder, else the project's, else (with a model) one
    that says nothing but the model. `calibration`, `eval_task`, `eval_data` and `hugging_face`: as
    `Recipe.with_calibration`, `with_eval`, `with_eval_data` and `with_hugging_face`. `runner`:
    reads the inputs of an ONNX or Hugging Face model itself, where `shapes` are given for inputs
    that no recipe declares. Raises UsageError when there is neither model nor recipe.
    """
    if isinstance(recipe, Recipe):
        found = recipe if model is None else recipe.with_model(model)
    elif isinstance(recipe, Mapping):
        found = Recipe.from_dict(recipe, model=model)
    elif recipe is not None:
        found = Recipe.load(places.find_recipe(str(recipe)), model)
    elif model is not None and (own_recipe := places.model_recipe(model)) is not None:
        found = Recipe.load(own_recipe)
    elif model is not None:
        found = Recipe.for_model(model)
    else:
        default = places.default_recipe(Path.cwd())
        if default is None:
            raise UsageError(
                "no model and no recipe",
                where="command line",
                hint="name MODEL or --recipe, or write an optkit.yaml (`optkit init MODEL`); "
                "`optkit build --recipe digits-vit --target l4 --precision int8` builds the "
                "example that comes along",
            )
        found = Recipe.load(default)
    if hugging_face is not None and any(hugging_face.values()):
        found = found.with_hugging_face(**hugging_face)
    if calibration is not None:  # before the overrides, which may go into its args
        found = found.with_calibration(calibration)
    if eval_task is not None:
        found = found.with_eval(eval_task)
    found = found.with_overrides(overrides)
    if eval_data is not None:  # behind them: they may name the task
        found = found.with_eval_data(eval_data)
    given = shapes or {}
    if not any(given.values()):
        return found
    own = None
    source = found.source
    if not found.inputs and runner is not None and source and source.kind in ("onnx", "hf"):
        own = {info.name: info.shape for info in pipeline.signature(found, runner)}
    return found.with_shapes(
        min=given.get("min"), opt=given.get("opt"), max=given.get("max"), all=given.get("all"),
        inputs=own,
    )  # fmt: skip


def pair(target: str | Target, precision: str | Precision) -> tuple[Target, Precision]:
    """Target and precision by name. Raises UnknownName, or Impossible where the matrix says no."""
    device = target if isinstance(target, Target) else find_target(target)
    scheme = precision if isinstance(precision, Precision) else find_precision(precision)
    pipeline.check_pair(device, scheme)
    return device, scheme
