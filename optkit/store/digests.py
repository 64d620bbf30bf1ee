"""Digests: equal content has the same digest on any machine."""

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
    """sha256 of RFC 8785 canonical JSON: the same value gives the same digest on any machine."""
    import rfc8785

    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def is_shallow(value: object, left: int = _DEPTH) -> bool:
    """Whether JSON has so few levels that recursive code can read and write it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(is_shallow(item, left - 1) for item in inner)


def digest_file(path: Path) -> str:
    """sha256 of a file. Raises OSError, also if it is not a regular file, because reading a device
    or a pipe may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_names(folder: Path) -> str:
    """Digest of the names in a folder, and of which of them are folders, in any order. Python's
    cache of bytecode is ignored. Raises OSError."""
    with os.scandir(folder) as entries:
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    return digest_json(sorted(name for name in names if name != "__pycache__/"))


def digest_once(path: Path) -> str:
    """`digest_file` of a file in the store, which no process changes. This process reads a large
    file once, although several names may be linked to it."""
    with path.open("rb") as file:
        identity = _identity(file.fileno())
        sha256 = _digests.get(identity) or hashlib.file_digest(file, "sha256").hexdigest()
        if identity == _identity(file.fileno()):
            remember_digest(file.fileno(), sha256)
    return sha256


def remember_digest(descriptor: int, sha256: str) -> None:
    """Give `digest_once` the digest of a large file that was hashed while it was written."""
    if os.fstat(descriptor).st_size >= _LARGE:
        _digests[_identity(descriptor)] = sha256


def _identity(descriptor: int) -> tuple[int, ...]:
    """The identity of a file, which changes with every write. (It does not include the change time
    of the inode, because a new link changes it too.)"""
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
