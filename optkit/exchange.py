"""A folder that appears whole, or replaces the one in its place at once.

Written in a private folder beside its place and exchanged with the old one in one system call, so
that a reader sees the old folder or the new one. (Where the file system cannot exchange, two
renames: a reader between them sees none, never a half.)
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from optkit.store import fsync_dir, storage_errors

_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # linux/fs.h, fcntl.h


@contextlib.contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """A private folder to write; without an error it stands at `place` afterwards, durably. On any
    error nothing is visible and what stood there stays. Raises StorageError."""
    out, name = place.parent, place.name
    with storage_errors(out), _private(out, name) as folder:
        yield folder
        for inner in (path for path in folder.rglob("*") if path.is_dir()):
            fsync_dir(inner)
        fsync_dir(folder)
        folder.chmod(0o755)
        _publish(folder, place)
        fsync_dir(out)
    _sweep(out, name)


@contextlib.contextmanager
def _private(out: Path, name: str) -> Iterator[Path]:
    """A folder beside the place that other writers leave alone while this process lives."""
    lock = None
    while lock is None:
        folder = out / f".{name}.{secrets.token_hex(8)}.part"
        folder.mkdir(mode=0o700)
        try:
            lock = _lock(folder, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue  # swept by another writer before it was locked
        except BaseException:
            folder.rmdir()
            raise
        if not folder.is_dir():
            os.close(lock)
            lock = None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # after an exchange: what stood there
        os.close(lock)


def _lock(folder: Path, how: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(out: Path, name: str) -> None:
    """Remove what killed writers of this place left behind."""
    for folder in out.glob(f".{name}.*.part"):
        with contextlib.suppress(OSError):  # locked: its writer is alive
            lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _publish(folder: Path, place: Path) -> None:
    """Put the finished folder at its place; what stood there is `folder` afterwards, or swept."""
    while True:
        try:
            folder.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        try:
            _exchange(folder, place)
        except FileNotFoundError:
            continue  # another writer has just taken it away: the plain rename will do
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
            with contextlib.suppress(FileNotFoundError):
                place.rename(folder.with_suffix(".old.part"))
            continue
        return


def _exchange(one: Path, other: Path) -> None:
    """Swap two names in one system call (renameat2, Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
