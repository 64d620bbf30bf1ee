"""Content: recipes, calibration sources, evaluation tasks and example code, found by name or path.

In a checkout it stands at the top (`recipes/`, `calibration/`, `eval/`, `examples/`); the wheel
carries it under `optkit/content/`. A recipe may name files of its project (`project_root`) or of
content, nothing else; what the user names on the command line may stand anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from optkit.errors import InputRefused, OptkitError, UnknownName, UsageError, unknown_name

PROJECT_RECIPE = "optkit.yaml"
HOOKS: Mapping[str, int] = MappingProxyType(
    {"run": 2, "score": 2, "agreement": 2, "combine": 1, "aggregate": 1, "metric": 0}
)
"""What a task may define besides `samples`: name → how many arguments optkit gives by position. The
rest of its parameters are filled from the task's args."""
HF_CONFIG = "config.json"
_FOLDERS = ("recipes", "calibration", "eval", "examples")
_PYTHON = re.compile(r"(?P<file>.+\.py)(?::(?P<attribute>[A-Za-z_]\w*))?")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_METRICS: Mapping[str, str] = MappingProxyType(
    {"accuracy": "top1", "acc": "top1", "top5": "top1 with --set eval.args.k=5",
     "classification": "top1", "ppl": "perplexity", "loss": "perplexity", "em": "exact_match",
     "cosine": "similarity", "spearman": "similarity", "recall": "retrieval", "mrr": "retrieval"}
)  # fmt: skip
"""What a metric is called elsewhere → the task that computes it."""
_FILES = (".onnx", ".pt2")
_OTHER_FILES = (".py", ".yaml", ".yml", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Place:
    """A file that was named, and in it perhaps an attribute ("model.py:create").

    `relative` (POSIX) starts at `root`: optkit's content, the recipe's folder (which a file of its
    project may leave: "../src/model.py"), or, for a file given on the command line, is its name.
    """

    path: Path
    root: Literal["content", "recipe", "given"]
    relative: str
    attribute: str | None = None

    def __str__(self) -> str:
        """Machine-independent, for digests: "content:examples/00_digits_vit/model.py:create"."""
        attribute = f":{self.attribute}" if self.attribute else ""
        return f"{self.root}:{self.relative}{attribute}"


def root() -> Path:
    """The folder that holds recipes/, calibration/, eval/ and examples/."""
    shipped = Path(__file__).resolve().with_suffix("")  # optkit/content/ in a wheel
    return shipped if shipped.is_dir() else _CHECKOUT


def recipe_names() -> list[str]:
    """Names that `--recipe` takes without a path."""
    return _stems(root() / "recipes", "*.yaml")


def source_names() -> list[str]:
    """Names that `--calibration` takes without a path."""
    return _stems(root() / "calibration", "*.py")


def _task_names() -> list[str]:
    return _stems(root() / "eval", "*.py")


def find_recipe(name: str, cwd: Path | None = None) -> Path:
    """The recipe of that name in content, or at that path (a file, or a folder with optkit.yaml).

    Raises UnknownName with the nearest names, or UsageError for a path without a recipe.
    """
    path = (cwd or Path.cwd()) / name
    path = path / PROJECT_RECIPE if path.is_dir() else path
    if _is_path(name, (".yaml", ".yml")) or (path.name == PROJECT_RECIPE and path.is_file()):
        if not path.is_file():
            raise UsageError("no such recipe", where=name, hint="`optkit init` writes one")
        return path
    known = recipe_names()
    if name not in known:
        raise unknown_name("recipe", name, known)
    return root() / "recipes" / f"{name}.yaml"


def default_recipe(cwd: Path) -> Path | None:
    """The project's recipe: `[tool.optkit] recipe` in pyproject.toml, or optkit.yaml.

    Looked for in `cwd` and its parents, up to the first folder that has a pyproject.toml or a .git.
    Raises UsageError when pyproject.toml is broken or names a recipe that does not exist.
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
    """The project that a recipe in `folder` belongs to: the nearest of the folder and its parents
    that has a pyproject.toml, a .git or an optkit.yaml; without one the folder itself."""
    marks = ("pyproject.toml", ".git", PROJECT_RECIPE)
    return next(
        (one for one in _upwards(folder) if any((one / mark).exists() for mark in marks)),
        folder.resolve(),
    )


def find_source(name: str, base: Path, *, anywhere: bool = False) -> Place:
    """A calibration source: "digits", "file.py" or "file.py:function" (default `samples`).

    Relative paths are beneath `base`. Raises UnknownName, or UsageError (missing, or outside).
    """
    return _find_python("calibration source", "calibration", name, base, anywhere, "samples")


def find_task(name: str, base: Path, *, anywhere: bool = False) -> Place:
    """An evaluation task: "digits_top1" or "file.py", with `samples`, `score` and `METRIC`."""
    if meant := _METRICS.get(name.lower()):
        raise UnknownName(
            f"unknown evaluation task {name!r}",
            hint=f"{meant} is the task for that; known: {', '.join(_task_names())}",
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
    under `base`.

    Symbolic links are resolved before the check. Raises UsageError when there is none, or when it
    is outside the project of `base` and outside content (unless `anywhere`).
    """
    python = None if folder else _PYTHON.fullmatch(name)
    file, attribute = (python["file"], python["attribute"]) if python else (name, None)
    path = _resolve(base / file, name, folder=folder)
    content = _content_relative(path)
    if content is not None:
        return Place(path, "content", content, attribute)
    if anywhere:
        return Place(path, "given", path.name, attribute)
    home = project_root(base)
    if not path.is_relative_to(home):
        raise UsageError(
            f"{name!r} is outside the recipe's project, {home}",
            hint="a recipe may name files beneath the nearest folder that has a pyproject.toml, a "
            ".git or an optkit.yaml, and files of optkit's content; give others on the command "
            "line",
        )
    relative = Path(os.path.relpath(path, base.resolve())).as_posix()
    return Place(path, "recipe", relative, attribute)


def model_recipe(model: str) -> Path | None:
    """The recipe in the folder that MODEL names, if it has one."""
    path = Path(model) / PROJECT_RECIPE
    return path if _is_file(path) else None


def model_key(model: str) -> Literal["path", "hub", "factory"]:
    """Under which key of a recipe's `model:` MODEL belongs: a file or an existing folder, a name on
    the Hugging Face hub ("org/name"), or else a factory."""
    if model.endswith(_FILES) or _is_folder(Path(model)):
        return "path"
    return "hub" if is_hub_name(model) and not model.endswith(_OTHER_FILES) else "factory"


def is_hub_name(name: str) -> bool:
    """Whether it reads "org/name"."""
    return _HUB.fullmatch(name) is not None


def model_name(model: str) -> str:
    """A recipe's name from its model: the file's, the folder's or the module's own, without what
    names forbid."""
    path = Path(model.partition(":")[0])
    stem = path.name or path.resolve().name
    for suffix in (".py", *_FILES):
        stem = stem.removesuffix(suffix)
    if ":" in model and not is_python_file(model):
        stem = stem.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "model"


def is_python_file(name: str) -> bool:
    """Whether it reads "file.py" or "file.py:attribute"."""
    return _PYTHON.fullmatch(name) is not None


def load_module(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; files beside it can be imported by it.

    Raises InputRefused with file and line when it fails.
    """
    unique = f"optkit_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise InputRefused("not a Python file", where=str(path), hint="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and torch.export look modules up by name
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a neighbour must not hide an installed package
    try:
        spec.loader.exec_module(module)
    except OptkitError:
        raise
    except Exception as error:
        del sys.modules[unique]
        raise _failed(error, path) from error
    return module


def load_factory(name: str) -> Callable[..., Any]:
    """The function that "/path/file.py:function" or "package.module:function" names.

    Raises InputRefused when it cannot be imported or is not there.
    """
    module, _, attribute = name.rpartition(":")
    if is_python_file(module):
        path = Path(module)
        return member(load_module(path), attribute, path)
    try:
        return member(importlib.import_module(module), attribute, Path(module))
    except OptkitError:
        raise
    except Exception as error:
        problem = f"cannot import {module}: {type(error).__name__}: {error}"
        hint = "is it installed, or importable from the current folder?"
        raise InputRefused(problem, where=name, hint=hint) from error


def member(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    """`module.name`, which must be callable. Raises InputRefused with the nearest names."""
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    told = unknown_name("function", name, known)
    raise InputRefused(told.message, where=str(path), hint=told.hint)


def taken(
    function: Callable[..., Any], given: Mapping[str, Any], positional: int = 0
) -> dict[str, Any]:
    """Those of the given values that the function has a parameter for, its first `positional` ones
    aside; all of them where it has **kwargs."""
    parameters = list(inspect.signature(function).parameters.values())[positional:]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(given)
    names = {one.name for one in parameters if one.kind is not one.VAR_POSITIONAL}
    return {name: value for name, value in given.items() if name in names}


def hook(module: ModuleType, name: str, args: Mapping[str, Any]) -> Callable[..., Any] | None:
    """A task's function of that name (a key of HOOKS) with those of its args that it names."""
    function = getattr(module, name, None)
    if not callable(function):
        return None
    return partial(function, **taken(function, args, HOOKS[name]))


def metric(module: ModuleType, path: Path, args: Mapping[str, Any]) -> str:
    """The metric's name that a task declares, as METRIC or by a function `metric` of its args.

    Raises InputRefused when it declares none, or its function fails.
    """
    named = hook(module, "metric", args)
    try:
        found = getattr(module, "METRIC", None) if named is None else named()
    except Exception as error:
        raise _failed(error, path) from error
    if not isinstance(found, str) or not found:
        raise InputRefused("no METRIC", where=str(path), hint='add e.g. METRIC = "top1"')
    return found


def guarded(function: Callable[..., Any], args: Mapping[str, Any], path: Path) -> Iterator[Any]:
    """What `function(**args)` yields; what it raises becomes InputRefused with file and line."""
    try:
        yield from function(**args)
    except OptkitError:
        raise
    except Exception as error:
        raise _failed(error, path) from error


def _find_python(
    kind: str, folder: str, name: str, base: Path, anywhere: bool, default: str | None
) -> Place:
    if not _is_path(name.partition(":")[0], (".py",)):
        stem, _, attribute = name.partition(":")
        known = _stems(root() / folder, "*.py")
        if stem not in known:
            raise unknown_name(kind, stem, known)
        name = str(root() / folder / f"{stem}.py") + (f":{attribute}" if attribute else "")
    elif not _PYTHON.fullmatch(name):
        raise UsageError(f"{name!r} is no Python file", hint=f"a {kind} is file.py or a name")
    place = locate(name, base, anywhere=anywhere)
    return Place(place.path, place.root, place.relative, place.attribute or default)


def _upwards(folder: Path) -> tuple[Path, ...]:
    """The folder and its parents, nearest first."""
    here = folder.resolve()
    return (here, *here.parents)


def _is_path(name: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in name or name in (".", "..") or name.endswith(suffixes)


def _stems(folder: Path, pattern: str) -> list[str]:
    return sorted(path.stem for path in folder.glob(pattern))


def _resolve(path: Path, name: str, *, folder: bool = False) -> Path:
    hint = "paths are relative to the recipe (on the command line: to the current folder)"
    try:
        found = path.resolve(strict=True)
    except FileNotFoundError:
        what = "folder" if folder else "file"
        if _is_file(maker := path.parent / "train.py"):
            hint = f"`python {maker}` makes it"
        raise UsageError(f"no such {what}: {name!r}", hint=hint) from None
    except (OSError, ValueError, RuntimeError) as error:  # NUL, a loop of links, no permission
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


def _content_relative(path: Path) -> str | None:
    """POSIX path beneath content, or None. In a checkout only the content folders count."""
    for folder in _FOLDERS:
        base = root() / folder
        if path.is_relative_to(base):
            return path.relative_to(root()).as_posix()
    return None


def _project_setting(path: Path) -> str | None:
    """`[tool.optkit] recipe` of a pyproject.toml; None when there is none."""
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


def _failed(error: Exception, path: Path) -> InputRefused:
    """The error of a user's file, placed at the deepest line of that file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = frames[-1].lineno if frames else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    where = f"{path}:{line}" if line else str(path)
    hint = "fix the file"
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install what brings {error.name!r} into this environment, or correct the import"
    return InputRefused(f"{type(error).__name__}: {error}", where=where, hint=hint)
