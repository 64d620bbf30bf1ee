"""What a call asks for: its recipe, target and precision, its store and limits, its job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optkit import pipeline, places
from optkit.api import objects
from optkit.devices import Target, available_memory
from optkit.devices import target as find_target
from optkit.errors import UsageError
from optkit.execute.local import Limits
from optkit.execute.ray import Cluster
from optkit.execute.ray_cluster import checked
from optkit.execute.runner import Listener, Runner
from optkit.execute.transfer import SharedFolder, ThroughRemote
from optkit.pipeline import Job
from optkit.precisions import Precision
from optkit.precisions import precision as find_precision
from optkit.recipe import Recipe
from optkit.store import Remote, Store, default_root


class Silent:
    """A listener that hears nothing."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...


def job_of(
    model: Any,
    example_inputs: Any,
    *,
    target: str,
    precision: str,
    recipe: str | Path | Mapping[str, Any] | None,
    calibration: Iterable[Any] | None,
    name: str | None,
    runner: Runner,
) -> Job:
    """The job that the arguments of `build` mean together; what lives only in memory is written
    into the store. Raises what `pair`, `resolve` and `objects.job` raise."""
    chosen = pair(target, precision)
    if model is None or isinstance(model, str | Path):
        settings = resolve(None if model is None else str(model), recipe=recipe)
        job = Job(settings, *chosen, code=Path.cwd())
    else:
        job = objects.job(model, example_inputs, recipe, name, chosen, runner)
    if calibration is not None:
        job = replace(job, calibration=objects.spooled(calibration, job, runner))
    return job


def resolve(
    model: str | None = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
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
    if isinstance(recipe, Mapping):
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


def pair(target: str, precision: str) -> tuple[Target, Precision]:
    """Target and precision by name. Raises UnknownName, or Impossible where the matrix says no."""
    device, scheme = find_target(target), find_precision(precision)
    pipeline.check_pair(device, scheme)
    return device, scheme


def open_store(cache: Path | None = None) -> Store:
    """The store at `cache`, $OPTKIT_CACHE or the user's cache folder."""
    return Store(_folder(cache))


def open_runner(
    *,
    cache: Path | None = None,
    remote: str | None = None,
    memory: int | None = None,
    timeout: float | None = None,
    listener: Listener | None = None,
    on: str | None = None,
) -> Runner:
    """A runner over the store; memory defaults to half of what is available, timeout to an hour.

    remote: URL of the place through which machines share steps, as `store.Remote` takes it; None:
    $OPTKIT_REMOTE; "": none. on: the address of a Ray cluster whose nodes do the work, as
    `execute.ray.Cluster` takes it; without a remote they share the store's folder.
    """
    limits = Limits(memory or available_memory() // 2, timeout or 3600.0)
    heard = listener or Silent()
    url = os.environ.get("OPTKIT_REMOTE") if remote is None else remote
    store = Store(_folder(cache), Remote(url) if url else None)
    if on is None:
        return Runner(store, limits, heard)
    transfer = ThroughRemote(store) if url else SharedFolder()
    return Runner(store, limits, heard, Cluster(checked(on), heard.note, transfer))


def _folder(cache: Path | None) -> Path:
    """Raises UsageError for a URL."""
    root = default_root() if cache is None else cache.expanduser()
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):
        raise UsageError(
            "the store is a folder of this machine, and no URL",
            where="--cache",
            hint="share it with other machines through that place: --remote URL",
        )
    return root.absolute()
