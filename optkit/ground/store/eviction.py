"""Removes entries from a store, and computes how much disk space that frees.

Nothing that a running command has used is removed (`leases`). A file that several entries link to
takes its bytes once, and frees them with its last name.
"""

from __future__ import annotations

import math
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.ground.store.disk import CACHE_OPTION, lives, scratch, storage_errors
from optkit.ground.store.entry import ENTRY
from optkit.ground.store.leases import IN_USE_SECONDS

if TYPE_CHECKING:
    from optkit.ground.store.folder import Store

_ABANDONED_SECONDS = 24 * 3600.0
_FOLDERS = ("steps", "objects", "records", "reads", "devices", "quarantine", "locks")
_COMPILED = "compiled"  # in devices/


def compiled_folder(devices: Path, key: str) -> Path:
    """The folder in `root/devices` for what a library compiles under this key. It is used now:
    `gc` removes those that were not used for long, with the entries. Raises StorageError."""
    folder = devices / _COMPILED / key
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ENTRY).touch()
    return folder


def gc(store: Store, max_bytes: int) -> tuple[int, int]:
    """Remove abandoned work, the quarantine, and the least recently used entries beyond
    `max_bytes`.

    Nothing that was used within the last hour, or by a running command, is removed. Returns (number
    of removed entries and files, freed bytes). Raises StorageError.
    """
    removed = _abandoned(store)
    kept = sorted(_dated(store))
    names = Counter(file for path in (*removed, *(p for _, p in kept)) for file in _files(path))
    freed = sum(_unlinked(path, names) for path in removed)
    total = sum(size for _, size in names)
    with _removing(store) as (remove, since):
        # every key leaves a lock, an empty file; whoever holds one is another user of the store
        for path in (*removed, *(store.glob("locks/*") if since is None else ())):
            remove(path)
        spared = min(time.time() - IN_USE_SECONDS, math.inf if since is None else since)
        for _, path in kept:
            if total <= max_bytes:
                break
            # another process may have used or removed it while the rest was counted
            used = _used(path)
            if used is not None and used < spared:
                size = _unlinked(path, names)
                remove(path)
                removed.append(path)
                freed, total = freed + size, total - size
    return len(removed), freed


def clear(store: Store) -> tuple[int, int]:
    """Remove everything; while other commands run, all except what they have used, their work, and
    the locks. Returns (freed bytes, kept bytes). Raises StorageError."""
    before = disk_bytes(store.root)
    with _removing(store) as (remove, since):
        if since is None:
            doomed = [*(store.root / name for name in _FOLDERS), *store.glob("tmp/*")]
        else:
            doomed = _abandoned(store)
            doomed += [path for used, path in _dated(store) if used < since]
            doomed += [path for path in store.glob("records/*") if (_used(path) or since) < since]
        for path in doomed:
            remove(path)
    kept = 0 if since is None else disk_bytes(store.root)
    return max(0, before - kept), kept


def forget(store: Store, step: str) -> int:
    """Remove the results of one kind of step; while other commands run, all except what they have
    used. Returns the freed bytes. Raises StorageError."""
    with _removing(store) as (remove, since):
        before = math.inf if since is None else since
        freed = 0
        for key, name, size, used in store.entries():
            if name == step and used < before:
                remove(store.place(key))
                freed += size
    return freed


def disk_bytes(path: Path) -> int:
    """Bytes on the disk. A file with several names counts once."""
    return sum(size for _, size in set(_files(path)))


@contextmanager
def _removing(store: Store) -> Iterator[tuple[Callable[[Path], None], float | None]]:
    """A function that removes something from the store at once (the bytes are freed later), and
    the start of the oldest other user, if there is one. Meanwhile no process can begin to use
    anything."""
    with (
        storage_errors(store.root, CACHE_OPTION),
        scratch(store.root) as trash,
        store.lease.removing() as since,
    ):

        def remove(path: Path) -> None:
            if path != trash:
                with suppress(FileNotFoundError):
                    path.rename(trash / secrets.token_hex(8))

        yield remove, since


def _abandoned(store: Store) -> list[Path]:
    """Quarantine, and work in progress of processes that have ended; if this is unknown, old work;
    and `reads`, the name of the records until 2026-11."""
    work = [path for path in store.glob("tmp/*") if _is_abandoned(path)]
    return work + store.glob("reads/*") + store.glob("quarantine/*")


def _is_abandoned(path: Path) -> bool:
    alive = lives(path.name)
    if alive is not None:
        return not alive
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _dated(store: Store) -> Iterator[tuple[float, Path]]:
    """(last use as Unix time, path) of everything that is published and staged, and of
    what libraries compiled."""
    for path in (
        *store.glob("steps/*/*"),
        *store.glob("objects/*/*"),
        *store.glob(f"devices/{_COMPILED}/*"),
    ):
        used = _used(path)
        if used is not None:
            yield used, path


def _used(path: Path) -> float | None:
    """The time of its last use, as Unix time; None if it no longer exists, or is not a complete
    entry."""
    try:
        return (path / ENTRY if path.is_dir() else path).stat().st_mtime
    except FileNotFoundError:
        return None


def _files(path: Path) -> Iterator[tuple[int, int]]:
    """(inode, bytes) of every file in a folder, or of the file, as far as it still exists."""
    inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in (path,) if path.is_file() else inside:
        with suppress(FileNotFoundError):
            facts = file.lstat()
            if stat.S_ISREG(facts.st_mode):
                yield facts.st_ino, facts.st_size


def _unlinked(path: Path, names: Counter[tuple[int, int]]) -> int:
    """Remove the names of the files from the count, and return the bytes of files without a name
    left."""
    freed = 0
    for file in _files(path):
        names[file] -= 1
        if not names[file]:
            del names[file]
            freed += file[1]
    return freed
