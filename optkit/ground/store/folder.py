"""The folder in which entries are published, looked up and verified."""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import glob
from pathlib import Path

from optkit.facts.errors import IntegrityError
from optkit.ground.store import entry as entries
from optkit.ground.store.digests import digest_once, is_shallow
from optkit.ground.store.disk import (
    CACHE_OPTION,
    fsync_dir,
    fsync_tree,
    is_scarce,
    make_folder,
    open_regular,
    scratch,
    storage_errors,
    write_durably,
)
from optkit.ground.store.entry import ENTRY, Entry
from optkit.ground.store.eviction import disk_bytes
from optkit.ground.store.leases import Lease
from optkit.ground.store.remote import DamagedFile, Remote
from optkit.ground.store.seal import is_sealed, sealed
from optkit.ground.store.sharing import Sharing

Meta = Mapping[str, object]
"""The facts that a step returned, or a saved record: JSON."""
_RECORDS = "records"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def default_root() -> Path:
    """$OPTKIT_CACHE, or the user's cache folder."""
    if named := os.environ.get("OPTKIT_CACHE"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("optkit", appauthor=False))


class Store:
    """A content-addressed folder, and its remote, if there is one. Several processes may use it at
    the same time (flock per key)."""

    def __init__(self, root: Path, remote: Remote | None = None) -> None:
        self.root = root
        self.lease = Lease(root)
        self.sharing = Sharing(root, self.lease, remote)

    @property
    def warnings(self) -> list[str]:
        return self.sharing.warnings

    @property
    def objects(self) -> Path:
        """The folder for copies of foreign files. Files that are used remain while this object
        exists."""
        with storage_errors(self.root, CACHE_OPTION):
            self.lease.begin()
        return self.root / "objects"

    def get(self, key: str) -> Entry | None:
        """The verified entry of that key, from this folder or else from the remote, or None. A
        corrupt entry moves to quarantine, with a warning."""
        entry = self._here(key)
        return self._fetched(key) if entry is None else entry

    def _here(self, key: str) -> Entry | None:
        path = self.place(key)
        with storage_errors(self.root, CACHE_OPTION):
            # this is first: from now on no process removes it while it is read
            self.lease.use(path / ENTRY)
            try:
                return self.peek(key)
            except (IntegrityError, OSError, ValueError) as error:
                if is_scarce(error):
                    raise
                self._quarantine(path, error)
                return None

    def peek(self, key: str) -> Entry | None:
        """The entry in this folder, without side effects. Raises IntegrityError or OSError if it is
        corrupt."""
        path = self.place(key)
        if not path.exists() and not path.is_symlink():
            return None
        entry = entries.read(path, key)
        entries.verify(entry)
        return entry

    def make(
        self,
        key: str,
        step: str,
        produce: Callable[[Path], Meta],
        on_wait: Callable[[], None] = lambda: None,
    ) -> tuple[Entry, bool]:
        """The entry of `key`, built by `produce(folder) -> meta` if it does not exist: (entry,
        hit).

        If two processes need one key, one builds the entry, and the other waits and gets a hit.
        Raises StorageError if the disk is full. An error of `produce` leaves nothing behind.
        """
        entry = self.get(key)
        hit = entry is not None
        if entry is None:
            with storage_errors(self.root, CACHE_OPTION), self._lock(key, on_wait):
                entry = self.get(key)  # of the process that had the lock
                hit = entry is not None
                if entry is None:
                    entry = self.add(step, produce, lambda meta, files: key)
        if hit:
            self._share(entry)
        return entry, hit

    def add(
        self,
        step: str,
        produce: Callable[[Path], Meta],
        name: Callable[[Meta, Mapping[str, str]], str],
    ) -> Entry:
        """The entry with the result of `produce`, under the key that `name` computes from its facts
        and from the digests of its files (relative name → sha256). Errors as in `make`."""
        with storage_errors(self.root, CACHE_OPTION), self.scratch() as folder:
            started = time.monotonic()
            meta = produce(folder)
            seconds, files = time.monotonic() - started, _digests(folder)
            key = name(meta, files)
            entry = self.get(key)
            if entry is None:
                self._publish(folder, Entry(key, step, folder, files, meta, seconds))
                entry = self.get(key)
        if entry is None:
            raise IntegrityError(
                f"the result of step {step!r} changed while it was being stored",
                where=str(self.root),
            )
        self._share(entry)
        return entry

    def recall(self, key: str) -> Meta | None:
        """The record that this store remembers under this key. A damaged record is as none."""
        try:
            with open_regular(self.root / _RECORDS / f"{key}.json") as file:
                body = json.load(file)
        except (OSError, ValueError, RecursionError):
            return None
        return _record_in(body, key)

    def remember(self, key: str, record: Meta) -> None:
        path = self.root / _RECORDS / f"{key}.json"
        with storage_errors(path, CACHE_OPTION), self.scratch() as folder:
            make_folder(path.parent)
            write_durably(folder / path.name, json.dumps(_record_of(key, record)).encode())
            (folder / path.name).replace(path)
            fsync_dir(path.parent)

    def recalled(self, key: str) -> Iterator[Meta]:
        """The record in this store under this key, then that of the remote."""
        here = self.recall(key)
        if here is not None:
            yield here
        there = self.sharing.ask(lambda remote: _record(remote, key))
        if there is not None and there != here:
            yield there

    def share_record(self, key: str, record: Meta) -> None:
        """Save the record in the remote, with the entry that it names."""

        def share(remote: Remote) -> None:
            if remote.takes and _record(remote, key) != record:
                remote.keep("records", key, _record_of(key, record))

        self.sharing.ask(share)

    def entries(self) -> Iterator[tuple[str, str, int, float]]:
        """(key, step, bytes, last use as Unix time) of every published entry, without
        verification."""
        for path in self._entries():
            try:
                with open_regular(path / ENTRY) as file:
                    step, used = str(json.load(file)["step"]), os.fstat(file.fileno()).st_mtime
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                step, used = "(corrupt)", 0.0
            yield path.name, step, disk_bytes(path), used

    def history(self) -> dict[str, list[tuple[float, int]]]:
        """Step name → (seconds, bytes) of every entry: the past cost of this kind of step on this
        machine."""
        by_step: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for path in self._entries():
            with suppress(OSError, ValueError, IntegrityError):
                entry = entries.read(path, path.name)
                by_step[entry.step].append((entry.seconds, disk_bytes(path)))
        return dict(by_step)

    def verify(self) -> tuple[int, list[str]]:
        """Hash every entry again; corrupt entries move to quarantine. Returns (number of intact
        entries, keys of corrupt entries)."""
        sound, corrupt = 0, []
        for key in [path.name for path in self._entries()]:
            warned = len(self.warnings)
            if self._here(key) is not None:
                sound += 1
            elif len(self.warnings) > warned:  # otherwise another process has removed it
                corrupt.append(key)
        return sound, corrupt

    def glob(self, pattern: str) -> list[Path]:
        """The matching paths that still exist: another process may remove one during the search,
        which would end Path.glob."""
        return [self.root / name for name in sorted(glob(pattern, root_dir=self.root))]  # noqa: PTH207

    def _entries(self) -> list[Path]:
        return self.glob("steps/*/*")

    def place(self, key: str) -> Path:
        return self.root / "steps" / key[:2] / key

    def _publish(self, folder: Path, entry: Entry) -> None:
        (folder / ENTRY).write_text(json.dumps(entry.to_json()))
        fsync_tree(folder)
        place = self.place(entry.key)
        make_folder(place.parent)
        try:
            folder.rename(place)
        except OSError as error:  # another process has downloaded it
            if error.errno not in _TAKEN or self.peek(entry.key) is None:
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

        with storage_errors(entry.path, CACHE_OPTION):
            self.sharing.ask(share)

    def _fetched(self, key: str) -> Entry | None:
        """The entry of another machine from the remote. A corrupt entry will be replaced."""

        def fetch(remote: Remote) -> Entry | None:
            try:
                body = remote.record("steps", key)
                if body is None:
                    return None
                entry = entries.opened(body, key, self.place(key))
                with self.scratch() as folder:
                    self.sharing.bring(entry.files, folder)
                    self._publish(folder, entry)
                return self.peek(key)
            except IntegrityError as error:
                self.warnings.append(
                    f"entry {key[:12]} of the remote was corrupt ({error}); replacing it"
                )
                remote.doubt("steps", key)
                return None

        with storage_errors(self.root, CACHE_OPTION):
            return self.sharing.ask(fetch)

    def scratch(self) -> AbstractContextManager[Path]:
        """A private folder on the store's disk, which `gc` removes if this process is killed."""
        with storage_errors(self.root, CACHE_OPTION):
            self.lease.begin()
        return scratch(self.root)

    def _quarantine(self, path: Path, error: Exception) -> None:
        folder = self.root / "quarantine"
        with storage_errors(folder, CACHE_OPTION):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                path.rename(folder / f"{path.name}-{secrets.token_hex(4)}")
            except FileNotFoundError:  # another process was faster
                return
        self.warnings.append(f"cache entry {path.name[:12]} was corrupt ({error}); rebuilding it")


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): digest_once(path) for path in files}


def _record(remote: Remote, key: str) -> Meta | None:
    try:
        return _record_in(remote.record("records", key), key)
    except DamagedFile:
        return None


def _record_of(key: str, record: Meta) -> dict[str, object]:
    """The content of the file of a record: it names its key, because a file may be at the place of
    another one."""
    return sealed({"key": key, "record": dict(record)})


def _record_in(body: object, key: str) -> Meta | None:
    """The record in the content of a file, if this is undamaged and of that key."""
    if not isinstance(body, dict) or not is_shallow(body):
        return None
    record = body.get("record")
    known = is_sealed(body) and body.get("key") == key
    return record if known and isinstance(record, dict) else None
