"""Opens foreign files without following links and copies them into the store while hashing.

A path that the user gave may contain links. A path *inside* a foreign file is opened component by
component from an open folder, without following links.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from optkit.facts.errors import InputRefused, StorageError, UnsafeFile
from optkit.ground.store import digest_once, fsync_dir, make_folder, remember_digest, storage_errors

_CHUNK = 4 << 20
_AHEAD = 32 << 20  # bytes that the system reads while a chunk is written
_PAGES_KEPT = 1 << 30  # bytes of a source that may stay in the page cache
_FICLONE = 0x40049409  # linux/fs.h: share the source's blocks (Btrfs, XFS)
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class FileLimits:
    """Limits on the size and the contents of one foreign file, in bytes or counts."""

    proto_bytes: int = 2 << 30  # protobuf's own limit
    data_bytes: int = 1 << 40  # external data of one model, and any other file
    nodes: int = 500_000
    expanded_nodes: int = 1_000_000  # after inlining every local function
    tensors: int = 500_000
    fields: int = 10_000_000  # protobuf fields walked: bounds the time, about 1 s per million
    nesting: int = 32  # graphs in graphs, types in types, functions calling functions
    rank: int = 32
    trip_count: int = 1_000_000  # of a Loop whose count is a constant
    header_bytes: int = 100_000_000  # safetensors, the format's own limit
    header_items: int = 10_000_000
    members: int = 10_000  # of a zip file
    ratio: int = 100  # unpacked over packed, of a zip file


@dataclass(frozen=True)
class StagedFile:
    """The copy of a foreign file in the store."""

    path: Path
    sha256: str
    size: int


@contextmanager
def located(path: Path) -> Iterator[None]:
    """Add the path of the file to every UnsafeFile that the body raises."""
    try:
        yield
    except UnsafeFile as error:
        where = f"{path}, {error.where}" if error.where else str(path)
        raise UnsafeFile(error.message, where=where, hint=error.hint) from error


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of the regular file that the user named.

    Links in this path belong to the user. They are resolved once, here.
    """
    try:
        real = path.resolve(strict=True)
        if not stat.S_ISREG(os.lstat(real).st_mode):  # before the open, which may act on a device
            raise UnsafeFile("it is not a regular file", where=str(path))
        source = os.open(real, _FILE)
    except FileNotFoundError as error:
        raise InputRefused("no such file", where=str(path)) from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle of links
        raise InputRefused(f"it cannot be opened: {_reason(error)}", where=str(path)) from error
    try:
        _require_regular(source, str(path))
        yield source
    finally:
        os.close(source)


@contextmanager
def opened_beneath(base: Path, location: str, *, where: str) -> Iterator[int]:
    """A descriptor of `location` inside folder `base`, opened without following links.

    The caller has checked the text of `location`. A hard link is refused, because it can be any
    file of the disk. The only exception is a link of Hugging Face's cache from a snapshot to
    `blobs/`.
    """
    *folders, name = location.split("/")
    try:
        with _descend(base, folders) as parent:
            blob = _hub_blob(base.joinpath(*folders), parent, name)
        if blob is not None:
            base, folders, name = blob.parent, [], blob.name
        with _descend(base, folders) as parent:
            before = os.lstat(name, dir_fd=parent)
            if not stat.S_ISREG(before.st_mode):
                raise UnsafeFile(f"{show(location)} is a link or not a regular file", where=where)
            source = os.open(name, _FILE, dir_fd=parent)
    except FileNotFoundError as error:
        raise UnsafeFile(
            f"the external data file {show(location)} is missing",
            where=where,
            hint="put it in the folder of the model, with this name",
        ) from error
    except OSError as error:
        raise UnsafeFile(
            f"{show(location)} cannot be opened: {_reason(error)}", where=where
        ) from error
    try:
        # The count from before the open: a hard link that is removed after it leaves a count of 1.
        if not os.path.samestat(before, os.fstat(source)):
            raise UnsafeFile(f"{show(location)} was replaced while it was opened", where=where)
        if before.st_nlink != 1:
            raise UnsafeFile(
                f"{show(location)} is a hard link, so it may be a file outside the model's folder",
                where=where,
                hint="replace it with a copy of the file",
            )
        yield source
    finally:
        os.close(source)


