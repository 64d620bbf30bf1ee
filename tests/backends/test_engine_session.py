"""Engines that run: over a driver and a library of a few lines, whose memory is checked. A real GPU
is asked by eval/gpu/check.py."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.backends import cuda
from optkit.backends.build_log import Record
from optkit.backends.kept import Kept
from optkit.backends.tensorrt import TensorRT
from optkit.backends.tensorrt_rtx import TensorRTRTX
from optkit.errors import InputRefused, ToolchainMissing, WorkerFailed
from optkit.measurement import Latency
from optkit.runtime import Feed, Phased, Recurrent, TensorInfo
from optkit.steps import measuring
from optkit.target import Gpu, target


class Driver:
    """libcuda: device memory is host memory, in blocks that every access must stay inside. What is
    put into the stream while it captures runs at a launch."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.held: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.launches = 0
        self.limit = 1 << 20
        self.now = 0.0  # ms, moved by copies and kernels
        self.events: dict[int, float] = {}

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        return self.give(out, 0)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"NVIDIA L4"
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        return self.give(out, 23 * 10**9)

    def cuDriverGetVersion(self, out: Any) -> int:
        return self.give(out, 13000)

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:
        return self.give(out, {75: 8, 76: 9}[attribute])

    def cuDevicePrimaryCtxRetain(self, out: Any, device: Any) -> int:
        return self.give(out, 1)

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0

    def cuStreamCreate(self, out: Any, flags: int) -> int:
        return self.give(out, 77)

    def cuMemAlloc_v2(self, out: Any, size: Any) -> int:
        if size.value > self.limit:
            return 2
        block = ctypes.create_string_buffer(size.value)
        self.blocks[ctypes.addressof(block)] = block
        return self.give(out, ctypes.addressof(block))

    def cuMemFree_v2(self, pointer: Any) -> int:
        del self.blocks[pointer.value]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        assert stream.value == 77
        ctypes.memmove(self.inside(to.value, size.value), source.value, size.value)
        self.now += 1.0
        return 0

    def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memmove(to.value, self.inside(source.value, size.value), size.value)
        self.now += 0.25
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        self.held = []
        return 0

    def cuStreamEndCapture(self, stream: Any, out: Any) -> int:
        self.graphs[1000 + len(self.graphs)], self.held = self.held or [], None
        return self.give(out, max(self.graphs))

    def cuGraphInstantiateWithFlags(self, out: Any, graph: Any, flags: Any) -> int:
        return self.give(out, graph.value)

    def cuGraphLaunch(self, handle: Any, stream: Any) -> int:
        self.launches += 1
        for work in self.graphs[handle.value]:
            work()
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        return 0

    def cuGraphExecDestroy(self, handle: Any) -> int:
        del self.graphs[handle.value]
        return 0

    def cuEventCreate(self, out: Any, flags: int) -> int:
        self.events[500 + len(self.events)] = -1.0
        return self.give(out, max(self.events))

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        assert stream.value == 77
        self.events[event.value] = self.now
        return 0

    def cuEventElapsedTime(self, out: Any, start: Any, stop: Any) -> int:
        return self.give(out, self.events[stop.value] - self.events[start.value])

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self.events[event.value]
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        return 0

    def cuGetErrorString(self, status: int, out: Any) -> int:
        return self.give(out, {2: b"out of memory"}.get(status, b"unknown"))

    @staticmethod
    def give(out: Any, value: Any) -> int:
        out._obj.value = value
        return 0

    def inside(self, address: int, size: int) -> int:
        assert any(a <= address and address + size <= a + len(b) for a, b in self.blocks.items())
        return address

    def array(self, address: int, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        kind = ctypes.c_float * count
        return np.frombuffer(
            kind.from_address(self.inside(address, 4 * count)), np.float32
        ).reshape(shape)


INPUT, OUTPUT, DEVICE = object(), object(), object()


class FakeEngine:
    """total, state' = x + state, [state ; x]: rows of two floats, 1 to 4 of them, state 0 to 6."""

    num_io_tensors = 4
    shapes = {"x": (-1, 2), "state": (-1, 2), "total": (2,), "grown": (-1, 2)}  # noqa: RUF012

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def get_tensor_name(self, index: int) -> str:
        return list(self.shapes)[index]

    def get_tensor_mode(self, name: str) -> object:
        return INPUT if name in ("x", "state") else OUTPUT

    def get_tensor_location(self, name: str) -> object:
        return DEVICE

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name="FLOAT")

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return [(1, 2), (2, 2), (4, 2)] if name == "x" else [(0, 2), (2, 2), (6, 2)]

    def create_execution_context(self, config: Any = None) -> FakeContext:
        return FakeContext(self, config)


