"""How actions of user code are observed: Python's audit events, and wrappers for functions of `os`
without such events."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import AnyStr
from urllib.parse import unquote

from optkit.data.reads.asker import who_asks
from optkit.data.reads.watch import Watch, absolute, each, is_unrecorded, unrecorded, watching
from optkit.execute import reads as records

FilePath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Entry = os.DirEntry[str] | os.DirEntry[bytes]

_PATHS = (str, bytes, os.PathLike)
_CHECKOUT = str(Path(__file__).parents[3])
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
_PROCESSES = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
# these modules ask the system about themselves
_HARMLESS = ("platform.py", f"ctypes{os.sep}util.py")
_TIMES = ("getmtime", "getsize", "getctime", "getatime", "stat", "lstat")
_RESOLVING = ("realpath", "_joinrealpath")
_SYSTEM = "/etc/"
"""In this folder, packages read only the name of the system while they are imported. It does not
change a result."""
_OWN_VARIABLES = ("TMPDIR", "OPTKIT_PARENT", "OPTKIT_TASK")
"""Variables that differ from run to run, and point to the folder of the step."""


@contextmanager
def installed(watch: Watch) -> Iterator[None]:
    """Report to `watch` while the body runs."""
    _listen()
    if not watching:
        _wrap()
    watching.append(watch)
    try:
        yield
    finally:
        watching.remove(watch)
        if not watching:
            _unwrap()


@cache
def _listen() -> None:
    """An audit hook cannot be removed, so there is a single one, which is idle when nothing is
    recorded."""
    sys.addaudithook(_on_event)


def _on_event(event: str, args: tuple[object, ...]) -> None:
    if not watching or is_unrecorded():
        return
    act = _EVENTS.get(event)
    if act is not None:
        act(event, args)


def _on_open(event: str, args: tuple[object, ...]) -> None:
    path, _, flags = args
    if not isinstance(path, _PATHS):
        return  # an open file descriptor
    name = absolute(os.fspath(path))
    if name.startswith(_SYSTEM) and not who_asks().counts:
        return
    flags = flags if isinstance(flags, int) else os.O_RDONLY
    mode = flags & os.O_ACCMODE
    if mode == os.O_WRONLY or (mode != os.O_RDONLY and flags & os.O_TRUNC):
        each(lambda watch: watch.write(name))
    elif mode == os.O_RDONLY:
        each(lambda watch: watch.touch(name))
    else:  # an existing file is read; a new file will be written
        exists = records.kind(Path(name)) != records.NOTHING
        each(lambda watch: watch.touch(name) if exists else watch.write(name))


def _on_listing(event: str, args: tuple[object, ...]) -> None:
    path = "." if args[0] is None else args[0]
    if isinstance(path, _PATHS) and who_asks().counts:
        name = absolute(os.fspath(path))
        each(lambda watch: watch.listing(name))


def _on_write(event: str, args: tuple[object, ...]) -> None:
    """A file or folder that the code creates: the last path among the arguments."""
    path = args[1] if event in ("os.rename", "os.link", "os.symlink") else args[0]
    if isinstance(path, _PATHS):
        name = absolute(os.fspath(path))
        each(lambda watch: watch.write(name))


def _on_import(event: str, args: tuple[object, ...]) -> None:
    name, file, *_ = args
    if isinstance(file, str):  # an extension module
        each(lambda watch: watch.touch(absolute(file)))
    if name in _PROCESSES:
        each(lambda watch: watch.lack("it starts Python processes that share nothing with it"))
    if isinstance(name, str) and who_asks(importing=True).user:
        _search(name)


def _search(name: str) -> None:
    """Record where a module that the user's code names is found, or that it does not exist."""
    top, _, rest = name.partition(".")
    folders = _folders()
    with unrecorded():
        origin = records.Finder(folders).origin(top)
    each(lambda watch: watch.ask("import", f"{watch.searches(folders)} {top}", origin))
    if not rest or origin in (records.INSTALLED, records.NOTHING):
        return
    package, _, last = name.rpartition(".")
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        for path in (f"{folder}/{last}.py", f"{folder}/{last}"):
            kind = records.kind(Path(path))
            each(lambda watch, path=path, kind=kind: watch.ask("kind", absolute(path), kind))  # type: ignore[misc]


