"""The memory of a process and of all its descendants."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
# the kernel lists the children of each thread (CONFIG_PROC_CHILDREN): a search through all
# processes takes ten milliseconds and more on a busy machine
_LISTS_CHILDREN = (_PROC / "thread-self" / "children").exists()
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def resident(pid: int) -> int:
    """Resident bytes of the process tree; 0 if there is no such process."""
    if _LISTS_CHILDREN:
        return sum(_resident_pages(one) for one in _tree(pid)) * _PAGE
    return _resident_by_search(pid)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):  # a process or thread ends at any time
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                place = thread / "children"
                for child in place.read_bytes().split():
                    yield from _tree(int(child))


def _resident_pages(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1])
    return 0


def _resident_by_search(pid: int) -> int:
    import psutil

    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total
