"""The process tree of one process, from psutil: states of threads, CPU time, memory, disk.

When a process has ended and its parent has waited for it, the kernel adds its CPU time and bytes to
those of the parent. So the sum over the tree loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import psutil

State = Literal["running", "disk_wait", "asleep"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class _Seen:
    """One process at one moment."""

    process: psutil.Process
    status: str  # psutil's word for the state of its first thread
    cpu_seconds: float  # with the children it has waited for
    threads: int
    resident_bytes: int


@dataclass
class Tree:
    """The process `root` and all its descendants, at one moment."""

    root: int
    processes: dict[int, _Seen] = field(default_factory=dict)

    def look(self) -> bool:
        """Read the tree again, and return whether the root is still alive. If it no longer exists,
        the previous values remain."""
        try:
            root = psutil.Process(self.root)
            processes = {process.pid: _seen(process) for process in (root, *root.children(True))}
        except psutil.NoSuchProcess:
            return False
        now = {pid: seen for pid, seen in processes.items() if seen is not None}
        if self.root not in now:
            return False
        self.processes = now
        return now[self.root].status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

    @property
    def state(self) -> State:
        """The state of the whole tree: it runs if any of its threads runs."""
        states = set(self._states())
        if psutil.STATUS_RUNNING in states:
            return "running"
        return "disk_wait" if psutil.STATUS_DISK_SLEEP in states else "asleep"

    @property
    def cpu_seconds(self) -> float:
        return sum(seen.cpu_seconds for seen in self.processes.values())

    @property
    def resident_bytes(self) -> int:
        return sum(seen.resident_bytes for seen in self.processes.values())

    @property
    def disk_bytes(self) -> tuple[int, int] | None:
        """Bytes read and written so far; None if no process allows access."""
        counts = [count for seen in self.processes.values() if (count := _disk(seen.process))]
        return (sum(r for r, _ in counts), sum(w for _, w in counts)) if counts else None

    def _states(self) -> Iterator[str]:
        for pid, seen in self.processes.items():
            if seen.threads <= 1:
                yield seen.status
            else:
                yield from _thread_states(pid)


def _seen(process: psutil.Process) -> _Seen | None:
    """None if the process has ended."""
    try:
        with process.oneshot():
            cpu = process.cpu_times()
            return _Seen(
                process,
                process.status(),
                cpu.user + cpu.system + cpu.children_user + cpu.children_system,
                process.num_threads(),
                process.memory_info().rss,
            )
    except psutil.Error:
        return None


def _thread_states(pid: int) -> Iterator[str]:
    """States of all threads, read from /proc: psutil has no states of threads, and to read each
    thread as a process takes four times as long."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # the process has ended
        return
    for thread in threads:
        with suppress(OSError):
            text = (thread / "stat").read_bytes()
            letter = text[text.rindex(b")") + 2 :].split(maxsplit=1)[0].decode()  # see proc(5)
            yield _STATES.get(letter, "")


_STATES = {"R": psutil.STATUS_RUNNING, "D": psutil.STATUS_DISK_SLEEP}


def _disk(process: psutil.Process) -> tuple[int, int] | None:
    try:
        counts = process.io_counters()
    except psutil.Error:  # the process belongs to another user, or has ended
        return None
    return counts.read_bytes, counts.write_bytes