def _folders() -> list[str]:
    """sys.path with one word for all installed folders, and without the folder of the step."""
    folders: list[str] = []
    for path in sys.path:
        folder = absolute(path or ".")
        installed = f"{folder}{os.sep}".startswith(records.installed_folders())
        if installed or folder == _CHECKOUT or folder.endswith(".zip"):
            folder = records.INSTALLED
        elif any(watch.ignores(folder) for watch in watching):
            continue
        if folder not in folders:
            folders.append(folder)
    return folders


def _on_exec(event: str, args: tuple[object, ...]) -> None:
    """The code of a module runs. From now on its source may change."""
    file = getattr(args[0], "co_filename", "<")
    if not file.startswith("<"):
        each(lambda watch: watch.touch(absolute(file)))


def _on_program(event: str, args: tuple[object, ...]) -> None:
    asker = who_asks()
    if asker.counts and not asker.file.endswith(_HARMLESS):
        command = args[0] if event != "os.spawn" else args[1]
        name = "a shell"
        if command and isinstance(command, _PATHS):
            name = Path(os.fsdecode(command)).name.partition(" ")[0]
        each(lambda watch: watch.lack(f"it starts a program ({name}), whose reads are not seen"))


def _on_sqlite(event: str, args: tuple[object, ...]) -> None:
    database = os.fsdecode(args[0]) if isinstance(args[0], _PATHS) else ""
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:").partition("?")[0])
    if not database or database == ":memory:":
        return
    for suffix in ("", "-wal", "-journal"):
        name = absolute(f"{database}{suffix}")
        each(lambda watch, name=name: watch.touch(name))  # type: ignore[misc]


def _on_library(event: str, args: tuple[object, ...]) -> None:
    library = args[0]
    if isinstance(library, str) and os.sep in library:
        each(lambda watch: watch.touch(absolute(library)))


_EVENTS: dict[str, Callable[[str, tuple[object, ...]], None]] = {
    "open": _on_open,
    "os.listdir": _on_listing,
    "os.scandir": _on_listing,
    "os.rename": _on_write,
    "os.link": _on_write,
    "os.symlink": _on_write,
    "os.mkdir": _on_write,
    "os.truncate": _on_write,
    "import": _on_import,
    "exec": _on_exec,
    "sqlite3.connect": _on_sqlite,
    "ctypes.dlopen": _on_library,
    **dict.fromkeys(_PROGRAMS, _on_program),
}


# Queries of `os` without an audit event; the functions are wrapped during a recording.

_STAT, _LSTAT, _ACCESS, _READLINK = os.stat, os.lstat, os.access, os.readlink
_LISTDIR, _SCANDIR = os.listdir, os.scandir
_FIND_SPEC, _DISTRIBUTION = importlib.util.find_spec, importlib.metadata.distribution
_GET, _SET, _DEL = os._Environ.__getitem__, os._Environ.__setitem__, os._Environ.__delitem__


def _wrap() -> None:
    # cached now: the wrappers call it, and it calls the functions that are wrapped
    records.installed_folders()
    os.stat, os.lstat, os.access, os.readlink = _stat, _lstat, _access, _readlink
    os.listdir, os.scandir = _listdir, _scandir  # type: ignore[assignment]
    importlib.util.find_spec = _find_spec
    importlib.metadata.distribution = _distribution
    os._Environ.__getitem__ = _get_variable  # type: ignore[method-assign]
    os._Environ.__setitem__ = _set_variable  # type: ignore[method-assign]
    os._Environ.__delitem__ = _del_variable  # type: ignore[method-assign]


def _unwrap() -> None:
    os.stat, os.lstat, os.access, os.readlink = _STAT, _LSTAT, _ACCESS, _READLINK
    os.listdir, os.scandir = _LISTDIR, _SCANDIR
    importlib.util.find_spec = _FIND_SPEC
    importlib.metadata.distribution = _DISTRIBUTION
    os._Environ.__getitem__ = _GET  # type: ignore[method-assign]
    os._Environ.__setitem__ = _SET  # type: ignore[method-assign]
    os._Environ.__delitem__ = _DEL  # type: ignore[method-assign]
    _set.clear()


def _named(path: int | FilePath, dir_fd: int | None) -> str | None:
    """The absolute path; None for a descriptor, and if nothing is recorded."""
    if not watching or is_unrecorded() or dir_fd is not None:
        return None
    return None if isinstance(path, int) else absolute(os.fspath(path))


