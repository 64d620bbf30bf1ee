"""What a step with user code depended on besides its inputs, as questions and answers.

    {"schema": "optkit.reads/v2", "search": [[folder, ...], ...], "unseen": [...],
     "content": {path: sha256}, "names": {folder: sha256}, "kind": {path: "nothing"}, "link": ...,
     "status": ..., "variable": {name: sha256}, "import": {"0 name": path}, "package": ...}

The code got these answers. As long as each question has the same answer, the code would do the same
again, and its result may be taken from the store. "It does not exist" is an answer too. If a path
is below one of the roots of the step (the project, a folder that an argument names), it is recorded
relative to this root, "@0/data/a.png". So two checkouts of one project have the same record.

`search`: the lists of folders in which modules were searched, in order; the number before a
module's name in "import" is the index of its list. `unseen`: the reasons why the record is
incomplete, in words. A result with an incomplete record is never taken from the store.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Self

from optkit.codec import from_json, to_json
from optkit.store import digest_file, digest_json, digest_names

SCHEMA = "optkit.reads/v2"
INSTALLED = "installed"
"""Represents all folders whose files are covered by a version."""
NOTHING = "nothing"

_PACKAGE = str(Path(__file__).resolve().parent.parent)
PYTHON = "python"
"""Represents the interpreter among the packages."""


def content(path: Path) -> str:
    """The digest of a regular file. Raises OSError for anything else, because reading a device may
    never end."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return digest_file(path)


def kind(path: Path) -> str:
    """ "file", "folder", "other" or "nothing", after following symbolic links."""
    try:
        if path.is_dir():
            return "folder"
        return "file" if path.is_file() else "other" if path.exists() else NOTHING
    except (OSError, ValueError):
        return NOTHING


def link(path: Path) -> str:
    """The target of a symbolic link; "nothing" for anything else."""
    try:
        return str(path.readlink())
    except OSError:
        return NOTHING


def status(path: Path) -> str:
    """What `os.stat` returns for a file except its content: size and time of modification."""
    return size_and_time(path.stat())


def size_and_time(facts: os.stat_result) -> str:
    return f"{facts.st_size} bytes, changed at {facts.st_mtime_ns}"


_VERSION = re.compile(r"^Version: *(\S+) *$", re.MULTILINE)

OF_PATHS: Mapping[str, Callable[[Path], str]] = {
    "content": content,
    "names": digest_names,
    "kind": kind,
    "link": link,
    "status": status,
}
"""The questions about a path, and the functions that answer them. These raise OSError if there is
no answer."""
QUESTIONS = (*OF_PATHS, "variable", "import", "package")


def variable(value: str | bytes | None) -> str | None:
    """The digest of the value of a variable, which may be a secret; None if it is not set."""
    return None if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()


def installed(distribution: str) -> str | None:
    """The version of a distribution, or of "python"; None if it is not installed. Imports
    nothing."""
    if distribution == PYTHON:
        return platform.python_version()
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    # `found.version` parses the whole file, of which most is the README: three times as slow
    header = _VERSION.search(found.read_text("METADATA") or "")
    return header[1] if header else found.version


def relative(path: str, roots: Sequence[str]) -> str:
    """ "@1/images/a.png" for a path beneath the second root; any other path unchanged."""
    for index, root in enumerate(roots):
        if path == root:
            return f"@{index}"
        if path.startswith(f"{root.rstrip(os.sep)}{os.sep}"):
            return f"@{index}/{path[len(root.rstrip(os.sep)) + 1 :]}"
    return path


def absolute(path: str, roots: Sequence[str]) -> Path:
    """The inverse of `relative`. Raises ValueError, IndexError for a text of another form."""
    if not path.startswith("@"):
        return Path(path)
    index, _, rest = path[1:].partition("/")
    return Path(roots[int(index)]) / rest


@dataclass(frozen=True)
class Record:
    """A record as described above. `answers`: question → subject → answer; empty if no code ran."""

    answers: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    search: Sequence[Sequence[str]] = ()
    unseen: Sequence[str] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """Raises KeyError, TypeError, ValueError or AttributeError for another form."""
        if not data:
            return cls()
        if data["schema"] != SCHEMA:
            raise ValueError(f"not {SCHEMA}")
        answers = {name: from_json(dict[str, str | None], data[name]) for name in QUESTIONS}
        search = from_json(tuple[tuple[str, ...], ...], data["search"])
        return cls(answers, search, from_json(tuple[str, ...], data["unseen"]))

    def to_json(self) -> dict[str, object]:
        if not self.answers:
            return {}
        answers = {name: to_json(self.about(name)) for name in QUESTIONS}
        search, unseen = to_json(tuple(self.search)), to_json(tuple(self.unseen))
        return {"schema": SCHEMA, "search": search, "unseen": unseen, **answers}

    def about(self, question: str) -> Mapping[str, str | None]:
        """The subjects of a question, and their answers."""
        return self.answers.get(question, {})

    @property
    def python(self) -> dict[str, str]:
        """Of the Python files that were read: path → sha256."""
        content = self.about("content").items()
        return {path: str(sha256) for path, sha256 in content if path.endswith(".py")}

    @property
    def code(self) -> Mapping[str, Mapping[str, str | None]]:
        """The Python files and the packages that were read. A function of this code depends on
        them, and on nothing else except the data that it reads."""
        return {"content": self.python, "package": self.about("package")}


