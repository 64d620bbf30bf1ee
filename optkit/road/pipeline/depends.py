"""What the user declares that code depends on: `depends` of `model`, `calibration` and `eval`.

Its digest covers the content of the files and folders, the values of the variables, and, without
being listed, the Python files of the project, the files and folders that the args name, and the
versions of Python and of all installed packages. What else the code reads is not covered: that it
reads nothing else is the user's promise.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optkit.facts.errors import RecipeError, nearest
from optkit.ground import places, store
from optkit.ground.execute import installed
from optkit.ground.recipe import Recipe, SampleSource

Section = Literal["model", "calibration", "eval"]
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")


@dataclass(frozen=True)
class CodeDependencies:
    """As in `RunsCode`."""

    depends: str | None
    variables: tuple[str, ...]
    home: str


def declared(
    recipe: Recipe, section: Section, code: Path | None, args: Mapping[str, Path]
) -> CodeDependencies:
    """What the recipe declares in a section. `code`: the folder of the code; `args`: the args that
    are texts, as the paths that they would be. Raises RecipeError for a file that does not exist,
    and for a variable that is not set."""
    settings = getattr(recipe, section)
    home = str(recipe.origin.base)
    if settings is None or settings.depends is None:
        return CodeDependencies(None, (), home)
    names = [match[1] for text in settings.depends if (match := _VARIABLE.fullmatch(text))]
    facts = {
        "declared": [_fact(recipe, section, i) for i, _ in enumerate(settings.depends)],
        # an installed folder is none of the project's that it may lie in
        "code": [] if code is None else [_code(places.project_root(code)), _code(code)],
        "args": {name: _content(path) for name, path in sorted(args.items())},
        "environment": installed.environment(),
    }
    return CodeDependencies(store.digest_json(facts), tuple(names), home)


def named(source: SampleSource) -> dict[str, Path]:
    """The args of a source that are texts, as the paths that they would be."""
    return {
        name: path
        for arg, value in source.args.items()
        for name, path in paths(arg, value, source.folders[arg]).items()
    }


def paths(name: str, value: object, folder: Path) -> dict[str, Path]:
    """Each text in the value of an arg, as the path that it would be."""
    if isinstance(value, str):
        return {name: folder / value}
    inner: Mapping[str, object] = {}
    if isinstance(value, Mapping):
        inner = value
    elif isinstance(value, Sequence):
        inner = {str(index): each for index, each in enumerate(value)}
    found: dict[str, Path] = {}
    for key, each in inner.items():
        found |= paths(f"{name}.{key}", each, folder)
    return found


def _fact(recipe: Recipe, section: Section, index: int) -> object:
    """The present content of one entry."""
    key = (section, "depends", index)
    text = getattr(recipe, section).depends[index]
    origin = recipe.origin
    if match := _VARIABLE.fullmatch(text):
        value = os.environ.get(match[1])
        if value is None:
            close = nearest(match[1], os.environ)
            hint = f"did you mean ${close[0]}?" if close else "set it, or remove it from the list"
            raise origin.refused(key, f"the variable {match[1]} is not set", hint)
        return [text, hashlib.sha256(os.fsencode(value)).hexdigest()]
    base = origin.cwd if origin.is_given(key) else origin.base
    try:
        # the present text is an error of glob for an absolute path
        found = [base / text] if (base / text).exists() else sorted(_matching(base, text))
        if not found:
            raise FileNotFoundError(text)
        return [text, [[_text(path, base), store.digest_tree(path)] for path in found]]
    except (OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(recipe, key, text, error) from None


def _matching(base: Path, pattern: str) -> Iterator[Path]:
    place = Path(pattern)
    if place.is_absolute():
        return Path(place.anchor).glob(str(place.relative_to(place.anchor)))
    return base.glob(pattern)


def _unreadable(
    recipe: Recipe, key: tuple[str, str, int], text: str, error: Exception
) -> RecipeError:
    if isinstance(error, FileNotFoundError):
        problem = f"no such file or folder: {text!r}"
        hint = "paths and globs are relative to the recipe; a variable is written $NAME"
        return recipe.origin.refused(key, problem, hint)
    return recipe.origin.refused(key, f"{text!r} cannot be read: {error}", "remove it, or mend it")


def _code(project: Path) -> list[list[str]]:
    """The Python files of a project with their digests, without those of environments, tools and
    hidden folders."""
    found, seen = [], set()
    for folder, inner, names in os.walk(project, followlinks=True):
        facts = Path(folder).stat()
        if (facts.st_dev, facts.st_ino) in seen:  # a link leads back to it
            inner.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        inner[:] = [
            name
            for name in sorted(inner)
            if name[0] != "."
            and name not in _LEFT_OUT
            and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        files = [Path(folder, name) for name in names if name.endswith(".py")]
        found += [
            [_text(path, project), store.digest_file(path)] for path in files if path.is_file()
        ]
    return sorted(found)


def _content(path: Path) -> str | None:
    """The digest of a file or folder that an arg names; None if it names none."""
    try:
        return store.digest_tree(path) if path.exists() else None
    except (OSError, ValueError):  # a text that is no path
        return None


def _text(path: Path, base: Path) -> str:
    """The path relative to `base`, in a form that JSON has for any name."""
    return os.fsencode(os.path.relpath(path, base)).decode("latin-1")
