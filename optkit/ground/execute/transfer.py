"""Transfers files and progress between the driver of a cluster and its nodes.

    shared folder   the driver's store, which all nodes see under the same path
    remote          each node has its own store, and files are exchanged by their digests

Each way has two ends: `Transfer` is the driver's end, which packs a task and takes over its result;
`Ground` is the node's end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from optkit.facts.errors import OptkitError, StorageError, ToolchainMissing
from optkit.ground.execute.step import Progress
from optkit.ground.store import (
    CACHE_OPTION,
    Remote,
    RemoteLost,
    Store,
    default_root,
    storage_errors,
)

_TOLD_SECONDS = 0.2
_POSTED_SECONDS = 2.0  # the shortest time between two messages through a remote
_LOOK_SECONDS = 0.2
# the longest time until files of another node are visible in the shared folder
_SEEN_SECONDS = 30.0
_CONNECTS = 3
_UNITS = ("steps", "objects")


class Unfit(Exception):
    """A node can do no task of this run; the message says why."""


class Absent(Exception):
    """A node lacks files of the project; the message names them."""


@dataclass(frozen=True)
class Sent:
    """The files that a node gets through a remote. `url`: that of the remote; `root`: the folder of
    the driver's store; `units`: path on the driver → its files (relative name → sha256)."""

    url: str
    root: str
    units: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class RemoteCall:
    """The argument of a function on a node. `body`: JSON for the function; `needs`: the paths that
    it reads; `out`: the folder for its files; `store`: the driver's store, if the function uses
    it."""

    body: object
    needs: tuple[str, ...]
    out: str
    store: str = ""
    remote: Sent | None = None


Files = Mapping[str, int | str]
"""Relative name → size of a file in a shared folder, or sha256 of one on a remote."""


class Transfer(Protocol):
    """The driver's end. `attempt`: a folder with a new name for each attempt at a task."""

    def packed(self, argument: RemoteCall, attempt: Path) -> RemoteCall:
        """The argument with everything that a node needs."""

    def hear(self, attempt: Path, heard: Progress) -> None: ...

    def adopt(self, attempt: Path, files: Files, out: Path) -> None:
        """Move the files that a node wrote into the folder `out`."""

    def doubt(self, lacking: str) -> None:
        """A node could not get this file. The next attempt uploads it again."""

    def check(self) -> None:
        """Raises RemoteLost if the remote fails here too, so that the node is not the cause."""

    def lose(self, error: RemoteLost) -> None: ...

    def remove(self, attempt: Path) -> None: ...


class Ground(Protocol):
    """The node's end. `out`: the folder for the files that the driver gets."""

    out: Path

    @property
    def store(self) -> Store:
        """The store that the node uses: that of the driver, or a separate one."""

    def place(self, path: str) -> str:
        """The path on this node of a path on the driver."""

    def tell(self, what: str, fraction: float) -> None: ...

    def files(self) -> Files:
        """The files in `out`, with the facts that `adopt` of the driver needs."""


Call = Callable[[RemoteCall, Ground], object]
"""A function that a node may call; it returns JSON."""


class SharedFolder:
    """A node writes into a folder next to that of the task."""

    def packed(self, argument: RemoteCall, attempt: Path) -> RemoteCall:
        return replace(argument, out=str(attempt))

    def hear(self, attempt: Path, heard: Progress) -> None:
        with contextlib.suppress(OSError, ValueError):
            _pass_on(json.loads(_progress_file(attempt).read_text()), heard)

    def adopt(self, attempt: Path, files: Files, out: Path) -> None:
        """Raises StorageError if the files do not become visible."""
        deadline = time.monotonic() + _SEEN_SECONDS
        for name, size in files.items():
            path = attempt / name
            while not (path.is_file() and path.stat().st_size == size):
                if time.monotonic() > deadline:
                    raise StorageError(
                        "a node wrote it, but it is not visible here",
                        where=str(path),
                        hint="--cache must be a folder that all nodes of the cluster share, or "
                        "name a place where they exchange files: --remote URL",
                    )
                time.sleep(_LOOK_SECONDS)
        for path in list(attempt.iterdir()) if files else []:
            path.rename(out / path.name)

    def doubt(self, lacking: str) -> None: ...

    def check(self) -> None: ...

    def lose(self, error: RemoteLost) -> None: ...

    def remove(self, attempt: Path) -> None:
        _progress_file(attempt).unlink(missing_ok=True)
        shutil.rmtree(attempt, ignore_errors=True)


class ThroughRemote:
    """Exchange through the remote of `store`. If the remote is lost, the methods that need it raise
    RemoteLost."""

    def __init__(self, store: Store) -> None:
        self._store, self._sharing = store, store.sharing
        self._listening: dict[str, _Aside] = {}

    def packed(self, argument: RemoteCall, attempt: Path) -> RemoteCall:
        units = {self._unit(Path(path)) for path in argument.needs}
        sent = {str(unit): self._sharing.send(unit) for unit in sorted(units)}
        remote = Sent(self._remote().url, str(self._store.root), sent)
        return replace(argument, out=str(attempt), remote=remote)

    def hear(self, attempt: Path, heard: Progress) -> None:
        aside = self._listening.setdefault(attempt.name, _Aside())
        aside.run(lambda: self._remote().told(attempt.name))
        _pass_on(aside.result, heard)

    def adopt(self, attempt: Path, files: Files, out: Path) -> None:
        self._sharing.bring({name: str(sha256) for name, sha256 in files.items()}, out)

    def doubt(self, lacking: str) -> None:
        self._remote().doubt_file(lacking)

    def check(self) -> None:
        self._remote().check()

    def lose(self, error: RemoteLost) -> None:
        self._sharing.lose(error)

    def remove(self, attempt: Path) -> None:
        self._listening.pop(attempt.name, None)

    def _remote(self) -> Remote:
        return self._sharing.reached()

    def _unit(self, path: Path) -> Path:
        """The published folder or file that contains a path. A graph needs the whole folder,
        because its data is next to it."""
        root = self._store.root
        parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
        return root.joinpath(*parts[:3]) if parts and parts[0] in _UNITS else path