@wraps(_STAT)
def _stat(
    path: int | FilePath, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> os.stat_result:
    try:
        facts = _STAT(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    except OSError:
        _absent(path, dir_fd)
        raise
    _present(path, dir_fd, facts, follows=follow_symlinks)
    return facts


@wraps(_LSTAT)
def _lstat(path: FilePath, *, dir_fd: int | None = None) -> os.stat_result:
    try:
        facts = _LSTAT(path, dir_fd=dir_fd)
    except OSError:
        _absent(path, dir_fd)
        raise
    _present(path, dir_fd, facts, follows=False)
    return facts


def _absent(path: int | FilePath, dir_fd: int | None) -> None:
    name = _named(path, dir_fd)
    if name is not None and who_asks().counts:
        each(lambda watch: watch.ask("kind", name, records.NOTHING))


def _present(
    path: int | FilePath, dir_fd: int | None, facts: os.stat_result, *, follows: bool
) -> None:
    name = _named(path, dir_fd)
    if name is None:
        return
    asker = who_asks()
    if not asker.counts:
        return
    resolves = sys._getframe(2).f_code.co_name in _RESOLVING
    if S_ISLNK(facts.st_mode) or not (follows or resolves):
        each(lambda watch: watch.ask("link", name, records.link(Path(name))))
    if S_ISLNK(facts.st_mode) or resolves:
        return  # a part of a path that is no link adds no information
    regular = S_ISREG(facts.st_mode)
    kind = "file" if regular else "folder" if S_ISDIR(facts.st_mode) else "other"
    each(lambda watch: watch.ask("kind", name, kind))
    if asker.user and regular and asker.entry in ("", *_TIMES):
        status = records.size_and_time(facts)
        each(lambda watch: watch.ask("status", name, status))


@wraps(_ACCESS)
def _access(
    path: int | FilePath,
    mode: int,
    *,
    dir_fd: int | None = None,
    effective_ids: bool = False,
    follow_symlinks: bool = True,
) -> bool:
    name = _named(path, dir_fd)
    if name is not None and who_asks().counts:
        each(lambda watch: watch.ask("kind", name, records.kind(Path(name))))
    return _ACCESS(
        path, mode, dir_fd=dir_fd, effective_ids=effective_ids, follow_symlinks=follow_symlinks
    )


def _readlink(path: AnyStr | os.PathLike[AnyStr], *, dir_fd: int | None = None) -> AnyStr:
    name = _named(path, dir_fd)
    if name is not None and who_asks().counts:
        each(lambda watch: watch.ask("link", name, records.link(Path(name))))
    return _READLINK(path, dir_fd=dir_fd)


@wraps(_LISTDIR)
def _listdir(path: int | FilePath | None = None) -> list[str] | list[bytes]:
    names = _LISTDIR(path)
    names.sort()
    return names


@wraps(_SCANDIR)
def _scandir(path: int | FilePath | None = None) -> _Sorted:
    with _SCANDIR(path) as entries:
        return _Sorted(sorted(entries, key=lambda entry: entry.name))


class _Sorted:
    """The result of `os.scandir`, in the order of names."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> _Sorted:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


@wraps(_FIND_SPEC)
def _find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
    if watching and not is_unrecorded() and who_asks(importing=True).user:
        _search(importlib.util.resolve_name(name, package))
    return _FIND_SPEC(name, package)


@wraps(_DISTRIBUTION)
def _distribution(distribution_name: str) -> importlib.metadata.Distribution:
    if watching and not is_unrecorded() and who_asks().user:
        with unrecorded():
            version = records.installed(distribution_name)
        each(lambda watch: watch.ask("package", distribution_name, version))
    return _DISTRIBUTION(distribution_name)


_set: set[object] = set()  # variables that the code itself has set


def _get_variable(environment: os._Environ[AnyStr], key: AnyStr) -> AnyStr:
    if watching and not is_unrecorded() and key not in (*_set, *_OWN_VARIABLES) and who_asks().user:
        try:
            value = _GET(environment, key)
        except KeyError:
            value = None
        name, digest = os.fsdecode(key), records.variable(value)
        each(lambda watch: watch.ask("variable", name, digest))
    return _GET(environment, key)


def _set_variable(environment: os._Environ[AnyStr], key: AnyStr, value: AnyStr) -> None:
    if watching and not is_unrecorded():
        _set.add(key)
    _SET(environment, key, value)


def _del_variable(environment: os._Environ[AnyStr], key: AnyStr) -> None:
    if watching and not is_unrecorded():
        _set.add(key)
    _DEL(environment, key)