@dataclass(frozen=True)
class Known:
    """A record, and the key of the entry with the result of that run."""

    key: str
    reads: Record


def of(meta: Mapping[str, object]) -> Record:
    """The record in the meta of a step that ran the user's code."""
    return from_json(Record, meta["reads"])


def remembered(saved: Mapping[str, object] | None) -> Iterator[Known]:
    """The records in a saved object of the store; none if the object has another form."""
    rows = saved.get("records") if saved and saved.get("schema") == SCHEMA else None
    for row in rows if isinstance(rows, list) else ():
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            known = from_json(Known, row)
            if isinstance(known.key, str):
                yield known


def late_key(base: str, record: Record, outcome: object) -> str:
    """The key of a result: the request, the dependencies of the code, and the result itself.
    Because the result is part of it, a new result never gets the key of a different older
    result."""
    return digest_json({"base": base, "reads": record.to_json(), "outcome": outcome})


def merged(records: Iterable[Record]) -> Record:
    """One record from the records of several runs that did parts of the work at the same time. It
    is the record that a single run would have written; answers are in the order of their
    subjects."""
    search: list[Sequence[str]] = []
    unseen: list[str] = []
    answers: dict[str, dict[str, str | None]] = {question: {} for question in QUESTIONS}
    for record in records:
        search += [folders for folders in record.search if folders not in search]
        unseen += [why for why in record.unseen if why not in unseen]
        for question, known in answers.items():
            for subject, answer in record.about(question).items():
                if question == "import":
                    index, _, name = subject.partition(" ")
                    subject = f"{search.index(record.search[int(index)])} {name}"
                if known.setdefault(subject, answer) != answer:
                    unseen.append(f"{subject} changed while it was read")
    # in the order of the record of a single run, so that the entry has the same bytes
    ordered = {question: dict(sorted(known.items())) for question, known in answers.items()}
    return Record(ordered, search, unseen)


@dataclass
class Now:
    """The present answers; each question is answered once. `environment`: the environment variables
    of the step's process."""

    roots: Sequence[str]
    environment: Mapping[str, str]
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def agrees(self, record: Record) -> bool:
        """Whether each question of a record still has its answer. False for an incomplete
        record."""
        try:
            return bool(record.answers) and not record.unseen and self._same(record)
        except (OSError, IndexError, AttributeError, TypeError, ValueError):
            return False

    def _same(self, record: Record) -> bool:
        if any(installed(name) != version for name, version in record.about("package").items()):
            return False
        variables = record.about("variable").items()
        if any(variable(self.environment.get(name)) != sha256 for name, sha256 in variables):
            return False
        for question in sorted(OF_PATHS, key="content".__eq__):  # last, because it takes longest
            for path, answer in record.about(question).items():
                if self._answer(question, path) != answer:
                    return False
        finders = [Finder([self._folder(path) for path in search]) for search in record.search]
        for subject, origin in record.about("import").items():
            index, _, name = subject.partition(" ")
            if relative(finders[int(index)].origin(name), self.roots) != origin:
                return False
        return True

    def _folder(self, path: str) -> str:
        return path if path == INSTALLED else str(absolute(path, self.roots))

    def _answer(self, question: str, path: str) -> str:
        if (question, path) not in self._known:
            now = OF_PATHS[question](absolute(path, self.roots))
            self._known[question, path] = now
        return self._known[question, path]


class Finder:
    """Finds the place of a module like `import`, without importing anything. `folders`: the search
    path; "installed" represents the folders of installed packages."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._finders = {folder: _finder(folder) for folder in folders if folder != INSTALLED}

    def origin(self, name: str) -> str:
        """The path of its file or folder, "installed", or "nothing"."""
        for folder in self._folders:
            if folder == INSTALLED:
                if name in sys.builtin_module_names or _installed_module(name):
                    return INSTALLED
                continue
            spec = self._finders[folder].find_spec(name)
            if spec is not None:
                places = list(spec.submodule_search_locations or ())
                return os.path.abspath(spec.origin or places[0])  # noqa: PTH100  # keeps links
        return NOTHING


def _finder(folder: str) -> FileFinder:
    """A new finder, because that of `sys.path_importer_cache` may not know the newest files."""
    return FileFinder(
        folder,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


def _installed_module(name: str) -> bool:
    if name in sys.stdlib_module_names:
        return True
    folders = [path for path in sys.path if f"{os.path.abspath(path)}{os.sep}".startswith(  # noqa: PTH100
        installed_folders())]  # fmt: skip
    return PathFinder.find_spec(name, folders) is not None


@cache
def installed_folders() -> tuple[str, ...]:
    """The folders whose files are covered by a version: Python's library, site-packages, optkit.
    Each ends in a separator."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), _PACKAGE}
    folders |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    folders |= {os.path.realpath(folder) for folder in folders}
    return tuple(sorted(f"{folder}{os.sep}" for folder in folders))
