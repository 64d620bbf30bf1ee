"""The folder in which entries are published, looked up, verified and removed."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

from optkit.errors import IntegrityError
from optkit.store import entry as entries
from optkit.store.digests import digest_once
from optkit.store.disk import (
    fsync_dir,
    lives,
    scratch,
    storage_errors,
    write_durably,
)
from optkit.store.entry import ENTRY, Entry
from optkit.store.leases import IN_USE_SECONDS, Lease
from optkit.store.remote import Damaged, Remote
from optkit.store.sharing import Sharing

_ABANDONED_SECONDS = 24 * 3600.0
_ROOMS = ("steps", "objects", "reads", "devices", "quarantine", "locks")
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
        self.lease = Lease(root)
        self.sharing = Sharing(root, self.lease, remote)

    @property
    def warnings(self) -> list[str]:
        return self.sharing.warnings

    @property
    def objects(self) -> Path:
        """Where foreign files are staged. What is there when it is used stays while this lives."""
        with storage_errors(self.root):
            self.lease.begin()
        return self.root / "objects"

    def get(self, key: str) -> Entry | None:
        """The verified entry of that key, from here or else from the remote, or None. A corrupt one
        is quarantined with a warning."""
        entry = self._here(key)
        return self._fetched(key) if entry is None else entry

    def _here(self, key: str) -> Entry | None:
        path = self._place(key)
        with storage_errors(self.root):
            self.lease.use(path / ENTRY)  # first: now nobody removes it while it is read
        try:
            return self.peek(key)
        except (IntegrityError, OSError, ValueError) as error:
            self._quarantine(path, error)
            return None

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
        return self.make_late(key, step, lambda: self.get(key), produce, lambda *_: key, on_wait)

    def make_late(
        self,
        lock: str,
        step: str,
        find: Callable[[], Entry | None],
        produce: Callable[[Path], dict[str, Any]],
        key_of: Callable[[dict[str, Any], Mapping[str, str]], str],
        on_wait: Callable[[], None] = lambda: None,
        *,
        shared: Callable[[Entry], bool] = lambda entry: True,
    ) -> tuple[Entry, bool]:
        """`make` for a step whose key is known only afterwards, from the meta that it returned and
        the digests of its files. `shared`: whether other machines may have the entry."""
        entry, hit = self._found_or_made(lock, step, find, produce, key_of, on_wait)
        if shared(entry):
            self._share(entry)
        return entry, hit

    def _found_or_made(
        self,
        lock: str,
        step: str,
        find: Callable[[], Entry | None],
        produce: Callable[[Path], dict[str, Any]],
        key_of: Callable[[dict[str, Any], Mapping[str, str]], str],
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
                seconds, files = time.monotonic() - started, _digests(folder)
                key = key_of(meta, files)
                if self.get(key) is None:
                    self._publish(folder, key, entries.record(key, step, files, meta, seconds))
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
        for path in self._entries():
            try:
                step = str(json.loads((path / ENTRY).read_bytes())["step"])
                used = (path / ENTRY).stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                step, used = "(corrupt)", 0.0
            yield path.name, step, _size(path), used

    def history(self) -> dict[str, list[tuple[float, int]]]:
        """Step name → (seconds, bytes) of every entry: what a step like it took here before."""
        found: dict[str, list[tuple[float, int]]] = {}
        for path in self._entries():
            try:
                entry = entries.read(path, path.name)
            except (OSError, ValueError, IntegrityError):
                continue
            found.setdefault(entry.step, []).append((entry.seconds, _size(path)))
        return found

    def verify(self) -> tuple[int, list[str]]:
        """Rehash every entry; corrupt ones go to quarantine. Returns (sound, corrupt keys)."""
        sound, corrupt = 0, []
        for key in [path.name for path in self._entries()]:
            warned = len(self.warnings)
            if self._here(key) is not None:
                sound += 1
            elif len(self.warnings) > warned:  # else another process has removed it meanwhile
                corrupt.append(key)
        return sound, corrupt

    def gc(self, max_bytes: int) -> tuple[int, int]:
        """Drop abandoned work, quarantine, and the least recently used beyond `max_bytes`.

        Nothing used within the last hour is touched, and nothing that a running command has used.
        Returns (removed things, freed bytes). Raises StorageError.
        """
        aside = [p for p in self._glob("tmp/*") if _abandoned(p)] + self._glob("quarantine/*")
        kept = sorted(self._dated())
        names = Counter(found for p in (*aside, *(p for _, p in kept)) for found in _files(p))
        freed = sum(_give_up(p, names) for p in aside)
        total = sum(size for _, size in names)
        with self._removing() as (remove, since):
            for path in aside:
                remove(path)
            spared = min(time.time() - IN_USE_SECONDS, math.inf if since is None else since)
            for _, path in kept:
                if total <= max_bytes:
                    break
                used = _used(path)  # it may have been used, or removed, while the rest was counted
                if used is not None and used < spared:
                    last = _give_up(path, names)
                    remove(path)
                    aside.append(path)
                    freed, total = freed + last, total - last
        return len(aside), freed

    def clear(self) -> tuple[int, int]:
        """Remove everything; beside running commands, all but what they have used, their work, and
        the locks. Returns the bytes freed and the bytes kept. Raises StorageError."""
        before = _size(self.root)
        with self._removing() as (remove, since):
            if since is None:
                doomed = [*(self.root / room for room in _ROOMS), *self._glob("tmp/*")]
            else:
                doomed = [p for p in self._glob("tmp/*") if _abandoned(p)]
                doomed += self._glob("quarantine/*")
                doomed += [path for used, path in self._dated() if used < since]
                doomed += [p for p in self._glob("reads/*") if (_used(p) or since) < since]
            for path in doomed:
                remove(path)
        kept = 0 if since is None else _size(self.root)
        return max(0, before - kept), kept

    def forget(self, step: str) -> int:
        """Remove the results of one kind of step; beside running commands, all but what they have
        used. Returns the bytes freed. Raises StorageError."""
        with self._removing() as (remove, since):
            before = math.inf if since is None else since
            freed = 0
            for key, name, size, used in self.entries():
                if name == step and used < before:
                    remove(self._place(key))
                    freed += size
        return freed

    @contextmanager
    def _removing(self) -> Iterator[tuple[Callable[[Path], None], float | None]]:
        """A function that takes something out of the store at once (its bytes go afterwards), and
        since when others use it, if any do. Nobody begins to use anything meanwhile."""
        with (
            storage_errors(self.root),
            scratch(self.root) as bin_,
            self.lease.removing() as since,
        ):

            def remove(path: Path) -> None:
                if path != bin_:
                    with suppress(FileNotFoundError):
                        path.rename(bin_ / secrets.token_hex(8))

            yield remove, since

    def _glob(self, pattern: str) -> list[Path]:
        """As far as it is there: another process may remove it meanwhile, which ends Path.glob."""
        return [self.root / name for name in sorted(glob(pattern, root_dir=self.root))]  # noqa: PTH207

    def _entries(self) -> list[Path]:
        return self._glob("steps/*/*")

    def _dated(self) -> Iterator[tuple[float, Path]]:
        """(last use as Unix time, place) of what is published and staged."""
        for path in (*self._entries(), *self._glob("objects/*/*")):
            used = _used(path)
            if used is not None:
                yield used, path

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
                return self.peek(key)
            except IntegrityError as error:
                self.warnings.append(
                    f"entry {key[:12]} of the remote was corrupt ({error}); replacing it"
                )
                remote.doubt("steps", key)
                return None

        with storage_errors(self.root):
            return self.sharing.ask(fetch)

    def scratch(self) -> AbstractContextManager[Path]:
        """A private folder on the store's disk, which `gc` removes if this process is killed."""
        with storage_errors(self.root):
            self.lease.begin()
        return scratch(self.root)

    def _quarantine(self, path: Path, error: Exception) -> None:
        folder = self.root / "quarantine"
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                path.rename(folder / f"{path.name}-{secrets.token_hex(4)}")
            except FileNotFoundError:  # another process was faster
                return
        self.warnings.append(f"cache entry {path.name[:12]} was corrupt ({error}); rebuilding it")


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): digest_once(path) for path in files}


def _reads(remote: Remote, key: str) -> Any:
    try:
        return remote.record("reads", key)
    except Damaged:
        return None


def _abandoned(path: Path) -> bool:
    """Work in progress whose process is gone; where that is not known, work that is old."""
    alive = lives(path.name)
    if alive is not None:
        return not alive
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _used(path: Path) -> float | None:
    """When it was used last, as Unix time; None: it is no longer there, or is no whole entry."""
    try:
        return (path / ENTRY if path.is_dir() else path).stat().st_mtime
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    """Bytes on the disk: a file of several names counts once."""
    return sum(size for _, size in set(_files(path)))


def _files(path: Path) -> Iterator[tuple[int, int]]:
    """(inode, bytes) of every file in a folder, or of the file, as far as it is still there."""
    inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in (path,) if path.is_file() else inside:
        with suppress(FileNotFoundError):
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
