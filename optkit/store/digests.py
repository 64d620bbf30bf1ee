"""Digests: what is the same has the same name, on any machine."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

_LARGE = 64 << 20
_DEPTH = 100  # levels of lists and objects
_digests: dict[tuple[int, ...], str] = {}  # of large files that this process has read or written


def digest_json(value: Any) -> str:
    """sha256 over RFC 8785 canonical JSON: the same value gives the same digest on any machine."""
    import rfc8785

    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def is_shallow(value: object, left: int = _DEPTH) -> bool:
    """Whether JSON is nested so little that code which calls itself can read and write it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(is_shallow(item, left - 1) for item in inner)


def digest_file(path: Path) -> str:
    """Raises OSError, also for what is no regular file: a device or a pipe may have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_names(folder: Path) -> str:
    """Of the names in a folder, and which of them are folders, in any order. Python's own cache of
    bytecode does not count. Raises OSError."""
    with os.scandir(folder) as entries:
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    return digest_json(sorted(name for name in names if name != "__pycache__/"))


def digest_once(path: Path) -> str:
    """`digest_file` of the store's own, which nobody writes to: a large file is read once in the
    life of this process, under whatever names it is linked."""
    with path.open("rb") as file:
        identity = _identity(file.fileno())
        sha256 = _digests.get(identity) or hashlib.file_digest(file, "sha256").hexdigest()
        if identity == _identity(file.fileno()):
            remember_digest(file.fileno(), sha256)
    return sha256


def remember_digest(descriptor: int, sha256: str) -> None:
    """Tell `digest_once` of a large file that has just been hashed while it was written."""
    if os.fstat(descriptor).st_size >= _LARGE:
        _digests[_identity(descriptor)] = sha256


def _identity(descriptor: int) -> tuple[int, ...]:
    """Another one after any write. (Not the inode's change time: a new link changes it too.)"""
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
