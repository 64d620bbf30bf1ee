"""The user's Python files: loaded as modules, with functions that get the args they have parameters
for.

An exception of this code becomes InputRefused with file and line.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from optkit.facts.errors import InputRefused, OptkitError, unknown_name
from optkit.ground.places import is_python_file

Item = TypeVar("Item")

_PACKAGES = {
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "bs4": "beautifulsoup4",
}
"""Module → the package that brings it, where the names differ."""

HOOKS: Mapping[str, int] = MappingProxyType(
    {
        "run": 2,
        "score": 2,
        "agreement": 2,
        "combine": 1,
        "aggregate": 1,
        "weighted": 1,
        "slices": 1,
        "each": 1,
        "drawn": 2,
        "metric": 0,
    }
)
"""Functions that a task may define besides `samples`: name → number of arguments that optkit gives
by position. The other parameters are filled from the args of the task."""


def load_module(path: Path) -> ModuleType:
    """Run a Python file as a module. It can import the files next to it.

    Raises InputRefused with file and line if it fails.
    """
    unique = f"optkit_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise InputRefused("not a Python file", where=str(path), hint="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and torch.export look modules up by name
    if str(path.parent) not in sys.path:
        # at the end, so that a file next to it does not hide an installed package
        sys.path.append(str(path.parent))
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

    Raises InputRefused if it cannot be imported or does not exist.
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


def beside(name: str) -> AbstractContextManager[None]:
    """During the body, relative paths start in the folder of "/path/file.py:function"; for a module
    of a package, in the current folder."""
    file = Path(name.rpartition(":")[0])
    return chdir(file.parent) if is_python_file(str(file)) else nullcontext()


def member(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    """`module.name`, which must be callable. Raises InputRefused with the nearest names."""
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    told = unknown_name("function", name, known)
    raise InputRefused(told.message, where=str(path), hint=told.hint)


def taken(
    function: Callable[..., object], given: Mapping[str, object], positional: int = 0
) -> dict[str, object]:
    """The given values for which the function has a parameter, except its first `positional` ones;
    all values if the function has **kwargs."""
    parameters = list(inspect.signature(function).parameters.values())[positional:]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(given)
    names = {one.name for one in parameters if one.kind is not one.VAR_POSITIONAL}
    return {name: value for name, value in given.items() if name in names}


def hook(module: ModuleType, name: str, args: Mapping[str, object]) -> Callable[..., Any] | None:
    """The function of a task with this name (a key of HOOKS), with the args for which it has
    parameters."""
    function = getattr(module, name, None)
    if not callable(function):
        return None
    return partial(function, **taken(function, args, HOOKS[name]))


def metric(module: ModuleType, path: Path, args: Mapping[str, object]) -> str:
    """The name of the metric that a task declares: METRIC, or the result of a function `metric` of
    its args.

    Raises InputRefused if it declares none, or if its function fails.
    """
    named = hook(module, "metric", args)
    try:
        found = getattr(module, "METRIC", None) if named is None else named()
    except Exception as error:
        raise _failed(error, path) from error
    if not isinstance(found, str) or not found:
        raise InputRefused("it has no METRIC", where=str(path), hint='add e.g. METRIC = "top1"')
    return found


def guarded(
    function: Callable[..., Iterable[Item]], args: Mapping[str, object], path: Path
) -> Iterator[Item]:
    """The items that `function(**args)` yields. Its exceptions become InputRefused with file and
    line."""
    try:
        yield from function(**args)
    except OptkitError:
        raise
    except Exception as error:
        raise _failed(error, path) from error


def _failed(error: Exception, path: Path) -> InputRefused:
    """The error of a user's file. Its place is the deepest line of this file in the traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = frames[-1].lineno if frames else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    where = f"{path}:{line}" if line else str(path)
    hint = "correct this line of the file" if line else "correct the file"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = _PACKAGES.get(error.name.partition(".")[0])
        hint = f"install the package that contains {error.name!r}, or correct the import"
        hint = f"pip install {package}, or correct the import" if package else hint
    elif isinstance(error, FileNotFoundError) and error.filename:
        hint = f"create {str(error.filename)!r}, or correct its path in this line"
    return InputRefused(f"{type(error).__name__}: {error}", where=where, hint=hint)
