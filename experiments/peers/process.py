"""One child process: how long it took, and the most memory that it and its children held."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import environments
import psutil

INTERVAL = 0.05  # seconds between two looks at the tree


@dataclass(frozen=True)
class Outcome:
    """`peak_bytes`: the largest sum of resident sets over the tree that was seen (shared pages
    count once per process), or one process's own maximum by the kernel's count if larger."""

    code: int
    seconds: float
    peak_bytes: int
    out: str
    log: str

    def answer(self) -> dict[str, Any]:
        """The last line of stdout that is JSON; {"failure": reason} where the child failed."""
        lines = [line for line in self.out.splitlines() if line.startswith("{")]
        if self.code or not lines:
            return {"failure": self.reason()}
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def reason(self) -> str:
        lines = [line.strip() for line in (self.log or self.out).splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "error" in line]
        return (named or lines or [f"exit code {self.code}"])[-1][:300]


def run(
    command: Sequence[str | Path], *, variables: dict[str, str] | None = None, limit: float = 1800
) -> Outcome:
    """Run to the end, or kill the whole tree after `limit` seconds (code -9). `variables`: of the
    environment, default: those that every tool runs with."""
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory() as folder,  # not a project's: ModelOpt runs setup here
    ):
        begun = perf_counter()
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            env=environments.variables() if variables is None else variables,
            cwd=folder,
        )
        ended = threading.Event()
        seen: list[int] = [0]
        watcher = threading.Thread(target=_watch, args=(child.pid, ended, seen, begun + limit))
        watcher.start()
        code = child.wait()
        seconds = perf_counter() - begun
        ended.set()
        watcher.join()
        texts = []
        for file in (out, log):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Outcome(code, seconds, seen[0], *texts)


def _watch(pid: int, ended: threading.Event, seen: list[int], deadline: float) -> None:
    root = psutil.Process(pid)
    while not ended.wait(INTERVAL):
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        sizes = [_resident(process.pid) for process in tree]
        seen[0] = max(seen[0], sum(now for now, _ in sizes), *(most for _, most in sizes))
        if perf_counter() > deadline:
            for process in tree:  # the root first: it must not see its children end
                process.kill()
            psutil.wait_procs(tree[1:], timeout=10)  # the root is its parent's to wait for


def _resident(pid: int) -> tuple[int, int]:
    """Bytes resident now, and at most since the process began its program; 0 once it is gone.

    Not the kernel's rusage: that one starts from the size of whoever forked it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = dict(line.split(":", 1) for line in lines)
    return _bytes(found, "VmRSS"), _bytes(found, "VmHWM")


def _bytes(status: dict[str, str], name: str) -> int:
    return int(status.get(name, "0 kB").split()[0]) * 1024
