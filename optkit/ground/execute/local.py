"""Runs one task in a child process with limits, and converts every failure into an error.

    parent ──task.json──▶ python -m optkit.road.worker ──result.json──▶ parent (verified)
       ◀─────────── progress pipe, log pipe ───────────┘

The child has its own session. The parent watches the memory of the whole process tree, the time and
the size of the output, and at the end kills every process that the child started. After a crash, a
hang or out-of-memory, the parent gets a WorkerFailed and continues.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optkit.facts import errors
from optkit.facts.errors import StorageError, WorkerFailed
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.execute.task import Answer, Order, Task, TaskLimits, silent
from optkit.ground.store import own_name

DONE = b"null"  # follows the result on the progress pipe
_ORDER = "task.json"
_TICK_SECONDS = 0.05
_LOG_TAIL = 64 * 1024
# Variables that a child may inherit: for finding libraries, locale and devices, but no tokens.
_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "VIRTUAL_ENV",
    "OPTKIT_CACHE",
)

WORKER = (sys.executable, "-m", "optkit.road.worker")


@dataclass
class _Watch:
    """The state that the parent records while the child runs."""

    log: bytearray
    written: int = 0
    done: bool = False
    verdict: str | None = None
    peak_bytes: int = 0

    def check(self, memory: int, limits: TaskLimits, deadline: float) -> None:
        """Set the verdict if the child exceeds a limit."""
        self.peak_bytes = max(self.peak_bytes, memory)
        if memory > limits.memory_bytes:
            self.verdict = "oom"
        elif time.monotonic() > deadline:
            self.verdict = "timeout"
        elif self.written > limits.output_bytes:
            self.verdict = "output"


def run(
    task: Task,
    limits: TaskLimits,
    progress: Progress = silent,
    command: Sequence[str] = WORKER,
    scratch_root: Path | None = None,
    unwanted: threading.Event | None = None,
) -> Mapping[str, object]:
    """Run `task` in a child; return the meta of the step.

    scratch_root: folder for the private working folder of the child, which is removed afterwards.
    unwanted: when it is set, the result is no longer needed, and KeyboardInterrupt is raised.

    Raises WorkerFailed with the verdict crashed, timeout, oom or output; StorageError if the disk
    has no space for the result; and any OptkitError of the step itself. No process of the task
    outlives the call.
    """
    if unwanted is not None and unwanted.is_set():
        raise KeyboardInterrupt
    child = Child(command, scratch_root)
    try:
        return child.perform(task, limits, progress, unwanted)
    finally:
        child.end()


class Child:
    """A worker process, started by its first task. If `stays` is set, it takes another task after a
    task that succeeded."""

    def __init__(
        self,
        command: Sequence[str] = WORKER,
        scratch_root: Path | None = None,
        *,
        stays: bool = False,
    ) -> None:
        self._command = command
        self._stdin = subprocess.PIPE if stays else subprocess.DEVNULL
        # with this name, a later `cache gc` recognises an abandoned folder
        self._scratch = (scratch_root or Path(tempfile.gettempdir())) / own_name()
        self._scratch.mkdir(parents=True, mode=0o700)
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes = (-1, -1)  # the parent's ends of log and progress
        self._progress = -1  # the child's end of the progress pipe, by its number in the child

    def perform(
        self,
        task: Task,
        limits: TaskLimits,
        progress: Progress,
        unwanted: threading.Event | None = None,
    ) -> Mapping[str, object]:
        """The meta of the step. Raises the errors of `run`; after an error the child cannot be used
        again."""
        order = Order(task, self._scratch / "result.json", self._progress)
        order.result.unlink(missing_ok=True)
        if self._process is None:
            self._start(order)
        else:
            self._send(order)
        assert self._process is not None
        watch = _Watch(bytearray())
        _supervise(self._process, limits, progress, self._pipes, watch, unwanted)
        if watch.verdict:
            self._kill()
        return _verdict(order, self._process, limits, watch)

    @property
    def resident(self) -> int:
        """The resident bytes of the child; 0 if it has ended."""
        alive = self._process is not None and self._process.poll() is None
        return resident(self._process.pid) if alive and self._process is not None else 0

    def end(self) -> None:
        """Kill all its processes and remove its folder."""
        self._kill()
        for fd in self._pipes:
            if fd >= 0:
                os.close(fd)
        self._pipes = (-1, -1)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, order: Order) -> None:
        read_log, write_log = os.pipe()
        read_progress, write_progress = os.pipe()
        self._pipes, self._progress = (read_log, read_progress), write_progress
        try:
            self._process = spawn(
                replace(order, progress=write_progress),
                self._command,
                self._scratch,
                log=write_log,
                fds=(write_progress,),
                stdin=self._stdin,
            )
        finally:
            os.close(write_log)
            os.close(write_progress)

    def _send(self, order: Order) -> None:
        file = self._scratch / _ORDER
        order.write(file)
        assert self._process is not None and self._process.stdin is not None
        # it has ended, and the parent notices this at once
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{file}\n".encode())
            self._process.stdin.flush()

    def _kill(self) -> None:
        if self._process is not None:
            end(self._process, self._scratch.name)
            if self._process.stdin is not None:
                self._process.stdin.close()


def spawn(
    order: Order,
    command: Sequence[str],
    scratch: Path,
    *,
    log: int,
    fds: tuple[int, ...],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a worker on `order` in a new empty folder, with a minimal environment. It reads the
    paths of further tasks from its `stdin`."""
    file, work = scratch / _ORDER, scratch / "work"
    work.mkdir()
    order.write(file)
    variables = {name: os.environ[name] for name in order.task.variables if name in os.environ} | {
        "TMPDIR": str(work),
        "OPTKIT_PARENT": str(os.getpid()),
        "OPTKIT_TASK": scratch.name,  # the mark by which all descendants are found
    }
    return subprocess.Popen(
        [*command, str(file)],
        stdin=stdin,
        stdout=log,
        stderr=log,
        cwd=work,
        env=environment() | variables,
        pass_fds=fds,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    """The environment variables of a worker, without those of its task."""
    return {k: os.environ[k] for k in _ENVIRONMENT if k in os.environ} | {
        "PYTHONPATH": os.pathsep.join(_import_path()),
        "PYTHONHASHSEED": "0",  # the order of sets must not change a graph
        # numpy's BLAS threads spin while they wait: on a busy machine this is many times slower
        # than one thread. They also change the order of sums. Code that needs threads starts its
        # threads itself.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }


def _import_path() -> list[str]:
    """The import path with which the child finds this optkit, and the folders of PYTHONPATH, from
    any folder."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = str(Path(__file__).resolve().parents[3])
    return list(dict.fromkeys([here, *(str(Path(part).absolute()) for part in given if part)]))


def _supervise(
    child: subprocess.Popen[bytes],
    limits: TaskLimits,
    progress: Progress,
    pipes: tuple[int, int],
    watch: _Watch,
    unwanted: threading.Event | None,
) -> None:
    deadline = time.monotonic() + limits.seconds
    pending = bytearray()
    with selectors.DefaultSelector() as selector:
        for fd in pipes:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            for key, _ in selector.select(0 if ended else _TICK_SECONDS):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                elif key.fd == pipes[0]:
                    watch.written += len(data)
                    watch.log = (watch.log + data)[-_LOG_TAIL:]
                else:
                    pending = _report(pending + data, progress, watch)
            if ended or (watch.done and child.stdin is not None):
                return
            if unwanted is not None and unwanted.is_set():
                raise KeyboardInterrupt
            watch.check(resident(child.pid), limits, deadline)
            if watch.verdict:
                return


def _report(lines: bytearray, progress: Progress, watch: _Watch) -> bytearray:
    *whole, rest = lines.split(b"\n")
    for line in whole:
        watch.done |= line == DONE
        with contextlib.suppress(ValueError, TypeError):
            what, fraction = json.loads(line)
            progress(str(what), min(1.0, max(0.0, float(fraction))))
    return bytearray(rest[-4096:])


def trim() -> None:
    """Free unused memory of this process: garbage, and free pages of the heap."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the session of the child, and every process that inherited its mark, even if it left the
    session or lost its parent. Wait until they have ended, for two seconds at most."""
    import psutil

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("OPTKIT_TASK") == mark:
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=2)


def _verdict(
    order: Order, child: subprocess.Popen[bytes], limits: TaskLimits, watch: _Watch
) -> Mapping[str, object]:
    step, log = order.task.step, watch.log.decode("utf-8", "replace")
    if watch.verdict == "oom":
        raise WorkerFailed(
            f"step {step!r} needed more than {limits.memory_bytes / 2**20:.0f} MiB of memory",
            verdict="oom",
            log=log,
            hint=f"it held {watch.peak_bytes / 2**20:.0f} MiB when it was stopped, and needs more: "
            "set --memory well above that; a step that runs the model needs less with smaller "
            "batches",
        )
    if watch.verdict == "timeout":
        raise WorkerFailed(
            f"step {step!r} ran longer than {limits.seconds:.0f} s and was stopped",
            verdict="timeout",
            log=log,
            hint="raise --timeout if the work is really that long",
        )
    if watch.verdict == "output":
        raise WorkerFailed(
            f"step {step!r} wrote more than {limits.output_bytes / 2**20:.0f} MiB of log",
            verdict="output",
            log=log,
            hint="see the end of the log; the model or a library may print without end",
        )
    answer = Answer.read(order.result)
    if answer.error is not None:
        raise errors.from_json(answer.error)
    # None: the worker waits for another task
    if child.returncode in (None, 0) and answer.meta is not None:
        return answer.meta
    if child.returncode == os.EX_IOERR:
        reason = log.rstrip().rpartition("\n")[2]  # the last output of the worker
        raise StorageError(
            f"the result of step {step!r} could not be written: {reason}",
            where=str(order.result.parent),
            hint="check the disk (`optkit cache gc` frees some space), then run the same command "
            "again",
        )
    raise WorkerFailed(
        f"step {step!r} {_how(child.returncode)}",
        verdict="crashed",
        log=log,
        hint="the last lines of its log follow; run again with --verbose for all of it",
    )


def _how(returncode: int) -> str:
    if returncode == 0:
        return "ended without a valid result"
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        note = " (perhaps by the kernel's out-of-memory killer)" if returncode == -9 else ""
        return f"was killed by {name}{note}"
    return f"exited with status {returncode}"
