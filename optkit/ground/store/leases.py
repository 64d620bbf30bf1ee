"""Which processes use a store: a file that a user has used since the start of the user is not
removed while the user runs.

    root/users/<pid>-<host>-<random>   one file per user; its time is the start of the user
    root/users/lock                    flock: shared to mark a use, exclusive to remove
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optkit.ground.store.disk import lives, make_folder, own_name

IN_USE_SECONDS = 3600.0
"""A file that was used within this time is not removed, whoever used it."""
_FORGOTTEN_SECONDS = 24 * 3600.0  # for a user on another machine, whose state is unknown


class Lease:
    """One user of the store in `root`. It begins with the first use, and ends with this object or
    the process."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "users"
        self._name = own_name()
        self._began = 0.0  # Unix time, by the clock of the store's disk
        self._started = 0.0  # the same by that of this machine; 0: not yet
        self._beginning = threading.Lock()

    def begin(self) -> None:
        """From now on, nothing that this user uses is removed. Raises OSError."""
        with self._beginning:
            if self._started:
                self._keep_all_after_a_jump()
                return
            make_folder(self._folder, 0o700)
            path = self._folder / self._name
            with _locked(self._folder, fcntl.LOCK_SH):
                path.touch()
            self._began, self._started = path.stat().st_mtime, time.time()
            weakref.finalize(self, _end, path, os.getpid())

    def _keep_all_after_a_jump(self) -> None:
        """If the clock went back, what is used from now on would seem older than this user: then
        the user counts as one of all time, for which nothing is removed."""
        if self._began and time.time() < self._started:
            self._began = 0.0
            with suppress(FileNotFoundError):
                os.utime(self._folder / self._name, (0, 0))

    def use(self, path: Path) -> bool:
        """Mark a file of the store as used; False if it is not there. Raises OSError."""
        self.begin()
        with _locked(self._folder, fcntl.LOCK_SH), suppress(FileNotFoundError, NotADirectoryError):
            # not every time, because a file with a new time is hashed again
            if path.stat().st_mtime < max(self._began, time.time() - IN_USE_SECONDS / 2):
                os.utime(path)
            return True
        return False

    @contextmanager
    def removing(self) -> Iterator[float | None]:
        """While the body runs, no other process can mark a use. Yields the start of the oldest
        other user of the store, or None. Raises OSError."""
        make_folder(self._folder, 0o700)
        with _locked(self._folder, fcntl.LOCK_EX):
            yield min(self._others(), default=None)

    def _others(self) -> Iterator[float]:
        for path in self._folder.iterdir():
            if path.name in ("lock", self._name):
                continue
            with suppress(FileNotFoundError):
                began = path.stat().st_mtime
                alive = lives(path.name)
                if alive is None:
                    alive = time.time() - began < _FORGOTTEN_SECONDS
                if not alive:
                    path.unlink()
                else:
                    yield began


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _end(path: Path, process: int) -> None:
    if os.getpid() == process:  # not in the copy of a forked child
        with suppress(OSError):
            path.unlink()
