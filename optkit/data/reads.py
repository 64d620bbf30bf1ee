"""What user code read while it ran: whether a later run would do the same again.

    with record(folder) as reads:
        ...                         # imports, factories, sample sources
    reads.files, reads.packages     # path → sha256, distribution → version
    reads.folders                   # path → sha256 of the names in it, where they were listed

Files are those imported from outside the standard library, site-packages and optkit itself, and
those opened for reading through Python; packages stand for everything else that was imported. A
file that the code wrote before it read it, or that is gone at the end, is its own scratch. What a
native library or a subprocess opens by itself is not seen: such a file belongs into the recipe, or
the code says so (`note`).
"""

from __future__ import annotations

import importlib.metadata
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from optkit.store import digest_file, digest_names

_KERNEL = ("/proc/", "/sys/", "/dev/")
_BYTECODE = (".pyc", ".pyo")
_PACKAGE = str(Path(__file__).resolve().parent.parent)


@dataclass
class Reads:
    """Filled when `record` ends: sha256 by absolute path, version by distribution name."""

    files: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "folders": self.folders, "packages": self.packages}


def note(path: str | os.PathLike[str]) -> None:
    """Count a file as read which a native library is about to open by itself."""
    for watch in _watching:
        watch.read.add(_absolute(os.fspath(path)))


def note_names(folder: str | os.PathLike[str]) -> None:
    """Count a folder as listed: which names it has decided what was read."""
    for watch in _watching:
        watch.listed.add(_absolute(os.fspath(folder)))


@contextmanager
def record(code: str | os.PathLike[str] | None = None) -> Iterator[Reads]:
    """Record what the body reads. `code`: a folder from which its modules may be imported.

    Modules that were imported before count too: the body may depend on them. When the body raises,
    nothing is filled in.
    """
    if code is not None and str(code) not in sys.path:
        sys.path.append(str(code))  # last: a neighbour must not hide an installed package
    reads, watch = Reads(), _Watch()
    _watching.append(watch)
    _install()
    try:
        yield reads
    finally:
        _watching.remove(watch)
    modules = _modules()
    installed = _installed_folders()
    mine = {path for path in modules.values() if not path.startswith(installed)}
    opened = {path for path in watch.read if not path.startswith((*installed, *_KERNEL))}
    for path in sorted(mine | opened):
        if Path(path).is_file() and not path.endswith(_BYTECODE):
            reads.files[path] = digest_file(Path(path))
    own = (*installed, *_KERNEL, *_scratch())
    for path in sorted(watch.listed):
        if Path(path).is_dir() and not f"{path}{os.sep}".startswith(own):
            reads.folders[path] = digest_names(Path(path))
    reads.packages.update(_versions(name for name, path in modules.items() if path not in mine))


@dataclass(eq=False)
class _Watch:
    """Paths opened during one recording, each by the first thing done to it."""

    read: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


_watching: list[_Watch] = []


@cache
def _install() -> None:
    """The audit hook cannot be taken away again, so there is one, idle while nobody records."""
    sys.addaudithook(_on_event)


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in ("os.listdir", "os.scandir"):
        _on_listing(args[0])
    if event != "open":
        return
    path, _, flags = args
    if not isinstance(path, str | bytes | os.PathLike):
        return  # an open file descriptor
    name = _absolute(os.fsdecode(path))
    writes = isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY
    for watch in _watching:
        if writes:
            watch.written.add(name)
        elif name not in watch.written:
            watch.read.add(name)


def _on_listing(path: Any) -> None:
    if isinstance(path, int) or "importlib" in sys._getframe(2).f_code.co_filename:
        return  # an open folder; whoever looks for modules reads no data
    for watch in _watching:
        watch.listed.add(_absolute(os.fsdecode(path or ".")))


def _absolute(path: str) -> str:
    """Without touching the disk, which would open files while an opening is reported."""
    return os.path.abspath(path)  # noqa: PTH100


def _modules() -> dict[str, str]:
    """Name → file of every module imported so far that has one."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            found[name] = _absolute(path)
    return found


def _installed_folders() -> tuple[str, ...]:
    """Where files are covered by a version: Python's own library, site-packages, optkit."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), _PACKAGE}
    folders |= {os.path.realpath(folder) for folder in folders}
    return tuple(sorted(f"{folder}{os.sep}" for folder in folders))


def _scratch() -> tuple[str, ...]:
    """The folder for temporary files that this process was given for itself."""
    given = os.environ.get("TMPDIR")
    return (f"{_absolute(given)}{os.sep}",) if given else ()


def _versions(modules: Iterator[str]) -> dict[str, str]:
    """Distribution → version of the imported packages, standard library left out."""
    owners = importlib.metadata.packages_distributions()
    tops = {name.partition(".")[0] for name in modules}
    names = {owner for top in tops for owner in owners.get(top, ())}
    return {name: importlib.metadata.version(name) for name in sorted(names)}
