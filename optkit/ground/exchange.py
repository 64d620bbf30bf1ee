"""A folder that appears only when it is complete, or replaces an older one in one operation.

It is written in a private folder next to its place, and exchanged with the old folder in one system
call. So a reader sees either the old folder or the new one. (If the file system cannot exchange two
folders, they are renamed one after the other. A reader between the two renames sees no folder, but
never an incomplete one.)
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

from optkit.ground.store import OUT_OPTION, fsync_dir, fsync_tree, storage_errors

_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # linux/fs.h, fcntl.h


@contextlib.contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """A private folder to write into. If there is no error, it is at `place` afterwards, safely on
    disk. After an error nothing new is visible, and an older folder stays. Raises StorageError."""
    out, name = place.parent, place.name
    with storage_errors(out, OUT_OPTION), _private(out, name) as folder:
        yield folder
        fsync_tree(folder)
        folder.chmod(0o755)
        _publish(folder, place)
        fsync_dir(out)
    _sweep(out, name)


@contextlib.contextmanager
def _private(out: Path, name: str) -> Iterator[Path]:
    """A folder next to the place, which other writers do not touch while this process lives."""
    lock = None
    while lock is None:
        folder = out / f".{name}.{secrets.token_hex(8)}.part"
        folder.mkdir(mode=0o700)
        try:
            lock = _lock(folder, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue  # another writer removed it before it was locked
        except BaseException:
            folder.rmdir()
            raise
        if not folder.is_dir():
            os.close(lock)
            lock = None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # after an exchange, this is the older folder
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
    """Remove the folders of killed writers of this place."""
    for folder in out.glob(f".{name}.*.part"):
        with contextlib.suppress(OSError):  # it is locked, so its writer is alive
            lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _publish(folder: Path, place: Path) -> None:
    """Move the finished folder to its place. Afterwards `folder` is the older folder, or does not
    exist."""
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
            continue  # another writer has just removed it, so the plain rename works
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
