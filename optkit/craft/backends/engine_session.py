"""A session of a TensorRT engine: a buffer on the device for each tensor, and one execution
context.

    feed ─upload→ input buffers ─execute (or replay)→ output buffers ─download→ outputs

Buffers only grow and keep their addresses, so that launches can be recorded. When the same shapes
run again, the launches are recorded once and then replayed (CUDA graphs). If they cannot be
recorded, they run one by one, and a note says so. In a loop, the buffer of an output becomes that
of the next run's input, and nothing is copied. Unverified on a card (docs/studies/gpu_hosts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from time import monotonic, perf_counter_ns
from types import MappingProxyType
from typing import Self

import numpy as np

from optkit.craft.backends.cuda import Cuda
from optkit.craft.backends.description import inspected
from optkit.craft.backends.feed_checks import check_feed, closed
from optkit.craft.backends.layer_profiler import Spent, by_layer, profiler
from optkit.craft.backends.tensorrt_objects import Context, Library, LoadedEngine, Runtime
from optkit.facts.dtypes import DTYPES
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import Impossible, InputRefused, OptkitError, WorkerFailed
from optkit.facts.measurement import Phases
from optkit.facts.tensors import Feed, TensorInfo, leading

# TensorRT's data types that a feed can have; numpy has no arrays of the others
_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        dtype.tensorrt: dtype.name
        for dtype in DTYPES.values()
        if dtype.tensorrt is not None and dtype.short not in ("fp8", "fp4", "int4")
    }
)


@dataclass
class _Buffer:
    address: int  # 0: there was no memory for it
    size: int  # bytes


@dataclass(frozen=True)
class _Launch:
    """The facts on which a recorded launch depends: the shapes of the inputs, and the addresses of
    the buffers."""

    shapes: tuple[tuple[int, ...], ...]
    addresses: tuple[int, ...]


class EngineSession:
    """A deserialized engine. `reason`: the messages that the library logged since the last call;
    `wanted`: whether launches should be recorded; `records`: whether this session records them
    (TensorRT-RTX does so by itself); `done`: called once at the end. `note`: why launches were not
    recorded."""

    def __init__(
        self,
        trt: Library,
        runtime: Runtime,
        engine: LoadedEngine,
        context: Context,
        cuda: Cuda,
        *,
        where: str,
        reason: Callable[[], str],
        wanted: bool,
        records: bool,
        done: Callable[[], None],
    ) -> None:
        self._trt, self._cuda = trt, cuda
        self._runtime, self._engine, self._context = runtime, engine, context
        self._where, self._reason, self._done = where, reason, done
        self._wanted, self._records = wanted, records
        self.note: str | None = None
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        read = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        self.inputs = tuple(self._info(name) for name in read)
        self.outputs = tuple(self._info(name) for name in names if name not in read)
        on_host = [n for n in names if engine.get_tensor_location(n) == trt.TensorLocation.HOST]
        if on_host:
            raise Impossible(
                "its values determine shapes; optkit does not support such inputs on TensorRT",
                where=f"{where}: tensor {on_host[0]!r}",
            )
        self._buffers = {name: _Buffer(cuda.allocate(0), 0) for name in names}
        self._ran: _Launch | None = None  # the last run
        self._asked: _Launch | None = None  # the last run whose launches were to be recorded
        self._recorded: tuple[_Launch, int] | None = None
        self._closed, self._lock = False, RLock()

    def run(self, feed: Feed) -> Feed:
        """Outputs by name. Raises InputRefused, with the name of the input, for a feed that does
        not fit, or whose sizes are outside the range for which the engine was built."""
        with self.alone():
            check_feed(feed, self.inputs)
            for name, array in feed.items():
                self.put(name, array)
            shapes = self.execute()
            return self.take(shapes, [info.name for info in self.outputs])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Threads run one after the other, because they share the buffers. Raises UsageError after
        `close`."""
        with self._lock:
            if self._closed:
                raise closed(self._where)
            yield

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> EngineLoop:
        """Runs in which the outputs `carried` are inputs of the next run, on the device. `room` is
        not used, because buffers grow by themselves."""
        return EngineLoop(self, carried, start)

    def put(self, name: str, array: np.ndarray) -> None:
        """Upload one input and set its shape in the engine."""
        self._cuda.enter()
        array = np.asarray(array, order="C")  # a scalar stays a scalar
        self._cuda.upload(self._room(name, array.nbytes), array)
        self.shape(name, array.shape)

    def shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Set the shape of an input in the engine. Raises InputRefused if it is outside the
        profile."""
        if self._context.set_input_shape(name, shape):
            return
        least, _, most = (tuple(s) for s in self._engine.get_tensor_profile_shape(name, 0))
        raise InputRefused(
            f"shape {shape} is outside {least} to {most}, which the engine was built for",
            where=f"input {name!r}",
        )

    def phases(self, feed: Feed) -> Phases:
        """One run whose phases are timed separately, by events in the stream. Raises the errors of
        `run`."""
        check_feed(feed, self.inputs)
        self._cuda.enter()
        begun, uploaded, enqueued, computed, downloaded = self._cuda.events(5)
        self._cuda.stamp(begun)
        for name, array in feed.items():
            self.put(name, array)
        self._cuda.stamp(uploaded)
        shapes, now = self._ready()
        self._cuda.stamp(enqueued)
        start = perf_counter_ns()
        self._enqueue(now)
        enqueue_ns = perf_counter_ns() - start
        self._cuda.stamp(computed)
        found = self._fill(shapes, [info.name for info in self.outputs])
        self._cuda.stamp(downloaded)
        self._cuda.synchronize()
        del found  # up to this point the device writes to it
        return Phases(
            upload_ms=self._cuda.elapsed_ms(begun, uploaded),
            compute_ms=self._cuda.elapsed_ms(enqueued, computed),
            download_ms=self._cuda.elapsed_ms(computed, downloaded),
            enqueue_ms=enqueue_ns / 1e6,
        )

    def layer_times(
        self, feed: Feed, products: Collection[str], seconds: float
    ) -> list[tuple[FusedLayer, float]]:
        """The engine's layers at these sizes and the median milliseconds of each, from its
        profiler. It starts after half of the seconds, when clocks have risen. Raises the errors of
        `run`, and ToolchainMissing if optkit does not understand the profile.

        Launches are not recorded during this time, because a replayed launch reports no times. It
        closes the session, because the library cannot remove a profiler from an execution context.
        """
        with self:
            check_feed(feed, self.inputs)
            for name, array in feed.items():
                self.put(name, array)
            self._ready()
            self._again(seconds / 2)
            spent = Spent()
            self._context.profiler = profiler(self._trt, spent)
            # the profiler reports at each launch, without a further call
            self._context.enqueue_emits_profile = True
            self._again(seconds / 2, spent.begin)
            listed = self._listed()
        return by_layer(listed, products, spent.medians())

    def _again(self, seconds: float, begin: Callable[[], None] = lambda: None) -> None:
        """Launch again and again, each time after the end of the launch before; once if there is no
        time."""
        ends = monotonic() + seconds
        while True:
            begin()
            self._launch()
            self._cuda.synchronize()
            if monotonic() >= ends:
                return

    def _listed(self) -> str:
        """The engine's layers at the sizes of the context."""
        return inspected(self._trt, self._engine, self._context)

    def execute(self) -> dict[str, tuple[int, ...]]:
        """Run in the stream, and return the shapes of the outputs."""
        shapes, now = self._ready()
        self._enqueue(now)
        return shapes

    def _ready(self) -> tuple[dict[str, tuple[int, ...]], _Launch]:
        """Shapes of the outputs, and the launch that computes them."""
        self._cuda.enter()
        if missing := self._context.infer_shapes():
            raise InputRefused("it has no shape yet", where=f"input {missing[0]!r}")
        shapes = {info.name: self._sized(info) for info in self.outputs}
        for name, buffer in self._buffers.items():
            if not self._context.set_tensor_address(name, buffer.address):
                raise WorkerFailed(self._reason(), verdict="crashed", where=self._where)
        told = tuple(tuple(self._context.get_tensor_shape(info.name)) for info in self.inputs)
        return shapes, _Launch(told, tuple(buffer.address for buffer in self._buffers.values()))

    def _enqueue(self, now: _Launch) -> None:
        """Launch, or replay a recorded launch."""
        if self._recorded is not None and self._recorded[0] == now:
            self._cuda.replay(self._recorded[1])
        elif self._ran != now or not self._record(now):  # the first run contains lazy work
            self._launch()
        self._ran = now

    def _record(self, now: _Launch) -> bool:
        """Record the launches and replay them. False if this is impossible; `note` then says
        why."""
        if not self._wanted or self._asked == now:
            return False
        self._asked = now
        # TensorRT-RTX 1.7 has this function; TensorRT 10.16 and 11.4 do not
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._cuda.stream):
            return self._give_up("the library says that they cannot be")
        if not self._records:
            return False  # the library records by itself
        self._forget()
        try:
            handle = self._cuda.record(self._launch)
        except WorkerFailed as error:
            return self._give_up(error.message)
        self._recorded = (now, handle)
        self._cuda.replay(handle)
        return True

    def _give_up(self, why: str) -> bool:
        """From now on, launch one by one."""
        self._wanted, self.note = False, f"launches are not recorded: {why}"
        return False

    def take(self, shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> Feed:
        """Download these outputs."""
        found = self._fill(shapes, names)
        self._cuda.synchronize()
        return found

    def fetch(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Download an input of this shape from its buffer."""
        return self.take({name: shape}, [name])[name]

    def _fill(self, shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> Feed:
        """Arrays that contain these tensors when the stream is empty."""
        dtypes = {info.name: info.dtype for info in (*self.inputs, *self.outputs)}
        found = {name: np.empty(shapes[name], dtypes[name]) for name in names}
        for name, array in found.items():
            self._cuda.download(array, self._buffers[name].address)
        return found

    def swap(self, one: str, other: str) -> None:
        """Exchange the buffers of two tensors."""
        buffers = self._buffers
        buffers[one], buffers[other] = buffers[other], buffers[one]

    def close(self) -> None:
        """Free the device's memory after the run of another thread. It may be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._cuda:  # closes it, even if something else fails
            self._cuda.enter()
            self._forget()
            self._done()
            del self._context  # each before the object that created it
            del self._engine
            del self._runtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close()
        except OptkitError:
            # otherwise it follows from an earlier error, which is the one to report
            if exc[0] is None:
                raise

    def _launch(self) -> None:
        if not self._context.execute_async_v3(self._cuda.stream):
            raise WorkerFailed(self._reason(), verdict="crashed", where=self._where)

    def _forget(self) -> None:
        if self._recorded is not None:
            self._cuda.forget(self._recorded[1])
            self._recorded = None

    def _room(self, name: str, size: int) -> int:
        """The address of a buffer with at least `size` bytes."""
        buffer = self._buffers[name]
        if buffer.size < size or not buffer.address:
            self._cuda.synchronize()  # a running launch may still read it
            # stays 0 if there is no memory
            freed, buffer.address, buffer.size = buffer.address, 0, 0
            if freed:
                self._cuda.free(freed)
            buffer.address, buffer.size = self._cuda.allocate(size), size
        return buffer.address

    def _sized(self, info: TensorInfo) -> tuple[int, ...]:
        """The shape of an output at the shapes of the inputs; its buffer is allocated."""
        shape = tuple(self._context.get_tensor_shape(info.name))
        if min(shape, default=1) < 0:
            raise Impossible(
                "its size is known only after the run, which optkit does not support",
                where=f"{self._where}: {info.name!r}",
            )
        self._room(info.name, int(np.prod(shape, dtype=np.int64)) * np.dtype(info.dtype).itemsize)
        return shape

    def _info(self, name: str) -> TensorInfo:
        kind = self._engine.get_tensor_dtype(name).name
        if kind not in _DTYPES:
            raise InputRefused(f"type {kind} is not supported", where=f"value {name!r}")
        shape = enumerate(self._engine.get_tensor_shape(name))
        dims = tuple(f"{name}.{axis}" if size < 0 else int(size) for axis, size in shape)
        return TensorInfo(name, _DTYPES[kind], dims)


class EngineLoop:
    """An engine that runs on its own outputs: `carried`, output → input of the next run."""

    def __init__(self, session: EngineSession, carried: Mapping[str, str], start: Feed) -> None:
        taken = set(carried.values())
        check_feed(start, [info for info in session.inputs if info.name in taken | start.keys()])
        self._session, self._carried = session, carried
        self._given = [info for info in session.inputs if info.name not in start]
        self._returned = [info.name for info in session.outputs if info.name not in carried]
        for name, array in start.items():
            session.put(name, array)
        self._shapes = {name: array.shape for name, array in start.items()}

    def run(self, feed: Feed) -> Feed:
        """The outputs that are not carried. Raises InputRefused, as a session does."""
        with self._session.alone():
            return self._run(feed)

    def _run(self, feed: Feed) -> Feed:
        check_feed(feed, self._given)
        for name, shape in self._shapes.items():
            self._session.shape(name, shape)
        for name, array in feed.items():
            self._session.put(name, array)
        shapes = self._session.execute()
        found = self._session.take(shapes, self._returned)
        for out, into in self._carried.items():
            self._session.swap(out, into)
        self._shapes |= {into: shapes[out] for out, into in self._carried.items()}
        return found

    @property
    def sliding(self) -> None:
        """No graph for an engine notes its window."""

    def cut(self, rows: int, axis: int) -> None:
        """Keep only the first rows; see `runtimes.Loop`. They pass through the host."""
        for into in self._carried.values():
            kept = leading(self._session.fetch(into, self._shapes[into]), rows, axis)
            self._session.put(into, kept)
            self._shapes[into] = kept.shape
