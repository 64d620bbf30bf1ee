"""The files that a recipe or a command line names: recipes, sources, tasks, models.

A recipe may only name files of its project (`project_root`) and files that optkit ships. Files that
the user names on the command line may lie anywhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from optkit.facts.errors import UnknownName, UsageError, unknown_name, with_nearest_file
from optkit.ground import shipped

PROJECT_RECIPE = "optkit.yaml"
HF_CONFIG = "config.json"
_PYTHON = re.compile(r"(?P<file>.+\.py)(?::(?P<attribute>[A-Za-z_]\w*))?")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_METRICS: Mapping[str, str] = MappingProxyType(
    {"accuracy": "top1", "acc": "top1", "top5": "top1 with --set eval.args.k=5",
     "classification": "top1", "ppl": "perplexity", "loss": "perplexity", "em": "exact_match",
     "cosine": "similarity", "spearman": "similarity", "recall": "retrieval", "mrr": "retrieval"}
)  # fmt: skip
"""The name of a metric in other tools → the task that computes it."""
_GENERIC = frozenset(
    {"best", "checkpoint", "export", "last", "main", "model", "network", "onnx", "weights"}
)
"""Names of files and folders that many models have in common."""
_FACTORIES = frozenset(
    {"build", "create", "factory", "get", "load", "main", "make", "model", "net", "network"}
)
"""Names of factories that say nothing of the model, also before "_model"."""
_FILES = (".onnx", ".pt2")
_OTHER_FILES = (".py", ".yaml", ".yml", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Place:
    """A file, and possibly an attribute in it ("model.py:create").

    `relative` (POSIX) is relative to `root`: the files that optkit ships ("content"), or the folder
    of the recipe (files of its project may lie above it: "../src/model.py"). For a file of the
    command line, it is the file's name.
    """

    path: Path
    root: Literal["content", "recipe", "given"]
    relative: str
    attribute: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is a sample source or a task of optkit, whose steps take inputs like any other
        step. (The examples are code of users.)"""
        return self.root == "content" and self.relative.startswith(("calibration/", "eval/"))

    def __str__(self) -> str:
        """A text that is the same on every machine, for digests:
        "content:examples/00_digits_vit/model.py:create"."""
        attribute = f":{self.attribute}" if self.attribute else ""
        return f"{self.root}:{self.relative}{attribute}"


def find_recipe(name: str, cwd: Path | None = None) -> Path:
    """The shipped recipe of that name, or at that path (a file, or a folder with optkit.yaml).

    Raises UnknownName with the nearest names, or UsageError for a path without a recipe.
    """
    path = (cwd or Path.cwd()) / name
    path = path / PROJECT_RECIPE if path.is_dir() else path
    if _is_path(name, (".yaml", ".yml")) or (path.name == PROJECT_RECIPE and path.is_file()):
        if not path.is_file():
            raise UsageError("no such recipe", where=name, hint="`optkit init` writes one")
        return path
    known = shipped.recipe_names()
    if name not in known:
        raise unknown_name("recipe", name, known)
    return shipped.root() / "recipes" / f"{name}.yaml"


def default_recipe(cwd: Path) -> Path | None:
    """The project's recipe: `[tool.optkit] recipe` in pyproject.toml, or optkit.yaml.

    It is searched in `cwd` and its parents, up to the first folder that has a pyproject.toml or a
    .git. Raises UsageError if pyproject.toml is broken or names a recipe that does not exist.
    """
    for folder in _upwards(cwd):
        named = _project_setting(folder / "pyproject.toml")
        if named is not None:
            return find_recipe(named, folder)
        if (folder / PROJECT_RECIPE).is_file():
            return folder / PROJECT_RECIPE
        if (folder / "pyproject.toml").exists() or (folder / ".git").exists():
            return None
    return None


def project_root(folder: Path) -> Path:
    """The project of a recipe in `folder`: the nearest folder, from this one upwards, that has a
    pyproject.toml, a .git or an optkit.yaml. If there is none, the folder itself."""
    marks = ("pyproject.toml", ".git", PROJECT_RECIPE)
    return next(
        (one for one in _upwards(folder) if any((one / mark).exists() for mark in marks)),
        folder.resolve(),
    )


def find_source(name: str, base: Path, *, anywhere: bool = False) -> Place:
    """A calibration source: "digits", "file.py" or "file.py:function" (default `samples`).

    Relative paths refer to `base`. Raises UnknownName, or UsageError (missing, or outside).
    """
    return _find_python("calibration source", "calibration", name, base, anywhere, "samples")


def find_task(name: str, base: Path, *, anywhere: bool = False) -> Place:
    """An evaluation task: "digits_top1" or "file.py", with `samples`, `score` and `METRIC`."""
    if meant := _METRICS.get(name.lower()):
        raise UnknownName(
            f"unknown evaluation task {name!r}",
            hint=f"{meant} is the task for that; known: {', '.join(shipped.task_names())}",
        )
    place = _find_python("evaluation task", "eval", name, base, anywhere, None)
    if place.attribute:
        raise UsageError(
            f"an evaluation task is a whole file, not {name!r}",
            hint=f"write {name.partition(':')[0]}; it defines samples, score and METRIC",
        )
    return place


