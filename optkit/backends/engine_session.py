"""A TensorRT engine that runs: a buffer on the device for each tensor, one execution context.

    feed ─upload→ input buffers ─execute (or replay)→ output buffers ─download→ outputs

Buffers only grow and keep their place, so that launches can be recorded: what ran with the same
shapes before is recorded once and replayed from then on (CUDA graphs); where it cannot be, launches
stay single and a note says so. In a loop an output's buffer becomes the input's of the next run,
and nothing is copied. Unverified on a card (docs/targets.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from types import MappingProxyType
from typing import Self

import numpy as np

from optkit.backends.cuda import Cuda
from optkit.backends.description import inspected
from optkit.backends.layer_times import Spent, by_layer, profiler
from optkit.backends.ort_session import check_feed
from optkit.backends.tensorrt_objects import Context, Library, LoadedEngine, Runtime
from optkit.dtypes import DTYPES
from optkit.engines import FusedLayer
from optkit.errors import Impossible, InputRefused, OptkitError, WorkerFailed
from optkit.runtimes import Phases
from optkit.tensors import Feed, TensorInfo

# TensorRT's data types that a feed can hold: the others are no arrays of numpy
_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        dtype.tensorrt: dtype.name
        for dtype in DTYPES.values()
        if dtype.tensorrt is not None and dtype.short not in ("fp8", "fp4", "int4")
    }
)


@dataclass
class _Buffer:
    address: int  # 0: none, since there was no memory for it
    size: int  # bytes


@dataclass(frozen=True)
class _Launch:
    """All that a recorded launch rests on: the inputs' shapes, and the buffers' addresses."""

    shapes: tuple[tuple[int, ...], ...]
    addresses: tuple[int, ...]


class EngineSession:
    """A deserialized engine. `reason`: what the library logged since it was last asked; `wanted`:
    launches are to be recorded; `records`: that is done here (TensorRT-RTX does so by itself);
    `done`: called once at the end. `note`: what of that could not be done."""

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
        self._asked: _Launch | None = None  # the last run that was to be recorded
        self._recorded: tuple[_Launch, int] | None = None
        self._closed = False

    def run(self, feed: Feed) -> Feed:
        """Outputs by name. Raises InputRefused, naming the input, for a feed that does not fit or
        lies outside the sizes that the engine was built for."""
        check_feed(feed, self.inputs)
        for name, array in feed.items():
            self.put(name, array)
        shapes = self.execute()
        return self.take(shapes, [info.name for info in self.outputs])

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> EngineLoop:
        """Runs in which the outputs `carried` come back as inputs, on the device. `room`: buffers
        grow by themselves."""
        return EngineLoop(self, carried, start)

    def put(self, name: str, array: np.ndarray) -> None:
        """Upload one input and tell the engine its shape."""
        self._cuda.enter()
        array = np.asarray(array, order="C")  # a scalar stays one
        self._cuda.upload(self._room(name, array.nbytes), array)
        self.shape(name, array.shape)

    def shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Tell the engine the shape of an input. Raises InputRefused outside the profile."""
        if self._context.set_input_shape(name, shape):
            return
        least, _, most = (tuple(s) for s in self._engine.get_tensor_profile_shape(name, 0))
        raise InputRefused(
            f"shape {shape} is outside {least} to {most}, which the engine was built for",
            where=f"input {name!r}",
        )

    def phases(self, feed: Feed) -> Phases:
        """One run with its phases timed apart, by events in the stream. Raises as `run` does."""
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
        del found  # until here the device writes to it
        return Phases(
            upload_ms=self._cuda.elapsed_ms(begun, uploaded),
            compute_ms=self._cuda.elapsed_ms(enqueued, computed),
            download_ms=self._cuda.elapsed_ms(computed, downloaded),
            enqueue_ms=enqueue_ns / 1e6,
        )

    def layer_times(
        self, feed: Feed, products: Collection[str], seconds: float
    ) -> list[tuple[FusedLayer, float]]:
        """The engine's layers at these sizes and the median milliseconds of each, as its own
        profiler tells them; half of the seconds go by before it is asked, until clocks have risen.
        Raises as `run` does, and ToolchainMissing where what is told is not understood.

        Launches are not recorded meanwhile: one that is replayed tells nothing. Closes the session:
        the library takes no profiler off an execution context again.
        """
        with self:
            check_feed(feed, self.inputs)
            for name, array in feed.items():
                self.put(name, array)
            self._ready()
            self._again(seconds / 2)
            spent = Spent()
            self._context.profiler = profiler(self._trt, spent)
            self._context.enqueue_emits_profile = True  # at each launch, not when asked for
            self._again(seconds / 2, spent.begin)
            listed = self._listed()
        return by_layer(listed, products, spent.medians())

    def _again(self, seconds: float, begin: Callable[[], None] = lambda: None) -> None:
        """Launch again and again, each when the one before is done; once where there is no time."""
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
        """Run in the stream; the shapes of the outputs."""
        shapes, now = self._ready()
        self._enqueue(now)
        return shapes

    def _ready(self) -> tuple[dict[str, tuple[int, ...]], _Launch]:
        """Shapes of the outputs, and the launch that gives them."""
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
        """Launch, or replay what ran so before."""
        if self._recorded is not None and self._recorded[0] == now:
            self._cuda.replay(self._recorded[1])
        elif self._ran != now or not self._record(now):  # lazy work is done in the first run
            self._launch()
        self._ran = now

    def _record(self, now: _Launch) -> bool:
        """Record the launches and replay them; False where they cannot be, which `note` tells."""
        if not self._wanted or self._asked == now:
            return False
        self._asked = now
        # TensorRT-RTX 1.7 can be asked; TensorRT 10.16 and 11.4 have no such function
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._cuda.stream):
            return self._give_up("the library says that they cannot be")
        if not self._records:
            return False  # the library does it
        self._forget()
        try:
            handle = self._cuda.record(self._launch)
        except WorkerFailed as error:
            return self._give_up(error.message)
        self._recorded = (now, handle)
        self._cuda.replay(handle)
        return True

    def _give_up(self, why: str) -> bool:
        """Launch one by one from now on."""
        self._wanted, self.note = False, f"launches are not recorded: {why}"
        return False

    def take(self, shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> Feed:
        """Download these outputs."""
        found = self._fill(shapes, names)
        self._cuda.synchronize()
        return found

    def _fill(self, shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> Feed:
        """Arrays that hold these outputs once the stream is empty."""
        dtypes = {info.name: info.dtype for info in self.outputs}
        found = {name: np.empty(shapes[name], dtypes[name]) for name in names}
        for name, array in found.items():
            self._cuda.download(array, self._buffers[name].address)
        return found

    def swap(self, one: str, other: str) -> None:
        """Exchange the buffers of two tensors."""
        buffers = self._buffers
        buffers[one], buffers[other] = buffers[other], buffers[one]

    def close(self) -> None:
        """Free the device's memory. May be called twice."""
        if self._closed:
            return
        self._closed = True
        with self._cuda:  # closes it, whatever of the rest fails
            self._cuda.enter()
            self._forget()
            self._done()
            del self._context  # each before what made it
            del self._engine
            del self._runtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close()
        except OptkitError:
            if exc[0] is None:  # else it follows from what failed before, which has to be told
                raise

    def _launch(self) -> None:
        if not self._context.execute_async_v3(self._cuda.stream):
            raise WorkerFailed(self._reason(), verdict="crashed", where=self._where)

    def _forget(self) -> None:
        if self._recorded is not None:
            self._cuda.forget(self._recorded[1])
            self._recorded = None

    def _room(self, name: str, size: int) -> int:
        """The address of a buffer of at least `size` bytes."""
        buffer = self._buffers[name]
        if buffer.size < size or not buffer.address:
            self._cuda.synchronize()  # what still runs may read it
            freed, buffer.address, buffer.size = buffer.address, 0, 0  # stays so without memory
            if freed:
                self._cuda.free(freed)
            buffer.address, buffer.size = self._cuda.allocate(size), size
        return buffer.address

    def _sized(self, info: TensorInfo) -> tuple[int, ...]:
        """The shape of an output at the inputs' shapes, with room for it."""
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
    """An engine run on its own outputs: `carried`, output → input of the next run."""

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
