"""Stands for torch on a host with an L4: kernels take the time that a formula says, on a clock of
its own. Tests copy this file to where `import torch` finds it. FP8 and INT4 do not run there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any

__version__ = "2.99.0+cu130"
version = SimpleNamespace(cuda="13.0")
half, int8, uint8, bfloat16, float8_e4m3fn = "half", "int8", "uint8", "bfloat16", "fp8"
channels_last = "channels_last"

LAUNCH, BYTES = 10e-6, 200e9  # seconds; bytes per second
RATES = {"half": 30e12, "int8": 100e12}
_now = 0.0
_recording: list[float] | None = None


def launch(operations: float, moved: float, dtype: str = "half") -> None:
    global _now
    seconds = LAUNCH + max(operations / RATES[dtype], moved / BYTES)
    if _recording is None:
        _now += seconds
    else:
        _recording.append(seconds)


class Tensor:
    def __init__(self, shape: tuple[int, ...], dtype: str = half) -> None:
        self.shape, self.dtype = shape, dtype
        self.bytes = prod(shape) * (2 if dtype == half else 1)

    def t(self) -> Tensor:
        return Tensor(self.shape[::-1], self.dtype)

    def to(self, dtype: str | None = None, memory_format: str | None = None) -> Tensor:
        return Tensor(self.shape, dtype or self.dtype)

    def __matmul__(self, other: Tensor) -> Tensor:
        (rows, inner), columns = self.shape, other.shape[1]
        moved = self.bytes + other.bytes + 2 * rows * columns
        launch(2 * rows * inner * columns, moved, self.dtype)
        return Tensor((rows, columns))

    def copy_(self, other: Tensor) -> Tensor:
        launch(0, 2 * self.bytes)
        return self


def randn(shape: tuple[int, ...], device: str, dtype: str = half) -> Tensor:
    return Tensor(shape, dtype)


def randint(low: int, high: int, shape: tuple[int, ...], device: str, dtype: str) -> Tensor:
    return Tensor(shape, dtype)


def ones(shape: tuple[int, ...], device: str, dtype: str = half) -> Tensor:
    return Tensor(shape, dtype)


def empty_like(x: Tensor) -> Tensor:
    return x


def _int_mm(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def _scaled_mm(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    raise RuntimeError("torch._scaled_mm is not of this stand-in\nwith more lines")


def _conv2d(x: Tensor, w: Tensor, stride: int, padding: int) -> None:
    batch, ins, side, _ = x.shape
    outs, _, kernel, _ = w.shape
    rows = batch * (side // stride) ** 2
    launch(2 * rows * outs * ins * kernel**2, x.bytes + w.bytes + 2 * rows * outs)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> None:
    batch, heads, length, size = q.shape
    launch(4 * batch * heads * length**2 * size, 4 * q.bytes)


nn = SimpleNamespace(
    functional=SimpleNamespace(conv2d=_conv2d, scaled_dot_product_attention=_attend)
)
ops = SimpleNamespace(aten=SimpleNamespace())


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = _now

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.at - self.at)


class _Graph:
    def __init__(self) -> None:
        self.launches: list[float] = []

    def replay(self) -> None:
        global _now
        _now += sum(self.launches)


@contextmanager
def _recorded(graph: _Graph) -> Iterator[None]:
    global _recording
    _recording = graph.launches
    yield
    _recording = None


cuda = SimpleNamespace(
    init=lambda: None,
    device_count=lambda: 1,
    get_device_properties=lambda index: SimpleNamespace(
        name="NVIDIA L4", major=8, minor=9, total_memory=23 * 10**9
    ),
    synchronize=lambda: None,
    empty_cache=lambda: None,
    Event=_Event,
    CUDAGraph=_Graph,
    graph=_recorded,
)
