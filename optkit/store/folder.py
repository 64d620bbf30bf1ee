"""The folder in which entries are published, looked up, verified and removed."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from optkit.errors import IntegrityError
from optkit.store import entry as entries
from optkit.store.digests import digest_once
from optkit.store.disk import (
    fsync_dir,
    is_abandoned,
    remove,
    scratch,
    storage_errors,
    write_durably,
)
from optkit.store.entry import ENTRY, Entry
from optkit.store.remote import Damaged, Remote
from optkit.store.sharing import IN_USE_SECONDS, Sharing

_ABANDONED_SECONDS = 3600.0
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def default_root() -> Path:
    """$OPTKIT_CACHE, or the user's cache folder."""
    if named := os.environ.get("OPTKIT_CACHE"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("optkit", appauthor=False))


class Store:
    """A content-addressed folder, and the remote beside it, if any. Safe for several processes at
    once (flock per key)."""

    def __init__(self, root: Path, remote: Remote | None = None) -> None:
        self.root = root
        self.sharing = Sharing(root, remote)

    @property
    def warnings(self) -> list[str]:
        return self.sharing.warnings

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    def get(self, key: str) -> Entry | None:
        """The verified entry of that key, from here or else from the remote, or None. A corrupt one
        is quarantined with a warning."""
        path = self._place(key)
        try:
            entry = self.peek(key)
        except (IntegrityError, OSError, ValueError, KeyError, TypeError) as error:
            self._quarantine(path, error)
            entry = None
        if entry is None:
            return self._fetched(key)
        os.utime(path / ENTRY)  # least recently used goes first
        return entry

    def peek(self, key: str) -> Entry | None:
        """What is here, untouched. Raises IntegrityError, or what reading raises, if corrupt."""
        path = self._place(key)
        if not path.exists() and not path.is_symlink():
            return None
        entry = entries.read(path, key)
        entries.verify(entry)
        return entry

    def make(
        self,
        key: str,
        step: str,
        produce: Callable[[Path], dict[str, Any]],
        on_wait: Callable[[], None] = lambda: None,
    ) -> tuple[Entry, bool]:
        """The entry of `key`, built by `produce(folder) -> meta` unless it is there: (entry, hit).

        Two processes with one key: one builds, the other waits and gets a hit.
        Raises StorageError when the disk is full; whatever `produce` raises leaves nothing behind.
        """
        return self.make_late(key, step, lambda: self.get(key), produce, lambda meta: key, on_wait)

    def make_late(
        self,
        lock: str,
        step: str,
        find: Callable[[], Entry | None],
        produce: Callable[[Path], dict[str, Any]],
        key_of: Callable[[dict[str, Any]], str],
        on_wait: Callable[[], None] = lambda: None,
    ) -> tuple[Entry, bool]:
        """`make` for a step whose key is known only afterwards, from the meta it returned."""
        entry, hit = self._found_or_made(lock, step, find, produce, key_of, on_wait)
        self._share(entry)
        return entry, hit

    def _found_or_made(
        self,
        lock: str,
        step: str,
        find: Callable[[], Entry | None],
        produce: Callable[[Path], dict[str, Any]],
        key_of: Callable[[dict[str, Any]], str],
        on_wait: Callable[[], None],
    ) -> tuple[Entry, bool]:
        found = find()
        if found is not None:
            return found, True
        with storage_errors(self.root), self._lock(lock, on_wait):
            found = find()
            if found is not None:
                return found, True
            with self.scratch() as folder:
                started = time.monotonic()
                meta = produce(folder)
                key = key_of(meta)
                if self.get(key) is None:
                    seconds = time.monotonic() - started
                    self._publish(
                        folder, key, entries.record(key, step, _digests(folder), meta, seconds)
                    )
        made = self.get(key)
        if made is None:
            raise IntegrityError(
                f"the result of step {step!r} changed while it was being stored",
                where=str(self.root),
            )
        return made, False

    def recall(self, key: str) -> dict[str, Any] | None:
        """What a step that runs user code read last time under this key."""
        path = self.root / "reads" / f"{key}.json"
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def remember(self, key: str, reads: dict[str, Any]) -> None:
        path = self.root / "reads" / f"{key}.json"
        with storage_errors(path), self.scratch() as folder:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(folder / path.name, json.dumps(reads, sort_keys=True).encode())
            (folder / path.name).replace(path)
            fsync_dir(path.parent)

    def recalled(self, key: str) -> Iterator[dict[str, Any]]:
        """What `recall` knows here, and then what the remote does."""
        here = self.recall(key)
        if here is not None:
            yield here
        there = self.sharing.ask(lambda remote: _reads(remote, key))
        if isinstance(there, dict) and there != here:
            yield there

    def share_reads(self, key: str, reads: dict[str, Any]) -> None:
        """Have the remote remember it, too."""
        if self.sharing.remote is None:
            return
        if self.recall(key) != reads:
            self.remember(key, reads)

        def share(remote: Remote) -> None:
            if remote.takes and _reads(remote, key) != reads:
                remote.keep("reads", key, reads)

        self.sharing.ask(share)

    def entries(self) -> Iterator[tuple[str, str, int, float]]:
        """(key, step, bytes, last use as Unix time) of everything published, unverified."""
        for path in sorted(self.root.glob("steps/*/*")):
            try:
                step = str(json.loads((path / ENTRY).read_bytes())["step"])
                used = (path / ENTRY).stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError):
                step, used = "(corrupt)", 0.0
            yield path.name, step, _size(path), used

    def history(self) -> dict[str, list[tuple[float, int]]]:
        """Step name → (seconds, bytes) of every entry: what a step like it took here before."""
        found: dict[str, list[tuple[float, int]]] = {}
        for path in self.root.glob("steps/*/*"):
            try:
                body = json.loads((path / ENTRY).read_bytes())
                found.setdefault(body["step"], []).append((body["seconds"], _size(path)))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def verify(self) -> tuple[int, list[str]]:
        """Rehash every entry; corrupt ones go to quarantine. Returns (sound, corrupt keys)."""
        sound, corrupt = 0, []
        for key, *_ in list(self.entries()):
            if self.get(key) is None:
                corrupt.append(key)
            else:
                sound += 1
        return sound, corrupt

    def gc(self, max_bytes: int) -> tuple[int, int]:
        """Drop abandoned work, quarantine, and the least recently used beyond `max_bytes`.

        Nothing used within the last hour is touched. Returns (removed things, freed bytes).
        """
        now = time.time()
        doomed = [p for p in self.root.glob("tmp/*") if _abandoned(p, now)]
        doomed += list(self.root.glob("quarantine/*"))
        kept = [
            (p.stat().st_mtime if p.is_file() else (p / ENTRY).stat().st_mtime, p)
            for p in (*self.root.glob("steps/*/*"), *self.root.glob("objects/*/*"))
            if p.is_file() or (p / ENTRY).exists()
        ]
        names = Counter(
            found for path in (*doomed, *(p for _, p in kept)) for found in _files(path)
        )
        freed = sum(_give_up(p, names) for p in doomed)
        total = sum(size for _, size in names)
        for used, path in sorted(kept):
            if total <= max_bytes:
                break
            if now - used > IN_USE_SECONDS:
                doomed.append(path)
                last = _give_up(path, names)
                freed, total = freed + last, total - last
        for path in doomed:
            remove(path)
        return len(doomed), freed

    def clear(self) -> int:
        """Remove everything. Returns the bytes freed."""
        freed = _size(self.root)
        for name in ("steps", "objects", "reads", "devices", "tmp", "quarantine", "locks"):
            remove(self.root / name)
        return freed

    def _place(self, key: str) -> Path:
        return self.root / "steps" / key[:2] / key

    def _publish(self, folder: Path, key: str, body: Mapping[str, Any]) -> None:
        for name in body["files"]:
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())
        write_durably(folder / ENTRY, json.dumps(body).encode())
        for inner in (p for p in folder.rglob("*") if p.is_dir()):
            fsync_dir(inner)
        place = self._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(place)
        except OSError as error:  # another process fetched it meanwhile
            if error.errno not in _TAKEN or self.peek(key) is None:
                raise
        fsync_dir(place.parent)
        fsync_dir(place.parent.parent)

    @contextmanager
    def _lock(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        from filelock import FileLock, Timeout

        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(folder / f"{key}.lock")
        try:
            lock.acquire(timeout=1)
        except Timeout:
            on_wait()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _share(self, entry: Entry) -> None:
        def share(remote: Remote) -> None:
            if not remote.takes or remote.has("steps", entry.key):
                return
            for name, sha256 in entry.files.items():
                remote.put(entry.file(name), sha256)
            remote.keep("steps", entry.key, json.loads((entry.path / ENTRY).read_bytes()))

        with storage_errors(entry.path):
            self.sharing.ask(share)

    def _fetched(self, key: str) -> Entry | None:
        """The entry as another machine left it on the remote. A corrupt one will be replaced."""

        def fetch(remote: Remote) -> Entry | None:
            try:
                body = remote.record("steps", key)
                if body is None:
                    return None
                found = entries.opened(body, key, self._place(key))
                with self.scratch() as folder:
                    self.sharing.bring(found.files, folder)
                    self._publish(folder, key, body)
            except (IntegrityError, KeyError, TypeError, AttributeError) as error:
                self.warnings.append(
                    f"entry {key[:12]} of the remote was corrupt ({error}); replacing it"
                )
                remote.doubt("steps", key)
                return None
            return self.peek(key)

        with storage_errors(self.root):
            return self.sharing.ask(fetch)

    def scratch(self) -> AbstractContextManager[Path]:
        """A private folder on the store's disk, which `gc` removes if this process is killed."""
        return scratch(self.root)

    def _quarantine(self, path: Path, error: Exception) -> None:
        self.warnings.append(f"cache entry {path.name[:12]} was corrupt ({error}); rebuilding it")
        folder = self.root / "quarantine"
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process was faster
                path.rename(folder / f"{path.name}-{secrets.token_hex(4)}")


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): digest_once(path) for path in files}


def _reads(remote: Remote, key: str) -> Any:
    try:
        return remote.record("reads", key)
    except Damaged:
        return None


def _abandoned(path: Path, now: float) -> bool:
    """Work in progress whose process is gone; where that is not known, work that is old."""
    if is_abandoned(path.name):
        return True
    try:
        return now - path.stat().st_mtime > 24 * _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    """Bytes on the disk: a file of several names counts once."""
    return sum(size for _, size in set(_files(path)))


def _files(path: Path) -> Iterator[tuple[int, int]]:
    """(inode, bytes) of every file in a folder, or of the file."""
    for file in (path,) if path.is_file() else path.rglob("*"):
        facts = file.lstat()
        if stat.S_ISREG(facts.st_mode):
            yield facts.st_ino, facts.st_size


def _give_up(path: Path, names: Counter[tuple[int, int]]) -> int:
    """Take its files' names off the count; the bytes of those that have none left."""
    freed = 0
    for found in _files(path):
        names[found] -= 1
        if not names[found]:
            del names[found]
            freed += found[1]
    return freed
