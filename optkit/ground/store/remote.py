"""A place where machines exchange finished steps: any file system of fsspec.

    url/optkit.json             marks the place, with the version of the format
    url/files/ab/<sha256>       every file, once, under its digest
    url/steps/ab/<key>.json     the record of an entry, with a checksum of itself
    url/records/ab/<key>.json   what user code yielded, with a checksum of itself
    url/progress/<name>.json    the progress of a task of a cluster

Files are written first and the record last, so an interrupted upload is not an entry. If two
machines write the same entry, their bytes are equal, or each has its own files, and the record that
is written last counts. An object store shows an object only when it is complete; on other file
systems a file is renamed when it is complete.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from optkit.facts.errors import (
    IntegrityError,
    OptkitError,
    StorageError,
    ToolchainMissing,
    UsageError,
)
from optkit.ground.store.digests import digest_once

_MARK, _SCHEMA = "optkit.json", "optkit.remote/v1"
# for everything except transfers of files; the clients' own time limits may be an hour
_ANSWER_SECONDS = 30.0
_OWN_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = 0o444

T = TypeVar("T")


class RemoteLost(StorageError):
    """The remote does not answer, or refuses access."""


class RemoteReadOnly(RemoteLost):
    """The remote refuses writes. It can still be read."""


class DamagedFile(IntegrityError):
    """A file that a record of the remote names is missing there, or has other bytes. `sha256`: of
    the file."""

    def __init__(self, message: str, sha256: str = "") -> None:
        super().__init__(message)
        self.sha256 = sha256


class Remote:
    """The place at `url`. fsspec takes options and credentials from the environment.

    Raises UsageError (unknown kind of URL), ToolchainMissing (its library is not installed), and,
    like all methods, RemoteLost. Several threads may use it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.takes = True
        """Whether it can be written to, as far as this is known."""
        self._turn: AbstractContextManager[object] = nullcontext()
        self._known: dict[str, bool] = {}  # name → whether it exists and is undamaged
        with self._asked():
            self._files, self._root = self._soon(_opened, url)
            if not self._files.async_impl:  # a separate connection, which one thread uses at a time
                self._turn = threading.Lock()
            # an object store has no rename: fsspec's own `mv` copies and removes
            owner = next(kind for kind in type(self._files).__mro__ if "mv" in vars(kind))
            self._renames = owner.__module__ != "fsspec.spec"
        self.check()

    def __str__(self) -> str:
        return re.sub(r"//[^/]*@", "//", self.url).partition("?")[0]

    def check(self) -> None:
        """Read the mark of the place, or write it, which shows whether it is writable."""
        data = self._read(_MARK)
        if data is None:
            self._write(_MARK, json.dumps({"schema": _SCHEMA}).encode())
            return
        with suppress(ValueError, RecursionError):
            if json.loads(data) == {"schema": _SCHEMA}:
                return
        raise RemoteLost(
            "it is not a store in this format",
            where=str(self),
            hint=f"see {_MARK} there; choose another place",
        )

    def record(self, kind: str, key: str) -> object:
        """The record under that key ("steps" or "records"), or None. Raises DamagedFile."""
        name = _record(kind, key)
        if self._known.get(name) is False:
            return None
        data = self._read(name)
        self._known[name] = data is not None
        try:
            return None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            raise DamagedFile("its record is damaged") from None

    def has(self, kind: str, key: str) -> bool:
        return self._has(_record(kind, key))

    def keep(self, kind: str, key: str, value: object) -> None:
        """Replace the record of that key."""
        self._write(_record(kind, key), json.dumps(value).encode())
        self._known[_record(kind, key)] = True

    def doubt(self, kind: str, key: str) -> None:
        """Treat the record as missing, because it is damaged."""
        self._known[_record(kind, key)] = False

    def put(self, path: Path, sha256: str) -> None:
        """Upload the file, unless it exists."""
        name = _file(sha256)
        if not self._has(name, path.stat().st_size):
            self._write(name, path)
        self._known[name] = True

    def fetch(self, sha256: str, target: Path) -> None:
        """Download the file with this digest to the new file `target`, read-only. Raises
        DamagedFile, and OSError if the disk of this machine is full."""
        name = _file(sha256)
        try:
            with self._asked(), self._turn:
                self._files.get_file(f"{self._root}/{name}", str(target))
        except FileNotFoundError:
            self._known[name] = False
            raise DamagedFile(f"file {sha256[:12]} is not there", sha256) from None
        target.chmod(_READ_ONLY)
        self._known[name] = digest_once(target) == sha256
        if not self._known[name]:
            raise DamagedFile(f"file {sha256[:12]} does not match its digest", sha256)

    def doubt_file(self, sha256: str) -> None:
        self._known[_file(sha256)] = False

    def tell(self, name: str, progress: object) -> None:
        self._write(f"progress/{name}.json", json.dumps(progress).encode())

    def told(self, name: str) -> object:
        """The last value that was passed to `tell`, or None."""
        with suppress(ValueError, RecursionError):
            return json.loads(self._read(f"progress/{name}.json") or b"null")
        return None

    def forget(self, name: str) -> None:
        with suppress(FileNotFoundError), self._asked():
            self._soon(self._files.rm_file, f"{self._root}/progress/{name}.json")

    def _has(self, name: str, size: int | None = None) -> bool:
        if name not in self._known:
            try:
                with self._asked():
                    facts = self._soon(self._files.info, f"{self._root}/{name}")
                self._known[name] = size in (None, facts["size"])
            except FileNotFoundError:
                self._known[name] = False
        return self._known[name]

    def _read(self, name: str) -> bytes | None:
        try:
            with self._asked():
                data: bytes = self._soon(self._files.cat_file, f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return data

    def _write(self, name: str, content: Path | bytes) -> None:
        place = f"{self._root}/{name}"
        whole = f"{place}.{secrets.token_hex(4)}" if self._renames else place
        with self._asked(writing=True):
            if self._renames:
                self._soon(self._files.makedirs, place.rpartition("/")[0], True)
            if isinstance(content, bytes):
                self._soon(self._files.pipe_file, whole, content)
            else:
                with self._turn:
                    self._files.put_file(str(content), whole)
            if self._renames:
                self._soon(self._files.mv, whole, place)

    def _soon(self, function: Callable[..., T], *arguments: object) -> T:
        """The result or the exception of a function; TimeoutError if there is neither in time."""
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        with self._turn:
            threading.Thread(target=work, daemon=True).start()
            return answer.result(_ANSWER_SECONDS)

    @contextmanager
    def _asked(self, *, writing: bool = False) -> Iterator[None]:
        """Exceptions of a file system become RemoteLost, except that a file does not exist, or that
        the disk of this machine is full."""
        try:
            yield
        except OptkitError:
            raise
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in _OWN_DISK
            if not writing and (full or isinstance(error, FileNotFoundError)):
                raise
            if writing and isinstance(error, PermissionError | NotImplementedError):
                self.takes = False
                raise self._lost(error, RemoteReadOnly) from None
            raise self._lost(error) from None

    def _lost(self, error: Exception, kind: type[RemoteLost] = RemoteLost) -> RemoteLost:
        """The error without the secrets in the URL, which messages of libraries may repeat."""
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"no answer in {_ANSWER_SECONDS:.0f} s"
        for secret in _secrets(self.url):
            text = text.replace(secret, "***")
        return kind(
            f"the remote does not answer, or refuses: {text}",
            where=str(self),
            hint="is it up, does it exist, and are its credentials in the environment?",
        )


def _opened(url: str) -> tuple[Any, str]:
    """The file system, and the path of the place in it."""
    if "://" not in url:
        raise UsageError(
            "it is not a URL", where="--remote", hint="e.g. s3://bucket/folder, file:///mnt/shared"
        )
    protocol, _, place = url.partition("://")
    if protocol in ("file", "local") and not place.startswith("/"):
        raise UsageError(
            f"its folder does not start with a slash, so it is in the working folder: {protocol}://",
            where="--remote",
            hint="write three slashes, as in file:///mnt/shared",
        )
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ToolchainMissing(
            "fsspec is not installed", where="--remote", hint="pip install 'optkit[remote]'"
        ) from None
    try:
        files, root = url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:  # fsspec says which library it is
        raise ToolchainMissing(
            str(error), where=f"--remote {protocol}://", hint="pip install it beside optkit"
        ) from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise UsageError(
            f"no file system is known for {protocol}://",
            where="--remote",
            hint="s3://, gs://, az://, file://, sftp://: what fsspec knows",
        ) from None
    return files, str(root).rstrip("/")


def _record(kind: str, key: str) -> str:
    return f"{kind}/{key[:2]}/{key}.json"


def _file(sha256: str) -> str:
    return f"files/{sha256[:2]}/{sha256}"


def _secrets(url: str) -> list[str]:
    """User, password and query of a URL, longest first."""
    users = re.findall(r"//([^/]*)@", url)
    query = url.partition("?")[2]
    texts = [*users, *(user.partition(":")[2] for user in users), query]
    texts += [value for _, value in parse_qsl(query)]
    parts = {part for text in texts for part in (text, unquote(text)) if part}
    return sorted(parts, key=len, reverse=True)
