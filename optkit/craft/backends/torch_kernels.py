"""Kernels of torch on a GPU, timed by its events: launches that are recorded together and replayed,
so that the host's own time is no part of a kernel's. Measured with products, attention and
convolutions on an H200; products of INT4 weights and copies never ran on a card."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from optkit.facts.card_facts import CardKernel
from optkit.facts.errors import ToolchainMissing
from optkit.ground.devices import Gpu, driver_version

Call = Callable[[], Any]

_TOGETHER = 20  # launches in one recording
_ENOUGH_MS = 5.0  # of a recording: long kernels are launched less often
_REPLAYS = 15
_GROUP = 128  # weights that share an INT4 scale
_TILES = 8  # of a packed INT4 weight: what torchao takes


class TorchKernels:
    """The first device that torch sees. Raises ToolchainMissing if torch cannot use it."""

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        try:
            self._torch.cuda.init()
            found = self._torch.cuda.get_device_properties(0)
        except Exception as error:  # an old driver, no device, a broken installation
            raise ToolchainMissing(
                f"torch {self._torch.__version__} cannot use a GPU: {error}",
                hint="install the build of torch for this driver (pytorch.org)",
            ) from error
        capability = f"{found.major}.{found.minor}"
        self.gpu = Gpu(0, found.name, int(found.total_memory), capability, driver_version())

    @property
    def versions(self) -> dict[str, str]:
        cuda = self._torch.version.cuda
        return {"torch": str(self._torch.__version__), **({"cuda": str(cuda)} if cuda else {})}

    def milliseconds(self, kernel: CardKernel) -> float:
        """The time of one launch. Raises the exceptions of torch."""
        try:
            return measured(call_of(self._torch, kernel), self._torch)
        finally:
            self._torch.cuda.empty_cache()


def measured(call: Call, torch: Any) -> float:
    """Milliseconds: the median over replays of launches recorded together."""
    for _ in range(3):  # lazy work of the libraries
        call()
    torch.cuda.synchronize()
    together = max(1, min(_TOGETHER, int(_ENOUGH_MS / max(_timed(torch, call), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(together):
            call()
    return median(_timed(torch, graph.replay) / together for _ in range(_REPLAYS))


def _timed(torch: Any, call: Call) -> float:
    """Milliseconds between events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def call_of(torch: Any, kernel: CardKernel) -> Call:
    """A launch of the kernel, on values that are drawn now."""
    prepare = _GEMMS[kernel.precision] if kernel.kind == "gemm" else _OTHERS[kernel.kind]
    return prepare(torch, *kernel.sizes)


def _half(torch: Any, rows: int, inner: int, columns: int) -> Call:
    x = torch.randn((rows, inner), device="cuda", dtype=torch.half)
    w = torch.randn((inner, columns), device="cuda", dtype=torch.half)
    return lambda: x @ w


def _int8(torch: Any, rows: int, inner: int, columns: int) -> Call:
    x = torch.randint(-127, 127, (rows, inner), device="cuda", dtype=torch.int8)
    w = torch.randint(-127, 127, (columns, inner), device="cuda", dtype=torch.int8)
    return lambda: torch._int_mm(x, w.t())


def _fp8(torch: Any, rows: int, inner: int, columns: int) -> Call:
    x = torch.randn((rows, inner), device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn((columns, inner), device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.half)


def _int4(torch: Any, rows: int, inner: int, columns: int) -> Call:
    x = torch.randn((rows, inner), device="cuda", dtype=torch.bfloat16)
    codes = torch.randint(0, 256, (columns, inner // 2), device="cuda", dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, _TILES)
    shape = (inner // _GROUP, columns, 2)  # scale and zero point
    scales = torch.ones(shape, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.ops.aten._weight_int4pack_mm(x, packed, _GROUP, scales)


def _attention(torch: Any, batch: int, heads: int, length: int, size: int) -> Call:
    shape = (batch, heads, length, size)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.half) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _convolution(
    torch: Any, batch: int, side: int, ins: int, outs: int, kernel: int, stride: int
) -> Call:
    last = torch.channels_last
    x = torch.randn((batch, ins, side, side), device="cuda", dtype=torch.half)
    w = torch.randn((outs, ins, kernel, kernel), device="cuda", dtype=torch.half)
    x, w = x.to(memory_format=last), w.to(memory_format=last)
    options = {"stride": stride, "padding": kernel // 2}
    return lambda: torch.nn.functional.conv2d(x, w, **options)


def _copy(torch: Any, size: int) -> Call:
    x = torch.randn((size // 2,), device="cuda", dtype=torch.half)
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


_GEMMS: Mapping[str, Callable[..., Call]] = {
    "fp16": _half,
    "int8": _int8,
    "fp8": _fp8,
    "int4": _int4,
}
_OTHERS: Mapping[str, Callable[..., Call]] = {
    "attention": _attention,
    "conv": _convolution,
    "copy": _copy,
}
