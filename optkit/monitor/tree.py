"""The process tree below one process, read from /proc: states of threads, CPU time, memory, disk.

CPU time and bytes of a process that has ended are its parent's once that has waited for it, so
their sum over the tree never loses any of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

State = Literal["running", "disk_wait", "asleep"]


@dataclass(frozen=True)
class _Stat:
    """Of /proc/PID/stat, see proc(5)."""

    state: str
    parent: int
    cpu_seconds: float  # with the children it has waited for
    threads: int
    resident_bytes: int


@dataclass
class Tree:
    """The process `root` and whatever came of it, at one moment."""

    root: int
    processes: dict[int, _Stat] = field(default_factory=dict)

    def look(self) -> bool:
        """Read it anew, and tell whether the root still lives. What was read last stays when it is
        gone altogether."""
        found = {
            int(entry.name): stat
            for entry in os.scandir(_PROC)
            if entry.name.isdecimal() and (stat := _stat(_PROC / entry.name / "stat"))
        }
        below: dict[int, list[int]] = {}
        for pid, stat in found.items():
            below.setdefault(stat.parent, []).append(pid)
        if self.root not in found:
            return False
        self.processes = {}
        todo = [self.root]
        while todo:
            pid = todo.pop()
            self.processes[pid] = found[pid]
            todo += below.get(pid, [])
        return found[self.root].state not in "ZX"

    @property
    def state(self) -> State:
        """What the tree does as a whole: it runs if any thread of it does."""
        states = set(self._states())
        if "R" in states:
            return "running"
        return "disk_wait" if "D" in states else "asleep"

    @property
    def cpu_seconds(self) -> float:
        return sum(stat.cpu_seconds for stat in self.processes.values())

    @property
    def resident_bytes(self) -> int:
        return sum(stat.resident_bytes for stat in self.processes.values())

    @property
    def disk_bytes(self) -> tuple[int, int] | None:
        """Read and written so far; None where no process may be asked."""
        told = [counts for pid in self.processes if (counts := _disk(pid)) is not None]
        return (sum(r for r, _ in told), sum(w for _, w in told)) if told else None

    def _states(self) -> Iterator[str]:
        for pid, stat in self.processes.items():
            if stat.threads <= 1:
                yield stat.state
                continue
            try:
                threads = list((_PROC / str(pid) / "task").iterdir())
            except OSError:  # it has ended since
                continue
            for thread in threads:
                found = _stat(thread / "stat")
                if found is not None:
                    yield found.state


def _stat(path: Path) -> _Stat | None:
    try:
        text = path.read_bytes()
    except OSError:  # it has ended since
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before may hold anything
    return _Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        cpu_seconds=sum(int(ticks) for ticks in fields[11:15]) / _TICKS,
        threads=int(fields[17]),
        resident_bytes=int(fields[21]) * _PAGE,
    )


def _disk(pid: int) -> tuple[int, int] | None:
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:  # another user's, or it has ended
        return None
    counts = dict(line.split(": ") for line in lines)
    return int(counts["read_bytes"]), int(counts["write_bytes"])
