"""One recording: the first answer about each file, folder, variable and module."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from optkit.execute import reads as records
from optkit.store import digest_file, digest_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optkit.data.reads.opens import Opens

_KERNEL = ("/proc/", "/sys/", "/dev/")
_CACHE = "__pycache__"
_RACY_NS = 100_000_000
"""If a file changed this short time before it was opened, it may change again without a new time:
the kernel's clock for files ticks every 4 to 10 ms, that of some file systems every 100 ms."""

_DRAIN = 256  # actions between two checks of the kernel's reports

watching: list[Watch] = []
_busy = threading.local()  # actions of this module itself are not recorded
_stat, _lstat = os.stat, os.lstat  # the original functions, without wrappers


class Facts(NamedTuple):
    """The state of a file. Any change of the file changes it. `sha256`: only if the times of the
    file are too coarse to show a change."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    sha256: str | None = None


class Watch:
    """Collects the answers of one recording. Several threads may use it; a forked process appends
    its actions to the journal."""

    def __init__(self, roots: tuple[str, ...], ignored: tuple[str, ...], journal: Path) -> None:
        self.roots = roots
        self.search: list[list[str]] = []
        self.unseen: dict[str, None] = {}
        self.written: set[str] = set()
        self.started = time.time_ns()
        self._ignored = tuple(f"{path.rstrip(os.sep)}{os.sep}" for path in ignored)
        self._opened: dict[str, Facts] = {}
        self._asked: dict[tuple[str, str], str | None] = {}
        self._journal = journal
        self._forked = False
        self._opens: Opens | None = None
        self._count = 0

    def touch(self, path: str) -> None:
        """A file is opened for reading, or will be: record its present state."""
        if path in self._opened or path in self.written or self.ignores(path):
            return
        self._look(str(Path(path).parent))
        try:
            facts = _facts(path)
        except OSError:
            self.ask("kind", path, records.NOTHING)
            return
        if facts is not None:
            self._opened.setdefault(path, facts)
            self._tell("opened", path, facts)

    def write(self, path: str) -> None:
        """A file is written before it was read."""
        if path not in self._opened and not self.ignores(path):
            self.written.add(path)
            self._tell("written", path, None)

    def listing(self, folder: str) -> None:
        """The names in a folder are read."""
        if ("names", folder) in self._asked or self.ignores(folder):
            return
        self._look(folder)
        try:
            with unrecorded():
                names = digest_names(Path(folder))
        except OSError:
            self.ask("kind", folder, records.kind(Path(folder)))
        else:
            self.ask("names", folder, names)

    def ask(self, question: str, subject: str, answer: str | None) -> None:
        """Record the answer to another question. The first answer counts; a different later answer
        means that the subject changed during the run."""
        if question in records.OF_PATHS:
            if self.ignores(subject) or subject in self.written:
                return
            if answer == "folder" and self._above(subject):
                return  # the place of the roots does not matter
            self._look(str(Path(subject).parent))
        if self._asked.setdefault((question, subject), answer) is answer:
            self._tell(question, subject, answer)

    def has_read(self, path: str) -> bool:
        return path in self._opened

    def hear(self, opens: Opens | None) -> None:
        """Add a source of reports about files that are opened in the folders in use."""
        self._opens = opens

    def lack(self, why: str) -> None:
        """Mark the record as incomplete, for this reason."""
        self.unseen.setdefault(why)
        self._tell("unseen", why, None)

    def ignores(self, path: str) -> bool:
        """Whether a path is not recorded: files that a version covers, files of the kernel or of
        the step itself, and bytecode."""
        folder = f"{path}{os.sep}"
        return (
            folder.startswith((*self._ignored, *records.installed_folders(), *_KERNEL))
            or f"{os.sep}{_CACHE}{os.sep}" in folder
            or "\0" in path
        )

    def searches(self, folders: list[str]) -> int:
        """The index of this list of folders in which modules are searched."""
        if folders not in self.search:
            self.search.append(folders)
        return self.search.index(folders)

    def fork(self) -> None:
        self._forked = True

    def adopt_journal(self) -> None:
        """Add the actions of forked processes, as if they came after those of this process."""
        if not self._journal.exists():
            return
        for line in self._journal.read_text().splitlines():
            question, subject, answer = json.loads(line)
            if question == "opened" and subject not in self.written:
                self._opened.setdefault(subject, Facts(*answer))
            elif question == "written" and subject not in self._opened:
                self.written.add(subject)
            elif question == "unseen":
                self.unseen.setdefault(subject)
            elif question not in ("opened", "written"):
                self._asked.setdefault((question, subject), answer)

    def answers(self) -> dict[str, dict[str, str | None]]:
        """All questions with the answers that the code got; `unseen` gets what changed during the
        run."""
        answers: dict[str, dict[str, str | None]] = {question: {} for question in records.QUESTIONS}
        for path, then in sorted(self._opened.items()):
            sha256 = self._content(path, then)
            if sha256 is not None:
                answers["content"][path] = sha256
        for (question, subject), answer in sorted(self._asked.items(), key=lambda row: row[0]):
            if question == "kind" and (subject in self._opened or self._lists(subject)):
                continue  # these have more information
            if question in records.OF_PATHS and not self._still(question, subject, answer):
                self.lack(f"{subject} changed while it was read")
            answers[question][subject] = answer
        return answers

    def _lists(self, folder: str) -> bool:
        return ("names", folder) in self._asked

    def _content(self, path: str, then: Facts) -> str | None:
        """The digest of a file that has not changed. None for a temporary file of the code that no
        longer exists."""
        try:
            with unrecorded():
                sha256 = digest_file(Path(path))
            now = _facts(path)
        except OSError:
            if then.changed < self.started:
                self.lack(f"{path} was removed while it was read")
            return None
        same = now is not None and now[:5] == then[:5] and then.sha256 in (None, sha256)
        if not same:
            self.lack(f"{path} changed while it was read")
        return sha256

    def _still(self, question: str, path: str, answer: str | None) -> bool:
        """Whether the answer is still the same. Changes by the code itself do not count: the next
        run sees them from the start, so its record will differ."""
        if any(name == path or name.startswith(f"{path}{os.sep}") for name in self.written):
            return True
        with unrecorded(), suppress(OSError):
            return records.OF_PATHS[question](Path(path)) == answer
        return False

    def _above(self, folder: str) -> bool:
        return any(f"{root}{os.sep}".startswith(f"{folder.rstrip(os.sep)}{os.sep}")
                   for root in self.roots)  # fmt: skip

    def _look(self, folder: str) -> None:
        if self._opens is not None and not self._forked:
            self._opens.add(folder)
            self._count += 1
            if self._count % _DRAIN == 0:  # before the kernel's queue of 16,384 reports is full
                self._opens.drain()

    def _tell(self, question: str, subject: str, answer: str | Facts | None) -> None:
        if self._forked:
            line = json.dumps([question, subject, answer]).encode() + b"\n"
            with unrecorded(), self._journal.open("ab", buffering=0) as journal:
                journal.write(line)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Actions inside are not recorded as those of the user's code."""
    before = getattr(_busy, "busy", False)
    _busy.busy = True
    try:
        yield
    finally:
        _busy.busy = before


def is_unrecorded() -> bool:
    return bool(getattr(_busy, "busy", False))


def absolute(path: str | bytes) -> str:
    """The absolute path, without touching the disk. Touching it would open files while an opening
    is reported."""
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100


def each(act: Callable[[Watch], None]) -> None:
    """Call `act` on every recording, unless this module itself is acting."""
    if watching and not is_unrecorded():
        with unrecorded():
            for watch in watching:
                act(watch)


def _facts(path: str) -> Facts | None:
    """The state of a file; None if it is not a regular file. Raises OSError."""
    status = _stat(path)
    if not stat.S_ISREG(status.st_mode):
        return None
    facts = Facts(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )
    if time.time_ns() - status.st_ctime_ns > _RACY_NS:
        return facts
    with unrecorded():
        return facts._replace(sha256=digest_file(Path(path)))


def _forked() -> None:
    for watch in watching:
        watch.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
