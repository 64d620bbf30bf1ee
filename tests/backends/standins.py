"""Stand-ins for the driver and TensorRT, with checked memory, on which engines run in tests."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from optkit.craft.backends.cuda import PROTOTYPES


class Typed:
    """A driver called as a C library of these types is: each argument is converted, and only what
    survives arrives. `failing`: functions that return an error."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Callable[..., int]:
        parameters, call = PROTOTYPES[name], getattr(self._driver, name)

        def typed(*arguments: Any) -> int:
            assert len(arguments) == len(parameters), name
            if name in self._driver.failing:
                return 700  # CUDA_ERROR_ILLEGAL_ADDRESS
            return int(call(*map(converted, parameters, arguments)))

        return typed


def converted(kind: Any, value: Any) -> Any:
    """What a C function gets of an argument; pointers and buffers as they are."""
    kind.from_param(value)  # raises ctypes.ArgumentError or TypeError
    if isinstance(value, int):
        arrived = kind(value).value or 0
        assert arrived == value, f"{value:#x} is cut to {arrived:#x}"
    return value


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
        self.size = 23 * 10**9
        self.taken = 0  # bytes, by libraries
        self.passing = 0  # bytes that a run takes and gives back
        self.looks = 0  # at the memory
        self.failing: set[str] = set()  # functions that return an error from now on

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        return self.give(out, 0)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"NVIDIA L4"
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        return self.give(out, self.size)

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
        if size > self.limit:
            return 2
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return self.give(out, ctypes.addressof(block))

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        self.looks += 1
        used = self.taken + sum(map(len, self.blocks.values()))
        return self.give(free, self.size - used) or self.give(total, self.size)

    def cuMemFree_v2(self, pointer: Any) -> int:
        del self.blocks[pointer]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        assert stream == 77
        ctypes.memmove(self.inside(to, size), source, size)
        self.now += 1.0
        return 0

    def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memmove(to, self.inside(source, size), size)
        self.now += 0.25
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        self.held = []
        return 0

    def cuStreamEndCapture(self, stream: Any, out: Any) -> int:
        if "capture" in self.failing:
            self.held = None
            return 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, and no graph
        self.graphs[1000 + len(self.graphs)], self.held = self.held or [], None
        return self.give(out, max(self.graphs))

    def cuGraphInstantiateWithFlags(self, out: Any, graph: Any, flags: Any) -> int:
        return self.give(out, graph)

    def cuGraphLaunch(self, handle: Any, stream: Any) -> int:
        self.launches += 1
        for work in self.graphs[handle]:
            work()
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        return 0

    def cuGraphExecDestroy(self, handle: Any) -> int:
        del self.graphs[handle]
        return 0

    def cuEventCreate(self, out: Any, flags: int) -> int:
        self.events[500 + len(self.events)] = -1.0
        return self.give(out, max(self.events))

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        assert stream == 77
        self.events[event] = self.now
        return 0

    def cuEventElapsedTime(self, out: Any, start: Any, stop: Any) -> int:
        return self.give(out, self.events[stop] - self.events[start])

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self.events[event]
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        return 0

    def cuGetErrorString(self, status: int, out: Any) -> int:
        return self.give(out, {2: b"out of memory"}.get(status, b"unknown"))

    def pass_by(self) -> None:
        """Take memory and give it back, once somebody has looked meanwhile."""
        self.taken += self.passing
        looks, ends = self.looks, time.monotonic() + 10
        while self.passing and self.looks < looks + 2 and time.monotonic() < ends:
            time.sleep(1e-3)
        self.taken -= self.passing

    @staticmethod
    def give(out: Any, value: Any) -> int:
        out._obj.value = value
        return 0

    def inside(self, address: int, size: int) -> int:
        assert any(a <= address and address + size <= a + len(b) for a, b in self.blocks.items())
        return address

    def array(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape)) * dtype.itemsize
        block = (ctypes.c_char * size).from_address(self.inside(address, size))
        return np.frombuffer(block, dtype).reshape(shape)


INPUT, OUTPUT, DEVICE, JSON = object(), object(), object(), object()
LOADED = 5 << 20  # bytes that an engine takes
SPENT = {"fc_myl0_1": 5.0, "__myl_Conc_myl0_2": 2.0, "Reformat x": 1.0}  # ms


class FakeEngine:
    """total, state' = x + state, [state ; x]: rows of two floats, 1 to 4 of them, state 0 to 6."""

    num_io_tensors = 4
    kind, dtype = "FLOAT", "float32"
    shapes = {"x": (-1, 2), "state": (-1, 2), "total": (2,), "grown": (-1, 2)}  # noqa: RUF012

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.spent = SPENT
        driver.taken += LOADED

    def create_engine_inspector(self) -> FakeInspector:
        return FakeInspector()

    def get_tensor_name(self, index: int) -> str:
        return list(self.shapes)[index]

    def get_tensor_mode(self, name: str) -> object:
        return INPUT if name in ("x", "state") else OUTPUT

    def get_tensor_location(self, name: str) -> object:
        return DEVICE

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=self.kind)

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
        self.enqueue_emits_profile = False
        self.reports = 0
        self._profiler: Any = None

    @property
    def profiler(self) -> Any:
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: Any) -> None:
        """The library refuses None: "Parameter check failed, condition: (profiler) != nullptr"."""
        self._profiler = profiler or self._profiler

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
            dtype = np.dtype(self.engine.dtype)
            seen = {name: driver.array(places[name], sizes[name], dtype) for name in sizes}
            grown = np.concatenate([seen["state"], seen["x"]])
            seen["total"][...] = grown.sum(0)
            seen["grown"][...] = grown
            driver.now += 8.0
            driver.pass_by()

        if driver.held is not None and "launch" in driver.failing:
            return False
        if driver.held is None:
            work()
            if self.profiler is not None and self.enqueue_emits_profile:
                self.report()
        else:
            driver.held.append(work)
        return not self.fails

    def report(self) -> None:
        """What the profiler is told after a launch; the first one was slow."""
        self.reports += 1
        for layer, ms in self.engine.spent.items():
            self.profiler.report_layer_time(layer, 100 * ms if self.reports == 1 else ms)


class FakeInspector:
    execution_context: Any = None

    def get_engine_information(self, form: object) -> str:
        assert form is JSON
        sizes = {name: self.execution_context.get_tensor_shape(name)[0] for name in ("x", "grown")}
        x, grown = (tensor(name, rows) for name, rows in sizes.items())
        return json.dumps(
            {
                "Layers": [
                    described("fc_myl0_1", "gemm", x, x, "fc"),
                    described("__myl_Conc_myl0_2", "kgen", x, grown, "concat"),
                ],
                "Bindings": ["x", "state", "total", "grown"],
            }
        )


def tensor(name: str, rows: int) -> dict[str, Any]:
    return {"Name": name, "Dimensions": [rows, 2], "Format/Datatype": "Float"}


def described(name: str, kind: str, read: Any, written: Any, node: str) -> dict[str, Any]:
    return {
        "Name": name, "LayerType": kind, "Inputs": [read], "Outputs": [written],
        "TacticName": "stub", "StreamId": 0, "Metadata": f"[ONNX Layer: {node}]",
    }  # fmt: skip


def rows(*values: float) -> np.ndarray:
    return np.asarray([[v, -v] for v in values], np.float32).reshape(-1, 2)
