"""The data of a recipe, and the place of each key: in a file, or on the command line."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from optkit.facts.errors import RecipeError
from optkit.facts.printable import is_text
from optkit.ground import places
from optkit.ground.recipe import yaml_document

KeyPath = yaml_document.Path

HINT = "`optkit init` writes a commented example"
_MODEL = "MODEL "


@dataclass(frozen=True)
class Origin:
    """The source of a recipe. `given`: keys from the command line, whose files are relative to
    `cwd` and may be anywhere. `trusted`: --trust-remote-code was given."""

    data: object
    name: str
    base: Path
    marks: Mapping[KeyPath, str] = field(default_factory=dict)
    given: tuple[KeyPath, ...] = ()
    cwd: Path = field(default_factory=Path.cwd)
    trusted: bool = False

    def where(self, path: KeyPath) -> str:
        """The most exact place of a key path. If an option set a part of it, the place is this
        option."""
        for key in reversed(self.given):
            if path and key[: len(path)] == path:
                return self.marks[key]
        for end in range(len(path), -1, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]]
        return ":".join([self.name, *([dotted(path)] if path else [])])

    def is_given(self, path: KeyPath) -> bool:
        return any(path[:end] in self.given for end in range(1, len(path) + 1))

    def modelled(self, model: str | None) -> Origin:
        """The data with this model instead of the present one; None changes nothing."""
        if model is None or not isinstance(self.data, dict):  # other data is refused later
            return self
        return self.put(("model",), {places.model_key(model): model}, f"{_MODEL}{model}")

    def put(self, path: KeyPath, value: object, where: str) -> Origin:
        """The data with `value` at `path`, as the option `where` gives it. Missing sections are
        created."""
        data = copy.deepcopy(self.data)
        marks = {key: mark for key, mark in self.marks.items() if key[: len(path)] != path}
        section = data
        for depth, part in enumerate(path):
            if not isinstance(section, dict):
                raise RecipeError(f"{dotted(path[:depth])} has no keys", where=where, hint=HINT)
            if depth == len(path) - 1:
                section[part] = value
            elif section.get(part) is None:
                section[part] = {}
                marks.setdefault(path[: depth + 1], where)
            section = section[part]
        marks[path] = where
        given = tuple(key for key in self.given if key[: len(path)] != path)
        return replace(self, data=data, marks=marks, given=(*given, path))

    def overridden(self, text: str) -> Origin:
        """The data with a `key.path=value` setting applied, whose value is YAML. Raises RecipeError
        whose `where` is the setting."""
        where = f"--set {text}"
        name, equals, value = text.partition("=")
        if not equals or not name.strip(".") or ".." in name:
            raise RecipeError("not KEY=VALUE", where=where, hint="e.g. --set gates.max_drop=1%")
        return self.put(_key_path(name.strip(), self.data), _parse(value, where), where)

    def check_texts(self) -> None:
        """Raise RecipeError for a text that is not UTF-8, for example the name of a file or of the
        folder to which names are relative."""
        if not is_text(str(self.base)):
            problem = f"the folder {str(self.base)!a} is not UTF-8"
            raise RecipeError(problem, where=self.name, hint="rename it with letters of UTF-8")
        for path, text in _texts(self.data, ()):
            if not is_text(text):
                problem = f"{text!a} is not UTF-8"
                raise self.refused(path, problem, "rename the file or folder with letters of UTF-8")

    def refused(self, path: KeyPath, problem: str, hint: str | None) -> RecipeError:
        """The error for a key. MODEL on the command line is no key for its user."""
        where = self.where(path)
        named = problem if where.startswith(_MODEL) else f"{dotted(path)}: {problem}"
        return RecipeError(named, where=where, hint=hint or HINT)


def _texts(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every text in the data, with its key path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield path, str(key)
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


def dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _key_path(name: str, data: object) -> KeyPath:
    """The keys of a path, which are separated by dots. An existing key with dots ("inputs.input.1")
    stays whole."""
    parts = name.split(".")
    path: list[str] = []
    while parts:
        whole = 1
        for count in range(len(parts), 1, -1):
            if isinstance(data, dict) and ".".join(parts[:count]) in data:
                whole = count
                break
        path.append(".".join(parts[:whole]))
        data = data.get(path[-1]) if isinstance(data, dict) else None
        parts = parts[whole:]
    return tuple(path)


def _parse(text: str, where: str) -> object:
    if not text.strip():
        return None
    try:
        return yaml_document.parse(text.encode(), where).data
    except RecipeError as error:
        raise RecipeError(error.message, where=where, hint=error.hint) from None
