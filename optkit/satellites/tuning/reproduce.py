"""The winner as a recipe file, and the command that builds it again.

A recipe may name files of its project or files that optkit ships. The tuned recipe lies beside the
artifact, outside of the project, so the command line names the user's model and task.
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optkit.facts.request import Request
from optkit.ground.places import Place
from optkit.ground.recipe import Recipe, SampleSource, Source, requested
from optkit.ground.store import write_durably
from optkit.road.pipeline import Job

SUFFIX = "-tuned"


@dataclass(frozen=True)
class Reproduction:
    """`model`, `overrides`: what the command line gives in addition to the file. `code`: the job
    came from memory, so only Python code can build it again."""

    file: Path
    model: str | None
    overrides: tuple[str, ...]
    recipe: Recipe
    job: Job
    code: bool

    @property
    def command(self) -> str:
        """The command as text for a shell."""
        job = self.job
        if self.code:
            return f"optkit.build(model, ..., recipe={str(self.file)!r})"
        words = [
            "optkit",
            "build",
            *([self.model] if self.model else []),
            "--recipe",
            str(self.file),
            "--target",
            job.target.name,
            "--precision",
            job.precision.name,
        ]
        words += [word for text in self.overrides for word in ("--set", text)]
        words += ["--trust-remote-code"] if _is_trusted(job) else []
        return shlex.join(words)


def reproduction(job: Job, folder: Path, paths: Mapping[str, Sequence[str]]) -> Reproduction:
    """Write the recipe of `job` to `folder`/recipe.yaml, and read it back as the command will.
    `paths`: the args that name data, by section."""
    recipe = job.recipe.model_copy(update={"name": tuned_name(job.recipe.name)})
    overrides: list[str] = []
    for source in (recipe.samples("calibration"), recipe.samples("evaluation")):
        if source is not None:
            recipe, more = _with_samples(recipe, source, folder, paths.get(source.section, ()))
            overrides += more
    model = None
    if recipe.source is not None:
        recipe, model, more = _with_model(recipe, recipe.source, folder)
        overrides += more
    file, in_memory = folder / "recipe.yaml", job.graph is not None
    written = Reproduction(file, model, tuple(overrides), job.recipe, job, in_memory)
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    _write(file, data, written.command)
    if in_memory:
        return replace(written, recipe=Recipe.from_dict(data, folder))
    request = Request(overrides=tuple(overrides), trust_remote_code=_is_trusted(job))
    return replace(written, recipe=requested(Recipe.load(file, model), request))


def _with_samples(
    recipe: Recipe, source: SampleSource, folder: Path, names: Sequence[str]
) -> tuple[Recipe, list[str]]:
    """The recipe for `folder`, and overrides for the command line. Code that optkit ships is named
    in the recipe, other code in the overrides. `names`: the args that name data."""
    settings = recipe.calibration if source.section == "calibration" else recipe.eval
    assert settings is not None
    shipped, files = source.place.root == "content", {n: Path(str(source.args[n])) for n in names}
    args = {
        name: _from(folder, source.folders[name] / file)
        if shipped
        else str((source.folders[name] / file).absolute())
        for name, file in files.items()
        if not (shipped and file.is_absolute())
    }
    code = _relative(source.place, folder) if shipped else _absolute(source.place)
    key = "source" if source.section == "calibration" else "task"
    settings = settings.model_copy(update={key: code, "args": {**settings.args, **args}})
    if shipped:
        return recipe.model_copy(update={source.section: settings}), []
    data = settings.model_dump(mode="json", exclude_defaults=True)
    return recipe.model_copy(update={source.section: None}), [
        f"{source.section}={json.dumps(data)}"
    ]


def _with_model(
    recipe: Recipe, source: Source, folder: Path
) -> tuple[Recipe, str | None, list[str]]:
    """The recipe for `folder`, and the model and overrides for the command line. A model that
    optkit ships is named in the recipe, another one on the command line."""
    place, weights = source.place, source.weights
    assert recipe.model is not None
    if place is not None and all(p.root == "content" for p in (place, weights) if p is not None):
        names = {"factory" if source.kind == "python" else "path": _relative(place, folder)}
        if weights is not None:
            names |= {"weights": _relative(weights, folder)}
        return recipe.model_copy(update={"model": recipe.model.model_copy(update=names)}), None, []
    name = _absolute(place) if place else source.hub or f"{source.module}:{source.attribute}"
    settings = {
        "task": recipe.model.task,
        "adapter": _absolute(source.adapter) if source.adapter else None,
        "weights": _absolute(source.weights) if source.weights else None,
        "args": json.dumps(dict(source.args)) if source.args else None,
    }
    overrides = [f"model.{key}={text}" for key, text in settings.items() if text is not None]
    return recipe.model_copy(update={"model": None}), name, overrides


def tuned_name(name: str) -> str:
    """The name of the tuned recipe, and so of its artifact."""
    return name if name.endswith(SUFFIX) else f"{name[: 100 - len(SUFFIX)]}{SUFFIX}"


def _is_trusted(job: Job) -> bool:
    return job.recipe.source is not None and job.recipe.source.trusted


def _write(file: Path, data: Mapping[str, object], command: str) -> None:
    from ruamel.yaml import YAML

    buffer = io.BytesIO()
    buffer.write(f"# Found by `optkit tune`. Build it again:\n#\n#     {command}\n\n".encode())
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    # the order of patterns of node names matters: the last match counts
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(dict(data), buffer)
    write_durably(file, buffer.getvalue())


def _relative(place: Place, folder: Path) -> str:
    path = _from(folder, place.path)
    return f"{path}:{place.attribute}" if place.attribute else path


def _from(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _absolute(place: Place) -> str:
    return f"{place.path}:{place.attribute}" if place.attribute else str(place.path)