@contextmanager
def ground(argument: RemoteCall) -> Iterator[Ground]:
    """Runs on the node: the node's end for what a `Transfer` packed. Raises Unfit, StorageError."""
    if argument.remote is None:
        yield _Shared(argument)
        return
    try:
        remote = _connected(argument.remote.url)
    except ToolchainMissing as error:
        raise Unfit(f"{error.line} ({error.hint})") from None
    except RemoteLost as error:
        raise Unfit(error.line) from None
    store = Store(default_root().absolute(), remote)
    with storage_errors(store.root, CACHE_OPTION), store.scratch() as folder:
        apart = _Apart(argument, argument.remote, store, folder)
        try:
            yield apart
        finally:
            apart.close()


class _Shared:
    """The node uses the driver's store."""

    def __init__(self, argument: RemoteCall) -> None:
        self.out = Path(argument.out)
        self._store = argument.store
        self._at = 0.0
        if not self.out.parent.is_dir():
            raise Unfit(f"the store does not exist: {self.out.parent}")
        for path in argument.needs:
            if not Path(path).exists():
                raise Unfit(f"the node sees another store: {path}")

    @property
    def store(self) -> Store:
        return Store(Path(self._store))

    def place(self, path: str) -> str:
        return path

    def tell(self, what: str, fraction: float) -> None:
        if time.monotonic() - self._at > _TOLD_SECONDS:
            self._at = time.monotonic()
            with contextlib.suppress(OSError):
                _progress_file(self.out).write_text(json.dumps([what, fraction]))

    def files(self) -> Files:
        return {
            path.relative_to(self.out).as_posix(): path.stat().st_size
            for path in sorted(self.out.rglob("*"))
            if path.is_file()
        }


class _Apart:
    """The node has a separate store, and a private folder with the files of the task."""

    def __init__(self, argument: RemoteCall, sent: Sent, store: Store, folder: Path) -> None:
        self.out = folder / "out"
        self._store = store
        self._remote = store.sharing.reached()
        self._sent, self._root = sent.units, Path(sent.root)
        self._name = Path(argument.out).name
        self._folder = folder
        self._aside = _Aside()

    @property
    def store(self) -> Store:
        return self._store

    def place(self, path: str) -> str:
        for number, (unit, files) in enumerate(self._sent.items()):
            if Path(path).is_relative_to(unit):
                folder = self._folder / str(number)
                if not folder.exists():
                    folder.mkdir()
                    self._store.sharing.bring(files, folder)
                return str(folder / Path(path).relative_to(Path(unit).parent))
        if Path(path).is_relative_to(self._root):
            return str(self._store.root / Path(path).relative_to(self._root))
        return path

    def tell(self, what: str, fraction: float) -> None:
        self._aside.run(lambda: self._remote.tell(self._name, [what, fraction]))

    def files(self) -> Files:
        sent = self._store.sharing.send(self.out)
        return {name.partition("/")[2]: sha256 for name, sha256 in sent.items()}

    def close(self) -> None:
        if self._aside.ran():
            with contextlib.suppress(OptkitError):
                self._remote.forget(self._name)


class _Aside:
    """Runs calls in a thread, one at a time and with a pause between two. It drops calls during
    this time, and ignores errors: the calls transfer progress, and nobody waits for it."""

    def __init__(self) -> None:
        self.result: object = None  # the result of the last call
        self._at = time.monotonic()
        self._thread: threading.Thread | None = None

    def run(self, what: Callable[[], object]) -> None:
        busy = self._thread is not None and self._thread.is_alive()
        if busy or time.monotonic() - self._at < _POSTED_SECONDS:
            return
        self._at = time.monotonic()
        self._thread = threading.Thread(target=self._do, args=(what,), daemon=True)
        self._thread.start()

    def ran(self) -> bool:
        """Whether there was any call; waits until it has ended."""
        if self._thread is not None:
            self._thread.join()
        return self._thread is not None

    def _do(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(OptkitError):
            self.result = what()


@functools.lru_cache(maxsize=1)
def _connected(url: str) -> Remote:
    """The remote at this URL. Raises RemoteLost after several attempts."""
    for _ in range(_CONNECTS - 1):
        with contextlib.suppress(RemoteLost):
            return Remote(url)
        time.sleep(_POSTED_SECONDS)
    return Remote(url)


def _pass_on(told: object, heard: Progress) -> None:
    """Forward a message of `Ground.tell`, if it has the right form."""
    match told:
        case [str(what), int() | float() as fraction]:
            heard(what, float(fraction))


def _progress_file(attempt: Path) -> Path:
    return attempt.with_name(f"{attempt.name}.progress")