def copy_in(source: int, target: Path, *, limit_bytes: int, where: str) -> tuple[str, int]:
    """Copy an open file to the new file `target` (mode 0444, fsynced); returns (sha256, bytes)."""
    size = os.fstat(source).st_size
    _require_size(size, limit_bytes, where)
    with storage_errors(target), target.open("xb") as file:
        out = file.fileno()
        if _clone(source, out):
            _require_size(os.fstat(out).st_size, limit_bytes, where)
            sha256 = digest_once(target)
        else:
            _require_space(out, size, where)
            sha256 = _copy_hashed(source, file, size, limit_bytes, where)
        os.fchmod(out, 0o444)
        os.fsync(out)
        remember_digest(out, sha256)
        return sha256, os.fstat(out).st_size


def _copy_hashed(source: int, file: BinaryIO, size: int, limit_bytes: int, where: str) -> str:
    """Hash each chunk on another thread while it is written and the next chunk is read."""
    hasher, copied, hashed = hashlib.sha256(), 0, None
    # to clear two large buffers takes longer than to copy a small file
    chunk_bytes = min(_CHUNK, max(size, 1 << 16))
    buffers = [bytearray(chunk_bytes), bytearray(chunk_bytes)]
    with ThreadPoolExecutor(1) as thread:
        while got := os.readv(source, buffers[:1]):
            copied += got
            _require_size(copied, limit_bytes, where)  # it may grow while it is read
            if hashed is not None:
                hashed.result()  # the other buffer is free
            chunk = memoryview(buffers[0])[:got]
            hashed = thread.submit(hasher.update, chunk)
            os.posix_fadvise(source, copied, _AHEAD, os.POSIX_FADV_WILLNEED)
            file.write(chunk)
            if (
                copied > _PAGES_KEPT
            ):  # otherwise they displace the pages of the copy, which is read next
                os.posix_fadvise(source, copied - _AHEAD, _AHEAD, os.POSIX_FADV_DONTNEED)
            buffers.reverse()
    file.flush()
    return hasher.hexdigest()


def publish(temporary: Path, store_objects: Path, digest: str) -> Path:
    """Rename a finished file or folder to its content-addressed place, durably.

    Its time is that of now: it may replace the same file of another process, which has used it
    after this copy was written, and `cache clear` keeps what was used since that process began.
    """
    place = store_objects / digest[:2] / digest
    with storage_errors(place):
        make_folder(place.parent)
        temporary.replace(place)
        os.utime(place)
        fsync_dir(place.parent)
        fsync_dir(store_objects)
    return place


def show(name: str | bytes) -> str:
    """A foreign name in a form for messages: only ASCII, at most 80 characters."""
    text = name if isinstance(name, str) else name.decode("utf-8", "replace")
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")


@contextmanager
def _descend(base: Path, folders: list[str]) -> Iterator[int]:
    current = os.open(base, _FOLDER)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=current)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _hub_blob(folder: Path, descriptor: int, name: str) -> Path | None:
    """The file of `name` in Hugging Face's cache: `x/snapshots/<rev>/…` links to `x/blobs/<hash>`,
    or None."""
    repository = next((p.parent for p in folder.parents if p.name == "snapshots"), None)
    if repository is None or not stat.S_ISLNK(os.lstat(name, dir_fd=descriptor).st_mode):
        return None
    climb = "../" * len(folder.relative_to(repository).parts)
    blob = os.readlink(name, dir_fd=descriptor).removeprefix(f"{climb}blobs/")
    is_hash = len(blob) in (40, 64) and set(blob) <= set("0123456789abcdef")
    return repository / "blobs" / blob if is_hash else None


def _clone(source: int, out: int) -> bool:
    try:
        fcntl.ioctl(out, _FICLONE, source)
    except OSError:
        return False  # another disk, or one that cannot share blocks
    return True


def _require_regular(descriptor: int, where: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UnsafeFile("it is not a regular file", where=where)


def _require_size(size: int, limit: int, where: str) -> None:
    if size > limit:
        raise UnsafeFile(f"it has {size} bytes or more; the limit is {limit}", where=where)


def _require_space(descriptor: int, size: int, where: str) -> None:
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if size > free:
        raise StorageError(
            f"a copy needs {size} bytes, but the disk of the store has {free} bytes free",
            where=where,
            hint="free some space (`optkit cache gc`) or choose another disk (OPTKIT_CACHE)",
        )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return "a part of the path is a link or a file, not a folder"
        return error.strerror or "IO error"
    return str(error)
