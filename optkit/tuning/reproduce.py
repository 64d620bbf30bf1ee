"""The winner as a recipe file and the command that builds it again.

A recipe may name files of its project or files that optkit ships. The tuned one stands beside the
artifact, so what else it needs (a model, a task of the user's) is given on the command line.
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optkit.pipeline import Job
from optkit.places import Place
from optkit.recipe import Recipe, Source, requested
from optkit.request import Request
from optkit.store import write_durably

SUFFIX = "-tuned"


@dataclass(frozen=True)
class Reproduction:
    """`model`, `overrides`: what the command line adds to the file. `code`: the job came from
    memory, so only Python builds it again."""

    file: Path
    model: str | None
    overrides: tuple[str, ...]
    recipe: Recipe
    job: Job
    code: bool

    @property
    def command(self) -> str:
        """As a shell reads it."""
        job = self.job
        if self.code:
            return f"optkit.build(model, ..., recipe={str(self.file)!r})"
        words = ["optkit", "build", *([self.model] if self.model else []),
                 "--recipe", str(self.file), "--target", job.target.name,
                 "--precision", job.precision.name]  # fmt: skip
        words += [word for text in self.overrides for word in ("--set", text)]
        words += ["--trust-remote-code"] if _is_trusted(job) else []
        return shlex.join(words)


def reproduction(job: Job, folder: Path, paths: Mapping[str, Sequence[str]]) -> Reproduction:
    """Write `job`'s recipe to `folder`/recipe.yaml and read it back as the command would. `paths`:
    the args that name data, by section; relative ones start at another folder there."""
    recipe = job.recipe
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    data["name"] = tuned_name(recipe.name)
    overrides: list[str] = []
    if recipe.calibration_source is not None:
        start = recipe.argument_folders("calibration")
        files = {name: start[name] for name in paths.get("calibration", ())}
        overrides += _code(data, "calibration", "source", recipe.calibration_source, folder, files)
    if recipe.eval_task is not None:
        start = recipe.argument_folders("eval")
        files = {name: start[name] for name in paths.get("eval", ())}
        overrides += _code(data, "eval", "task", recipe.eval_task, folder, files)
    model = None
    if recipe.source is not None and not _shipped_model(data, recipe.source, folder):
        model, more = _named_model(data, recipe.source)
        overrides += more
    file = folder / "recipe.yaml"
    made = Reproduction(file, model, tuple(overrides), recipe, job, job.graph is not None)
    _write(file, data, made.command)
    if made.code:
        found = Recipe.from_dict(data, folder)
    else:
        again = Request(overrides=tuple(overrides), trust_remote_code=_is_trusted(job))
        found = requested(Recipe.load(file, model), again)
    return Reproduction(file, model, tuple(overrides), found, job, made.code)


def _code(
    data: dict[str, Any],
    section: str,
    key: str,
    place: Place,
    folder: Path,
    starts: Mapping[str, Path],
) -> list[str]:
    """Name the code of a section as seen from `folder`: in `data`, where optkit ships it, else in
    the overrides that are returned. `starts`: where the args that name data start."""
    given = data[section]
    named = {name: start / given["args"][name] for name, start in starts.items()}
    if place.root == "content":
        given[key] = _relative(place, folder)
        for name, path in named.items():
            if not Path(given["args"][name]).is_absolute():
                given["args"][name] = _from(folder, path)
        return []
    moved = data.pop(section) | {key: _absolute(place)}
    if named:
        moved["args"] |= {name: str(path.absolute()) for name, path in named.items()}
    return [f"{section}={json.dumps(moved)}"]


def _shipped_model(data: dict[str, Any], source: Source, folder: Path) -> bool:
    """Name a model that optkit ships as seen from `folder`; whether it is one."""
    place, weights = source.place, source.weights
    if place is None or any(p.root != "content" for p in (place, weights) if p is not None):
        return False
    model = data["model"]
    model["factory" if source.kind == "python" else "path"] = _relative(place, folder)
    if weights is not None:
        model["weights"] = _relative(weights, folder)
    return True


def _named_model(data: dict[str, Any], source: Source) -> tuple[str, list[str]]:
    """The model as the command line names it, and the overrides that go with it."""
    place = source.place
    name = _absolute(place) if place else source.hub or f"{source.module}:{source.attribute}"
    settings = {
        "task": data.pop("model").get("task"),
        "adapter": _absolute(source.adapter) if source.adapter else None,
        "weights": _absolute(source.weights) if source.weights else None,
        "args": json.dumps(dict(source.args)) if source.args else None,
    }
    return name, [f"model.{key}={text}" for key, text in settings.items() if text is not None]


def tuned_name(name: str) -> str:
    """The name of the tuned recipe, and so of its artifact."""
    return name if name.endswith(SUFFIX) else f"{name[: 100 - len(SUFFIX)]}{SUFFIX}"


def _is_trusted(job: Job) -> bool:
    return job.recipe.source is not None and job.recipe.source.trusted


def _write(file: Path, data: Mapping[str, Any], command: str) -> None:
    from ruamel.yaml import YAML

    buffer = io.BytesIO()
    buffer.write(f"# Found by `optkit tune`. Build it again:\n#\n#     {command}\n\n".encode())
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    # the last pattern of a node's name counts: their order is kept
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
