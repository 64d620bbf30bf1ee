"""Transfers files between the folder of a store and a remote, by their digests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from optkit.facts.errors import IntegrityError
from optkit.ground.store.digests import digest_once
from optkit.ground.store.disk import scratch
from optkit.ground.store.entry import check_files
from optkit.ground.store.leases import Lease
from optkit.ground.store.remote import DamagedFile, Remote, RemoteLost, RemoteReadOnly

T = TypeVar("T")


class Sharing:
    """The connection of a store to its remote. If the remote is lost, the store continues without
    it, and one of `warnings` says so."""

    def __init__(self, root: Path, lease: Lease, remote: Remote | None) -> None:
        self.remote = remote
        self.warnings: list[str] = []
        self._only_read = False
        self._root, self._lease = root, lease
        self._sent: dict[str, Path] = {}  # by digest

    def ask(self, what: Callable[[Remote], T]) -> T | None:
        """The answer of the remote; None without a remote, or if it is lost."""
        try:
            return None if self.remote is None else what(self.remote)
        except RemoteLost as error:
            self.lose(error)
            return None

    def reached(self) -> Remote:
        """The remote. Raises RemoteLost if it was lost before."""
        if self.remote is None:
            raise RemoteLost("the remote was given up")
        return self.remote

    def lose(self, error: RemoteLost) -> None:
        """Continue without the remote. If it only refuses writes, continue without writing to
        it."""
        only_read = isinstance(error, RemoteReadOnly)
        if self.remote is None or (only_read and self._only_read):
            return  # a warning was given
        self._only_read = only_read
        if not only_read:
            self.remote = None
        how = "only reading from it" if only_read else "going on without it"
        self.warnings.append(f"{error}; {how}")

    def send(self, path: Path) -> dict[str, str]:
        """Upload a file, or the files of a folder: relative name → sha256. Raises RemoteLost."""
        remote, digests = self.reached(), {}
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                sha256 = digest_once(file)
                remote.put(file, sha256)
                self._sent[sha256] = file
                digests[file.relative_to(path.parent).as_posix()] = sha256
        return digests

    def bring(self, files: Mapping[str, str], folder: Path) -> None:
        """Bring files of the remote (relative name → sha256) into a folder, read-only: as links to
        the copies in the store, which are downloaded once. Raises RemoteLost, DamagedFile."""
        remote = self.reached()
        try:
            check_files(files)
        except IntegrityError as error:
            raise DamagedFile(error.message) from None
        for name, sha256 in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source = self._object(remote, sha256)
            try:
                target.hardlink_to(source)
            except OSError:  # a disk without links
                shutil.copy(source, target)

    def _object(self, remote: Remote, sha256: str) -> Path:
        """The copy of a file of the remote in the store."""
        sent = self._sent.get(sha256)
        if sent is not None and sent.is_file() and digest_once(sent) == sha256:
            return sent
        place = self._root / "objects" / sha256[:2] / sha256
        if self._lease.use(place) and digest_once(place) == sha256:
            return place
        with scratch(self._root) as folder:
            remote.fetch(sha256, folder / sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            (folder / sha256).replace(place)
        return place
