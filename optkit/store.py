"""The store memoises steps by content, so that resume is the same command again.

    root/objects/ab/<sha256>        foreign files, copied in by stage.py
    root/steps/ab/<key>/            one published step: its files and entry.json
    root/reads/<key>.json           what a step that runs user code read last time
    root/devices/                   what a library learned on a GPU: timings, kernels (no result)
    root/tmp/<pid>-<random>/        work in progress, private
    root/locks/<key>.lock           flock, one builder per key
    root/quarantine/                entries whose bytes did not match

Publish = write into tmp, fsync, rename, fsync the folder: a kill at any instant leaves either no
entry or a whole one. A hit is verified against the recorded digests before it is used; a corrupt
entry moves to quarantine and the step runs again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optkit.errors import IntegrityError, StorageError

_ENTRY = "entry.json"
# No permission, or a file (or /proc, or nothing at all) where a folder is wanted.
_NOT_HERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT,
             errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # fmt: skip
_LARGE = 64 << 20
_digests: dict[tuple[int, ...], str] = {}  # of large files that this process has read or written
_ABANDONED_SECONDS = 3600.0
_IN_USE_SECONDS = 3600.0


@dataclass(frozen=True)
class Entry:
    """A published step. `meta` is what the step returned; `digest` covers its files only."""

    key: str
    step: str
    path: Path
    files: Mapping[str, str]  # relative name → sha256
    meta: dict[str, Any]
    seconds: float

    @property
    def digest(self) -> str:
        return digest_json(dict(self.files))

    def file(self, name: str) -> Path:
        return self.path / name


def digest_json(value: Any) -> str:
    """sha256 over RFC 8785 canonical JSON: the same value gives the same digest on any machine."""
    import rfc8785

    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_names(folder: Path) -> str:
    """Of the names in a folder. Raises OSError."""
    return digest_json(sorted(path.name for path in folder.iterdir()))


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


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn an OSError (disk full, no permission, IO) into a StorageError that names the place."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            hint = "free some space (`optkit cache gc`), then run the same command again"
        elif error.errno in _NOT_HERE:
            hint = "choose a folder you may write to (--out, --cache or OPTKIT_CACHE)"
        else:
            hint = "check the disk, then run the same command again"
        place = str(error.filename or where)
        raise StorageError(error.strerror or str(error), where=place, hint=hint) from error


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data` atomically: readers see the old bytes or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


class Store:
    """A content-addressed folder. Safe for several processes at once (flock per key)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    def get(self, key: str) -> Entry | None:
        """The verified entry of that key, or None. A corrupt one is quarantined with a warning."""
        path = self._place(key)
        try:
            entry = self.peek(key)
        except (IntegrityError, OSError, ValueError, KeyError, TypeError) as error:
            self._quarantine(path, error)
            return None
        if entry is not None:
            os.utime(path / _ENTRY)  # least recently used goes first
        return entry

    def peek(self, key: str) -> Entry | None:
        """`get` that touches nothing. Raises IntegrityError, or what reading raises, if corrupt."""
        path = self._place(key)
        if not path.exists() and not path.is_symlink():
            return None
        entry = _read(path, key)
        _verify(entry)
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
                    self._publish(folder, key, step, meta, time.monotonic() - started)
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

    def entries(self) -> Iterator[tuple[str, str, int, float]]:
        """(key, step, bytes, last use as Unix time) of everything published, unverified."""
        for path in sorted(self.root.glob("steps/*/*")):
            try:
                step = str(json.loads((path / _ENTRY).read_bytes())["step"])
                used = (path / _ENTRY).stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError):
                step, used = "(corrupt)", 0.0
            yield path.name, step, _size(path), used

    def history(self) -> dict[str, list[tuple[float, int]]]:
        """Step name → (seconds, bytes) of every entry: what a step like it took here before."""
        found: dict[str, list[tuple[float, int]]] = {}
        for path in self.root.glob("steps/*/*"):
            try:
                body = json.loads((path / _ENTRY).read_bytes())
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
            (p.stat().st_mtime if p.is_file() else (p / _ENTRY).stat().st_mtime, p)
            for p in (*self.root.glob("steps/*/*"), *self.root.glob("objects/*/*"))
            if p.is_file() or (p / _ENTRY).exists()
        ]
        names = Counter(
            found for path in (*doomed, *(p for _, p in kept)) for found in _files(path)
        )
        freed = sum(_give_up(p, names) for p in doomed)
        total = sum(size for _, size in names)
        for used, path in sorted(kept):
            if total <= max_bytes:
                break
            if now - used > _IN_USE_SECONDS:
                doomed.append(path)
                last = _give_up(path, names)
                freed, total = freed + last, total - last
        for path in doomed:
            _remove(path)
        return len(doomed), freed

    def clear(self) -> int:
        """Remove everything. Returns the bytes freed."""
        freed = _size(self.root)
        for name in ("steps", "objects", "reads", "devices", "tmp", "quarantine", "locks"):
            _remove(self.root / name)
        return freed

    def _place(self, key: str) -> Path:
        return self.root / "steps" / key[:2] / key

    def _publish(
        self, folder: Path, key: str, step: str, meta: dict[str, Any], seconds: float
    ) -> None:
        files = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            files[path.relative_to(folder).as_posix()] = digest_once(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        body = {
            "key": key,
            "step": step,
            "files": files,
            "meta": meta,
            "seconds": round(seconds, 3),
        }
        body["check"] = _check(body)
        write_durably(folder / _ENTRY, json.dumps(body).encode())
        for inner in (p for p in folder.rglob("*") if p.is_dir()):
            fsync_dir(inner)
        place = self._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)
        fsync_dir(place.parent)
        fsync_dir(place.parent.parent)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the store's disk, which `gc` removes if this process is killed."""
        folder = self.root / "tmp" / f"{os.getpid()}-{secrets.token_hex(8)}"
        folder.mkdir(parents=True, mode=0o700)
        try:
            yield folder
        finally:
            _remove(folder)

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

    def _quarantine(self, path: Path, error: Exception) -> None:
        self.warnings.append(f"cache entry {path.name[:12]} was corrupt ({error}); rebuilding it")
        folder = self.root / "quarantine"
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process was faster
                path.rename(folder / f"{path.name}-{secrets.token_hex(4)}")


def _check(body: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in body.items() if k != "check"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, key: str) -> Entry:
    body = json.loads((path / _ENTRY).read_bytes())
    if not isinstance(body, dict) or body.get("check") != _check(body) or body.get("key") != key:
        raise IntegrityError("its entry.json is damaged")
    return Entry(key, body["step"], path, body["files"], body["meta"], body["seconds"])


def _verify(entry: Entry) -> None:
    if entry.path.is_symlink() or (entry.path / _ENTRY).is_symlink():
        raise IntegrityError("it is a link")
    present = {
        p.relative_to(entry.path).as_posix()
        for p in entry.path.rglob("*")
        if not p.is_dir() or p.is_symlink()
    }
    if present != {*entry.files, _ENTRY}:
        raise IntegrityError("files are missing or were added")
    for name, sha in entry.files.items():
        path = entry.path / name
        if path.is_symlink() or digest_once(path) != sha:
            raise IntegrityError(f"{name} does not match its digest")


def _abandoned(path: Path, now: float) -> bool:
    """Work in progress whose process is gone (its name starts with the process id)."""
    owner = path.name.partition("-")[0]
    if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc").exists():
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
