"""A large data file that the store already has is hashed and linked instead of copied.

The store remembers where it put a file of this inode, size and time. This is only a hint: the file
is linked if the digests of all bytes, of the file and of the stored copy, are equal.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optkit.ground.intake.files import copy_in
from optkit.ground.store import Store, digest_json, digest_once, storage_errors

_LEAST_BYTES = 64 << 20


class StoredCopies:
    """Copies or links the data files of one model into the store."""

    def __init__(self, store_objects: Path) -> None:
        self._objects = store_objects
        self._store = Store(store_objects.parent)
        self._keys: dict[str, str] = {}  # file name → key of the hint

    def bring(
        self, source: int, folder: Path, name: str, *, limit_bytes: int, where: str
    ) -> tuple[str, int]:
        """Write the open file to `folder / name`; return (sha256, bytes). Raises the errors of
        `copy_in`."""
        facts, target = os.fstat(source), folder / name
        if _LEAST_BYTES <= facts.st_size <= limit_bytes:
            identity = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            self._keys[name] = digest_json(["staged", *map(str, identity)])
            copy = self._copy(self._keys[name], facts.st_size)
            sha256 = _common_digest(source, copy) if copy is not None else None
            if copy is not None and sha256 is not None:
                with storage_errors(target):
                    target.hardlink_to(copy)
                return sha256, facts.st_size
        return copy_in(source, target, limit_bytes=limit_bytes, where=where)

    def remember(self, place: Path) -> None:
        """Remember the places of the files for the next call."""
        for name, key in self._keys.items():
            path = (place / name).relative_to(self._objects).as_posix()
            if self._store.recall(key) != {"path": path}:
                self._store.remember(key, {"path": path})

    def _copy(self, key: str, size: int) -> Path | None:
        known = self._store.recall(key) or {}
        copy = self._objects / str(known.get("path"))
        sound = copy.is_relative_to(self._objects) and ".." not in copy.parts
        if not sound or copy.is_symlink() or not copy.is_file() or copy.stat().st_size != size:
            return None
        return copy


def _common_digest(source: int, copy: Path) -> str | None:
    """The sha256 of both files; None if they differ. Both are read at the same time."""
    with ThreadPoolExecutor(1) as thread, os.fdopen(os.dup(source), "rb") as file:
        stored = thread.submit(digest_once, copy)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        same = stored.result() == sha256
    os.lseek(source, 0, os.SEEK_SET)
    return sha256 if same else None