class FakeContext:
    def __init__(self, engine: FakeEngine, config: Any) -> None:
        self.engine, self.config = engine, config
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, int] = {}
        self.fails = False

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, 0)
        fits = least[0] <= shape[0] <= most[0]
        if fits:
            self.sizes[name] = shape
        return fits

    def infer_shapes(self) -> list[str]:
        return [name for name in ("x", "state") if name not in self.sizes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name == "grown":
            return (self.sizes["x"][0] + self.sizes["state"][0], 2)
        return self.sizes.get(name, self.engine.shapes[name])

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.places[name] = address
        return bool(address)

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == 77
        driver, places = self.engine.driver, dict(self.places)
        sizes = {name: self.get_tensor_shape(name) for name in self.engine.shapes}

        def work() -> None:
            seen = {name: driver.array(places[name], sizes[name]) for name in sizes}
            grown = np.concatenate([seen["state"], seen["x"]])
            seen["total"][...] = grown.sum(0)
            seen["grown"][...] = grown
            driver.now += 8.0

        if driver.held is None:
            work()
        else:
            driver.held.append(work)
        return not self.fails


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "load", lambda: made)
    return made


@pytest.fixture
def backend(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorRT:
    """Full TensorRT over the library of this file, and an engine `m.engine`."""
    runtime = SimpleNamespace(deserialize_cuda_engine=lambda plan: FakeEngine(driver))

    class ILogger:
        def __init__(self) -> None: ...

    library = SimpleNamespace(
        ILogger=ILogger,
        Runtime=lambda log: runtime,
        TensorIOMode=SimpleNamespace(INPUT=INPUT),
        TensorLocation=SimpleNamespace(HOST=object()),
    )
    monkeypatch.setitem(sys.modules, "written_here", library)
    (tmp_path / "m.engine").write_bytes(b"plan")

    written: TensorRT = type("Written", (TensorRT,), {"module": "written_here"})()
    return written


@pytest.fixture
def opened(backend: TensorRT, tmp_path: Path) -> Callable[..., Recurrent]:
    def run(**options: Any) -> Recurrent:
        return backend.session(tmp_path / "m.engine", **{"target": "l4", **options})

    return run


def rows(*values: float) -> np.ndarray:
    return np.asarray([[v, -v] for v in values], np.float32).reshape(-1, 2)


def test_an_engine_runs_and_frees_what_it_took(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        assert session.inputs[0] == TensorInfo("x", "float32", ("x.0", 2))
        for x, state in ((rows(1, 2), rows()), (rows(3), rows(1, 2, 3)), (rows(1, 2), rows())):
            found = session.run({"x": x, "state": state})
            np.testing.assert_array_equal(found["grown"], np.concatenate([state, x]))
            np.testing.assert_array_equal(found["total"], found["grown"].sum(0))
    assert driver.blocks == {}
    session.close()


def test_launches_are_recorded_once_per_shapes(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened(cuda_graph=True) as session:
        for run in range(4):
            found = session.run({"x": rows(run, 1), "state": rows(5)})
            np.testing.assert_array_equal(found["grown"], rows(5, run, 1))
        assert (driver.launches, len(driver.graphs)) == (3, 1)
        session.run({"x": rows(1, 2, 3), "state": rows(5)})  # another size: nothing is replayed
        assert driver.launches == 3
        np.testing.assert_array_equal(
            session.run({"x": rows(7, 8), "state": rows(5)})["grown"], rows(5, 7, 8)
        )
    assert driver.graphs == {} and driver.blocks == {}


def test_phases_of_a_run_are_told_apart(
    opened: Callable[..., Recurrent], driver: Driver, tmp_path: Path
) -> None:
    feed = {"x": rows(1, 2), "state": rows(5)}
    for recorded in (False, True):
        with opened(cuda_graph=recorded) as session:
            assert isinstance(session, Phased)
            for _ in range(3):
                found = session.phases(feed)
            assert (found.upload_ms, found.compute_ms, found.download_ms) == (2.0, 8.0, 0.5)
            assert found.enqueue_ms > 0
            assert driver.launches == 2 * recorded
            np.testing.assert_array_equal(session.run(feed)["grown"], rows(5, 1, 2))
        assert driver.events == {} and driver.blocks == {}


def test_a_loop_keeps_what_it_carries_on_the_device(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        loop = session.loop({"grown": "state"}, {"state": rows()})
        sums = [loop.run({"x": rows(value)})["total"][0] for value in (1, 2, 3, 4, 5, 6, 7)]
        assert sums == [1, 3, 6, 10, 15, 21, 28]
        with pytest.raises(InputRefused, match=r"\(7, 2\) is outside \(0, 2\) to \(6, 2\)"):
            loop.run({"x": rows(8)})


def test_what_a_loop_starts_with_and_does_not_carry_stays(
    opened: Callable[..., Recurrent],
) -> None:
    with opened() as session:
        loop = session.loop({"grown": "state"}, {"state": rows(), "x": rows(5)})
        assert [loop.run({})["total"][0] for _ in range(3)] == [5, 10, 15]
        with pytest.raises(InputRefused, match="no such input"):
            loop.run({"x": rows(8)})


def test_what_does_not_fit_is_refused(opened: Callable[..., Recurrent], driver: Driver) -> None:
    with opened() as session:
        with pytest.raises(InputRefused, match="outside") as caught:
            session.run({"x": rows(*range(5)), "state": rows()})
        assert caught.value.where == "input 'x'"
        with pytest.raises(InputRefused, match="float64"):
            session.run({"x": rows(1).astype(float), "state": rows()})
        driver.limit = 16
        with pytest.raises(WorkerFailed, match="out of memory") as full:
            session.run({"x": rows(1, 2, 3), "state": rows()})
        assert full.value.verdict == "oom"


def test_another_device_is_refused(opened: Callable[..., Recurrent], driver: Driver) -> None:
    with pytest.raises(ToolchainMissing, match=r"built for rtx4090, .* NVIDIA L4 \(l4\)") as caught:
        opened(target="rtx4090")
    assert "optkit build --target l4" in (caught.value.hint or "")


def test_a_step_opens_an_engine_for_its_target(
    backend: TensorRT, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optkit.runtime.backend", lambda name: backend)
    params = {"backend": "tensorrt", "engines": {"engine": "m.engine"},
              "session": {"target": "l4", "cuda_graph": True}, "kept": str(tmp_path)}  # fmt: skip
    with measuring._engine({"engine": tmp_path}, params, "engine") as session:
        for _ in range(3):
            session.run({"x": rows(1), "state": rows()})
    assert driver.launches == 2
    with pytest.raises(ToolchainMissing, match="built for t4"):
        measuring._engine({"engine": tmp_path}, {**params, "session": {"target": "t4"}}, "engine")


def test_the_bench_step_tells_phases_with_launches_one_by_one_and_recorded(
    backend: TensorRT, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spool:
        def __init__(self, path: Path) -> None: ...

        def feed(self, batch: int) -> Feed:
            return {"x": rows(*range(batch)), "state": rows(1)}

    monkeypatch.setattr("optkit.runtime.backend", lambda name: backend)
    monkeypatch.setattr("optkit.data.spool.Spool", Spool)
    side = {"file": "m.engine", "backend": "tensorrt", "session": {"target": "l4"}}
    sides = {name: {"input": name, **side} for name in ("engine", "baseline")}
    params = {"batches": [1, 2], "seconds": 0.01, "warmup_seconds": 0.01, "gpu": True,
              "sides": sides}  # fmt: skip
    inputs = dict.fromkeys(("engine", "baseline", "samples"), tmp_path)
    found = measuring.bench(inputs, params, tmp_path, lambda what, done: None)
    assert [row["engine"]["batch"] for row in found["rows"]] == [1, 2]
    for name in sides:
        phases = Latency.from_json(found["rows"][1][name]).phases
        assert phases is not None
        assert phases["launched"]["compute_ms"] == phases["recorded"]["compute_ms"] == 8.0
        assert phases["recorded"]["enqueue_ms"] > 0
    assert driver.launches > 200
    assert "gpu" in found["conditions"]


@pytest.mark.parametrize("real", [TensorRT(), TensorRTRTX()])
def test_without_a_driver_it_says_so(real: TensorRT, tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissing, match=r"no NVIDIA driver: libcuda\.so\.1"):
        real.session(tmp_path / "m.engine", target="l4")


def test_the_real_library_tells_why_it_does_not_load(driver: Driver, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    (tmp_path / "m.engine").write_bytes(b"no engine")
    with pytest.raises(ToolchainMissing, match=r"TensorRT-RTX does not load this engine: \w+"):
        TensorRTRTX().session(tmp_path / "m.engine", target="l4")
    assert driver.blocks == {}


def test_what_a_library_learned_is_kept_per_device_and_version(tmp_path: Path) -> None:
    gpu = Gpu(0, "NVIDIA L4", None, "8.9", "13000")
    kept = Kept.of(tmp_path, "timings", gpu, {"tensorrt": "11.4.0"})
    with kept.alone():
        kept.write(b"one")
    assert Kept.of(tmp_path, "timings", gpu, {"tensorrt": "11.4.0"}).read() == b"one"
    for what, device, version in (
        ("kernels", gpu, "11.4.0"),
        ("timings", gpu, "11.5.0"),
        ("timings", replace(gpu, driver="13010"), "11.4.0"),
        ("timings", replace(gpu, name="NVIDIA L40S"), "11.4.0"),
    ):
        assert Kept.of(tmp_path, what, device, {"tensorrt": version}).read() == b""


def test_timings_are_read_before_a_build_and_written_after(driver: Driver, tmp_path: Path) -> None:
    given: list[bytes] = []

    class Config:
        def create_timing_cache(self, known: bytes) -> Any:
            given.append(known)
            return SimpleNamespace(serialize=lambda: known + b"learned ")

        def set_timing_cache(self, timings: Any, ignore_mismatch: bool) -> bool:
            return not ignore_mismatch

    plan = TensorRT().spec((), target("l4"), "fp16", {})
    for _ in range(2):
        with TensorRT()._timings(Config(), plan, tmp_path / "devices", Record()):
            pass
    assert given == [b"", b"learned "]
    assert [file.read_bytes() for file in tmp_path.glob("devices/NVIDIA-L4*.timings")] == [
        b"learned learned "
    ]
    rtx = TensorRTRTX().spec((), target("l4"), "fp16", {})
    with TensorRTRTX()._timings(Config(), rtx, tmp_path / "none", Record()):
        pass
    assert not (tmp_path / "none").exists()