def locate(name: str, base: Path, *, anywhere: bool = False, folder: bool = False) -> Place:
    """The existing file (or `folder`) that `name` ("dir/file.ext" or "dir/file.py:attribute") means
    relative to `base`.

    Symbolic links are resolved before the check. Raises UsageError if there is none, or if it is
    outside the project of `base` and not shipped (unless `anywhere`).
    """
    python = None if folder else _PYTHON.fullmatch(name)
    file, attribute = python.group("file", "attribute") if python else (name, None)
    path = _resolve(base / file, file, folder=folder)
    if (relative := shipped.relative(path)) is not None:
        return Place(path, "content", relative, attribute)
    if anywhere:
        return Place(path, "given", path.name, attribute)
    home = project_root(base)
    if not path.is_relative_to(home):
        raise UsageError(
            f"{name!r} is outside the recipe's project, {home}",
            hint="a recipe may name files beneath the nearest folder that has a pyproject.toml, a "
            ".git or an optkit.yaml, and files that optkit ships; give others on the command "
            "line",
        )
    relative = Path(os.path.relpath(path, base.resolve())).as_posix()
    return Place(path, "recipe", relative, attribute)


def model_recipe(model: str) -> Path | None:
    """The recipe in the folder that MODEL names, if it has one."""
    path = Path(model) / PROJECT_RECIPE
    return path if _is_file(path) else None


def model_key(model: str) -> Literal["path", "hub", "factory"]:
    """The key of a recipe's `model:` to which MODEL belongs: `path` for a file or an existing
    folder, `hub` for a name on the Hugging Face hub ("org/name"), otherwise `factory`."""
    if model.endswith(_FILES) or _is_folder(Path(model)):
        return "path"
    return "hub" if is_hub_name(model) and not model.endswith(_OTHER_FILES) else "factory"


def is_hub_name(name: str) -> bool:
    """Whether it has the form "org/name"."""
    return _HUB.fullmatch(name) is not None


def model_name(model: str) -> str:
    """The name of a recipe for a model: the name of the file, the folder or the module, without
    characters that names must not have.

    A name that many models have in common follows that of its folder or package, if MODEL contains
    one: "resnet/model.py:create" is "resnet-model". A factory whose name says which model it makes
    follows, because a file may have several: "models.py:small" is "models-small".
    """
    text = model.partition(":")[0]
    if ":" in model and not is_python_file(model):
        *parents, stem = text.split(".")
    else:
        path = Path(text)
        stem = path.name or path.resolve().name
        for suffix in (".py", *_FILES):
            stem = stem.removesuffix(suffix)
        in_folder = path.parent != Path() and model_key(model) != "hub"
        parents = list(path.resolve().parts[1:-1]) if in_folder else []
    names = [stem]
    while names[0] in _GENERIC and parents:
        names.insert(0, parents.pop())
    factory = model.partition(":")[2]
    if factory.removesuffix("_model") not in {"", stem, *_FACTORIES}:
        names.append(factory)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(names)).strip("-._")[:100] or "model"


def is_python_file(name: str) -> bool:
    """Whether it has the form "file.py" or "file.py:attribute"."""
    return _PYTHON.fullmatch(name) is not None


def _find_python(
    kind: str, folder: str, name: str, base: Path, anywhere: bool, default: str | None
) -> Place:
    if not _is_path(name.partition(":")[0], (".py",)):
        stem, _, attribute = name.partition(":")
        known = shipped.python_names(folder)
        if stem not in known:
            raise unknown_name(kind, stem, known)
        name = str(shipped.root() / folder / f"{stem}.py") + (f":{attribute}" if attribute else "")
    elif not _PYTHON.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a Python file", hint=f"give file.py, or the name of a {kind}"
        )
    place = locate(name, base, anywhere=anywhere)
    return Place(place.path, place.root, place.relative, place.attribute or default)


def _upwards(folder: Path) -> tuple[Path, ...]:
    """The folder and its parents, nearest first."""
    here = folder.resolve()
    return (here, *here.parents)


def _is_path(name: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in name or name in (".", "..") or name.endswith(suffixes)


def _resolve(path: Path, name: str, *, folder: bool = False) -> Path:
    hint = "paths are relative to the recipe (on the command line: to the current folder)"
    try:
        found = path.resolve(strict=True)
    except FileNotFoundError:
        what = "folder" if folder else "file"
        hint = with_nearest_file(path, hint)
        if _is_file(maker := path.parent / "train.py"):
            hint = f"`python {maker}` makes it"
        raise UsageError(f"no such {what}: {name!r}", hint=hint) from None
    # a NUL character, a loop of links, or no permission
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name!r} cannot be used: {error}", hint=hint) from None
    if folder and not found.is_dir():
        raise UsageError(f"{name!r} is not a folder", hint=hint)
    if not folder and not found.is_file():
        raise UsageError(f"{name!r} is not a file", hint=hint)
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _project_setting(path: Path) -> str | None:
    """`[tool.optkit] recipe` of a pyproject.toml; None if there is none."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"unreadable: {error}", where=str(path), hint="fix the file") from None
    setting = data.get("tool", {}).get("optkit", {}).get("recipe")
    if setting is not None and not isinstance(setting, str):
        raise UsageError(
            "[tool.optkit] recipe is not a string", where=str(path), hint='recipe = "optkit.yaml"'
        )
    return setting
