"""Writes that are complete or absent after a kill at any time, and errors with the path."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path

from optkit.facts.errors import StorageError

# No permission, or a file (or /proc, or nothing) where a folder is needed.
_NOT_HERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT,
             errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # fmt: skip
# Of the machine, not of the file.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
# The options that choose a folder, as errors name them.
OUT_OPTION = "--out"
CACHE_OPTION = "--cache (or OPTKIT_CACHE)"


@contextmanager
def storage_errors(where: Path, option: str = f"{OUT_OPTION}, {CACHE_OPTION}") -> Iterator[None]:
    """Turn an OSError (disk full, no permission, IO) into a StorageError that names the place.
    `option`: the options that choose the place."""
    try:
        yield
    except OSError as error:
        place = Path(error.filename or where)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = "raise the limit of open files (`ulimit -n`), then run the same command again"
        elif error.errno == errno.ENOSPC:
            hint = "free some space (`optkit cache gc`), then run the same command again"
        elif error.errno in _NOT_HERE:
            hint = f"choose another {option}: a folder that you may write to"
        else:
            hint = "check the disk, then run the same command again"
        problem = file_in_the_way(error, place)
        if problem is None and error.errno == errno.ENOENT and place == where:
            problem = "this folder does not exist, and it cannot be created"
        problem = problem or f"it cannot be used: {error.strerror or error}"
        raise StorageError(problem, where=str(place), hint=hint) from error


def is_scarce(error: Exception) -> bool:
    """Whether a file could not be read because the machine lacked something: it may be intact."""
    cause = io_cause(error)
    return cause is not None and cause.errno in _SCARCE


def io_cause(error: Exception) -> OSError | None:
    """The error itself, or the error that a native library describes in its message."""
    if isinstance(error, OSError):
        return error
    # as Rust and as ONNX Runtime write it
    told = re.search(r"(?:\(os error |system error number |SystemError : )(\d+)", str(error))
    if told:
        return OSError(int(told[1]), os.strerror(int(told[1])))
    if os.strerror(errno.ENOSPC) in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return None


def file_in_the_way(error: OSError, place: Path) -> str | None:
    """Names the file where a folder is needed: the place itself, or a part of its path. The system
    says only "Not a directory" or "File exists". None for other errors."""
    if error.errno not in (errno.ENOTDIR, errno.EEXIST):
        return None
    for path in (place, *place.parents):
        if path.is_file():
            return f"{'it' if path == place else repr(str(path))} is a file, not a folder"
    return None


def open_regular(path: Path) -> BufferedReader:
    """A regular file for reading. Raises OSError for any other kind, because reading a device or a
    pipe, and even opening a pipe, may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, safely on disk, if it does not exist."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    for folder in reversed(missing):
        fsync_dir(folder.parent)


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """Sync every file and folder in a folder, and the folder."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            fsync_dir(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def durably(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path` for a new file, and then replaces `path` by it
    atomically: readers see the old bytes or the new bytes. The name is unique, so several processes
    may write the same `path`."""
    temporary = path.with_name(f".{path.name}.{own_name()}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, as `durably` does."""
    with durably(path) as temporary, temporary.open("xb") as file:
        file.write(data)


def own_name() -> str:
    """A unique name for work in progress; `lives` finds its process from it."""
    return f"{os.getpid()}-{_here()}-{secrets.token_hex(4)}"


def lives(name: str) -> bool | None:
    """Whether the process that created a name with `own_name` is alive; None if the process is on
    another machine or in another container."""
    process, here, *_ = f"{name}--".split("-")
    if here != _here() or not process.isdigit() or not Path("/proc").exists():
        return None
    return Path(f"/proc/{process}").exists()


@cache
def _here() -> str:
    """Identifies where process ids have the same meaning: this machine and this container."""
    namespace = Path("/proc/self/ns/pid")
    known = [platform.node(), str(namespace.readlink()) if namespace.is_symlink() else ""]
    return hashlib.sha256("/".join(known).encode()).hexdigest()[:8]


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A private folder on the disk of a store. Its name tells the store's gc which process uses
    it."""
    folder = root / "tmp" / own_name()
    with storage_errors(folder, CACHE_OPTION):
        folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        remove(folder)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists, as far as it can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
