"""Digests: equal content has the same digest on any machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optkit.ground.store.disk import open_regular

_LARGE = 64 << 20
_DEPTH = 100  # levels of lists and objects
# Of large files that this process has read or written: identity → (digest, state).
_digests: dict[tuple[int, ...], tuple[str, tuple[int, int]]] = {}


def digest_json(value: Any) -> str:
    """sha256 of RFC 8785 canonical JSON: the same value gives the same digest on any machine."""
    import rfc8785

    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def is_shallow(value: object, left: int = _DEPTH) -> bool:
    """Whether JSON has so few levels that recursive code can read and write it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(is_shallow(item, left - 1) for item in inner)


def digest_file(path: Path) -> str:
    """sha256 of a file. Raises OSError, also if it is not a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_tree(path: Path, without: tuple[str, ...] = ()) -> str:
    """Digest of a file, or of the names and contents of everything in a folder, in any order. Links
    are followed, except one that leads back to a folder on the way; Python's cache of bytecode is
    ignored, and so are files in the folder with the suffixes `without`. Raises OSError."""
    if not path.is_dir():
        return digest_file(path)
    hasher = hashlib.sha256()
    for name, inner in sorted(_tree(path, without)):
        content = b"" if inner is None else digest_file(inner).encode()
        hasher.update(b"%d %s %s\n" % (len(name), name, content))
    return hasher.hexdigest()


def tree_bytes(path: Path, without: tuple[str, ...] = ()) -> int:
    """Bytes that `digest_tree` reads. Raises OSError."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(inner.stat().st_size for _, inner in _tree(path, without) if inner is not None)


def _tree(folder: Path, without: tuple[str, ...]) -> Iterator[tuple[bytes, Path | None]]:
    endings = tuple(suffix.encode() for suffix in without)
    for name, path in _beneath(os.fsencode(folder), b"", frozenset()):
        if not (endings and name.endswith(endings)):
            yield name, path


def _beneath(
    folder: bytes, start: bytes, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[bytes, Path | None]]:
    """The names in a folder and its subfolders, with the path of each regular file."""
    facts = os.stat(folder)  # noqa: PTH116  a name may be no text
    here = (facts.st_dev, facts.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            name = start + entry.name
            if entry.is_dir():
                if entry.name != b"__pycache__":
                    yield name + b"/", None
                    yield from _beneath(entry.path, name + b"/", above | {here})
            else:  # a pipe, a device or a broken link has a name only
                yield name, Path(os.fsdecode(entry.path)) if entry.is_file() else None


def digest_once(path: Path) -> str:
    """`digest_file` of a file in the store, which no process changes. This process reads a large
    file once, although several names may be linked to it. Raises OSError, also if it is not a
    regular file."""
    with open_regular(path) as file:
        before = os.fstat(file.fileno())
        sha256 = _known(before) or hashlib.file_digest(file, "sha256").hexdigest()
        if _identity(before) == _identity(os.fstat(file.fileno())):
            remember_digest(file.fileno(), sha256)
    return sha256


def remember_digest(descriptor: int, sha256: str) -> None:
    """Give `digest_once` the digest of a large file that was hashed while it was written."""
    facts = os.fstat(descriptor)
    if facts.st_size >= _LARGE:
        _digests[_identity(facts)] = sha256, (facts.st_ctime_ns, facts.st_nlink)


def _known(facts: os.stat_result) -> str | None:
    """The digest, if the file has not changed. The time of a write may be the same again, after a
    jump of the clock; that of the last change of the inode is not, but a link changes it too."""
    sha256, (changed, links) = _digests.get(_identity(facts), ("", (0, 0)))
    same = facts.st_ctime_ns == changed or facts.st_nlink != links
    return sha256 if sha256 and same else None


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
