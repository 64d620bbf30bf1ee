"""Start a command and observe it until it ends, or observe a process that already runs.

One loop waits for signals and reads the process tree between them. It forwards signals to the
command, and the end of the command ends the wait.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from optkit.facts.errors import UsageError
from optkit.ground.devices.machine import cgroup_limits
from optkit.satellites.monitor.gpu_samples import Cards
from optkit.satellites.monitor.process_tree import STATES, State, Tree
from optkit.satellites.monitor.samples import ProcessSample

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_PAUSE_SECONDS = 0.05
_EFFORT = 20  # reading the tree takes at most 1/20 of a core
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

Heard = Callable[[ProcessSample], None]


@dataclass(frozen=True)
class WatchedProcess:
    """The samples of a command or process. exit_code: of the command, 128 + n after signal n; None
    for a process that optkit did not start. cores: how many it may use. no_gpu: why there are no
    GPU figures, or None."""

    pid: int
    samples: tuple[ProcessSample, ...]
    exit_code: int | None
    cores: int
    no_gpu: str | None


def watch_command(
    command: Sequence[str], *, interval: float, heard: Heard, quiet_stdout: bool = False
) -> WatchedProcess:
    """Run `command` with the standard streams of this process, and observe it until it ends.

    interval: seconds per sample. heard: called with each sample. quiet_stdout: redirect the stdout
    of the command to stderr.

    Raises UsageError if there is no such program.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    try:
        pid = _start(command, before, quiet_stdout)
        series = _Series(pid, interval, heard)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            received = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, series.pause)
            # a signal from the terminal (si_code > 0) reaches the command without our help
            if received and received.si_signo in _FORWARDED and received.si_code <= 0:
                os.kill(pid, received.si_signo)
            series.look()
        series.end()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return series.ended(status if status >= 0 else 128 - status)


def watch_process(
    pid: int, *, interval: float, heard: Heard, seconds: float | None = None
) -> WatchedProcess:
    """Observe a running process until it ends, until SIGINT or SIGTERM, or for `seconds`.

    Raises UsageError if there is no such process.
    """
    if not Tree(pid).look():
        raise UsageError(f"there is no process {pid}", where="--pid")
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
    stops = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        series = _Series(pid, interval, heard)
        while series.look() and time.monotonic() < deadline:
            if signal.sigtimedwait(stops, series.pause):
                break
        series.end()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return series.ended(None)


def _start(command: Sequence[str], mask: Iterable[int], quiet_stdout: bool) -> int:
    """Start the command with the signal mask and dispositions that this process received."""
    if sys.stdout is not None:  # it is closed
        sys.stdout.flush()
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)] if quiet_stdout else [],
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
        )
    except (OSError, ValueError) as error:  # the latter: an empty name
        raise UsageError(
            f"it cannot be run: {error.strerror if isinstance(error, OSError) else error}",
            where=command[0],
            hint="check the name of the program, and write the command after --, for example "
            "`optkit monitor -- python train.py`",
        ) from error


class _Series:
    """The samples of one process tree."""

    def __init__(self, pid: int, interval: float, heard: Heard) -> None:
        self._tree = Tree(pid)
        self._interval = interval
        self._heard = heard
        self._cards = Cards()
        self._cores = _cores(pid)
        self._limit = _limits(pid)[1]
        self._samples: list[ProcessSample] = []
        self._states: Counter[State] = Counter()
        self.pause = _PAUSE_SECONDS
        self._tree.look()
        self._mark()

    def look(self) -> bool:
        """Read the tree once; return whether the process is still alive."""
        started = time.monotonic()
        alive = self._tree.look()
        if alive:
            self._states[self._tree.state] += 1
        now = time.monotonic()
        self.pause = max(_PAUSE_SECONDS, _EFFORT * (now - started))
        if now - self._since >= self._interval:
            self._close()
        return alive

    def end(self) -> None:
        """Add the last sample, of the time since the previous one."""
        self._tree.look()
        self._close()

    def ended(self, exit_code: int | None) -> WatchedProcess:
        return WatchedProcess(
            self._tree.root, tuple(self._samples), exit_code, self._cores, self._cards.reason
        )

    def _mark(self) -> None:
        self._since = time.monotonic()
        self._cpu, self._disk = self._tree.cpu_seconds, self._tree.disk_bytes
        self._states.clear()

    def _close(self) -> None:
        seconds = time.monotonic() - self._since
        looks = self._states.total()
        if not looks:  # the process ended before it was read once
            return
        disk = self._tree.disk_bytes
        read, written = (
            (None, None)
            if disk is None or self._disk is None
            else (max(0, b - a) / seconds for a, b in zip(self._disk, disk, strict=True))
        )
        held = self._tree.resident_bytes
        free = held + int(psutil.virtual_memory().available)
        running, disk_wait, asleep = (self._states[state] / looks for state in STATES)
        sample = ProcessSample(
            seconds=seconds,
            running=running,
            disk_wait=disk_wait,
            asleep=asleep,
            cores=max(0.0, self._tree.cpu_seconds - self._cpu) / seconds,
            read_bytes=read,
            written_bytes=written,
            memory_bytes=held,
            memory_limit_bytes=free if self._limit is None else min(free, self._limit),
            processes=len(self._tree.processes),
            gpus=self._cards.look(),
        )
        self._samples.append(sample)
        self._heard(sample)
        self._mark()


def _cores(pid: int) -> int:
    """How many cores the process may use: its affinity, then the quota of its control group,
    rounded up."""
    allowed = len(os.sched_getaffinity(pid))
    quota = _limits(pid)[0]
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _limits(pid: int) -> tuple[float | None, int | None]:
    """(CPUs, bytes) that the control groups of the process allow; they may differ from ours."""
    return cgroup_limits(_PROC / str(pid) / "cgroup", _CGROUPS)
