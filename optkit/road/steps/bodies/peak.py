from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from optkit.craft.backends.cuda import Cuda
from optkit.craft.benchmarking import machine_state
from optkit.facts.measurement import Conditions, GpuConditions
from optkit.facts.tensors import Feed, narrowed
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session, simulator
from optkit.road.steps.bodies.sessions import cpu, engine
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.peak import InProcess, MeasurePeak, PeakMemory

_RUNS = 3
_LOOK_SECONDS = 1e-3


def run(step: MeasurePeak, out: Path, progress: Progress) -> PeakMemory:
    feed, running = Spool(step.samples.path).feed(step.batch), step.running
    if isinstance(running, InProcess):
        assert step.graph is not None
        return _in_process(step.graph.path / GRAPH, running.threads, feed, progress)
    return on_device(lambda: engine(running, "engine", step.engine, step.kept), feed, progress)


def _in_process(model: Path, threads: int | None, feed: Feed, progress: Progress) -> PeakMemory:
    """Resident memory that loading and running a graph adds to this process and its libraries.

    The kernel keeps the high-water mark (VmHWM, proc_pid_status(5)), so no short peak is missed.
    Before the graph is loaded, freed memory is returned to the system, and the mark is reset to the
    resident memory. Otherwise memory of earlier steps in this process would distort the figure.
    """
    simulator().check()  # loads the library, which does not count as memory of the graph

    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    # if this is not permitted, an earlier peak counts, and the figure is too high
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM = VmRSS: proc_pid_clear_refs(5)
    before = _status("VmRSS")
    with cpu(model, threads=threads) as session:
        _run(session, feed, progress)
    return PeakMemory(bytes=_status("VmHWM") - before)


def on_device(opened: Callable[[], Session], feed: Feed, progress: Progress) -> PeakMemory:
    """Memory of the GPU that opening and running an engine adds to a process with only a CUDA
    context.

    The driver reports the free memory of the whole device (cuMemGetInfo). Other processes on the
    device therefore make the figure uncertain, and it gets a mark. The memory is read every
    millisecond, so memory that is allocated and freed within a millisecond is missed. Unverified on
    a card.
    """
    with machine_state.watched(gpu=True) as watch, Cuda() as cuda:
        before = cuda.free_bytes()

        def free() -> int:
            cuda.enter()
            return cuda.free_bytes()

        with _looking(free) as left, opened() as session:
            _run(session, feed, progress)
            left.append(free())
    gpu = watch.conditions.gpu
    others = Conditions(gpu=GpuConditions(others=gpu.others if gpu is not None else None))
    return PeakMemory(bytes=before - min(left), marks=tuple(machine_state.judge(others)))


@contextmanager
def _looking(look: Callable[[], int]) -> Iterator[list[int]]:
    """The results of calling `look` every millisecond, in a thread, until the block ends."""
    seen: list[int] = []
    done = Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            seen.append(look())

    thread = Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _run(session: Session, feed: Feed, progress: Progress) -> None:
    feed = narrowed(feed, session.inputs)
    for done in range(_RUNS):
        session.run(feed)
        progress("running", (done + 1) / _RUNS)


def _status(field: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024
