"""One hundred kernels of many sizes, as work for the predictor and as calls of torch: products in
FP16, INT8 and FP8, attention, convolutions. The card's own times say whether the predictor's
intervals hold for single kernels; they were fitted to whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from optkit.craft.prediction import work, work_time
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work import Work
from optkit.ground.devices import Target

_ROWS = (1, 16, 128, 1024, 8192)
_LAYERS = ((768, 768), (1024, 4096), (4096, 4096), (4096, 11008))  # inner × columns
_INTEGER_ROWS = _ROWS[1:]
_SEQUENCES = tuple(product((1, 8, 32), (128, 512, 2048), ((12, 64), (32, 128))))
# side, input channels, output channels, kernel, stride
_CONVOLUTIONS = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1),
    (56, 256, 128, 1, 1), (28, 128, 128, 3, 1), (28, 512, 256, 1, 1), (14, 256, 256, 3, 1),
    (14, 1024, 512, 1, 1), (7, 512, 512, 3, 1),
)  # fmt: skip
_TOGETHER = 20  # launches in one recording: the host's own time is no part of a kernel's
_ENOUGH_MS = 5.0  # of a recording: long kernels are launched less often
_REPLAYS = 15


@dataclass(frozen=True)
class Kernel:
    """`category`: of the predictor's intervals; `prepare`: torch → the call to be timed."""

    name: str
    category: str
    work: Work
    prepare: Callable[[Any], Callable[[], Any]]


def kernels(target: Target) -> Iterator[Kernel]:
    """Those that a target has peaks for: 100 where it has FP8."""
    for rows, (inner, columns) in product(_ROWS, _LAYERS):
        yield _gemm("fp16", rows, inner, columns, _half)
    for dtype, prepare in (("int8", _int8), ("fp8", _fp8)):
        if target.peak(dtype) is not None:
            for rows, (inner, columns) in product(_INTEGER_ROWS, _LAYERS):
                yield _gemm(dtype, 2 * rows, inner, columns, prepare)  # _int_mm: over 16 rows
    for batch, length, (heads, size) in _SEQUENCES:
        yield _attention(batch, length, heads, size)
    for batch, shape in product((1, 8, 32), _CONVOLUTIONS):
        yield _convolution(batch, *shape)


def measured(kernel: Kernel, torch: Any) -> float:
    """Milliseconds: the median over replays of launches recorded together."""
    call = kernel.prepare(torch)
    for _ in range(3):  # lazy work of the libraries
        call()
    torch.cuda.synchronize()
    together = max(1, min(_TOGETHER, int(_ENOUGH_MS / max(_timed(torch, call), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(together):
            call()
    return median(_timed(torch, graph.replay) / together for _ in range(_REPLAYS))


def _timed(torch: Any, call: Callable[[], Any]) -> float:
    """Milliseconds between events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def compared(kernel: Kernel, target: Target, ms: float) -> dict[str, Any]:
    """A kernel's time beside its prediction and the interval of that."""
    known = fitted()
    predicted = 1e3 * work_time.seconds([kernel.work], target, known.efficiencies).total
    band = known.band(kernel.category, predicted)
    return {
        "kernel": kernel.name,
        "ms": ms,
        "predicted_ms": predicted,
        "low_ms": band.low,
        "high_ms": band.high,
    }


def _gemm(dtype: str, rows: int, inner: int, columns: int, prepare: Any) -> Kernel:
    bits = work.BITS[dtype]
    return Kernel(
        f"gemm {dtype} {rows}x{inner}x{columns}",
        "encoder",
        work.gemm(rows, inner, columns, dtype=dtype, weight_bits=bits),
        lambda torch: prepare(torch, rows, inner, columns),
    )


def _half(torch: Any, rows: int, inner: int, columns: int) -> Callable[[], Any]:
    x, w = (torch.randn(shape, device="cuda", dtype=torch.half)
            for shape in ((rows, inner), (inner, columns)))  # fmt: skip
    return lambda: x @ w


def _int8(torch: Any, rows: int, inner: int, columns: int) -> Callable[[], Any]:
    x, w = (torch.randint(-127, 127, shape, device="cuda", dtype=torch.int8)
            for shape in ((rows, inner), (columns, inner)))  # fmt: skip
    return lambda: torch._int_mm(x, w.t())


def _fp8(torch: Any, rows: int, inner: int, columns: int) -> Callable[[], Any]:
    x, w = (torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)
            for shape in ((rows, inner), (columns, inner)))  # fmt: skip
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.half)


def _attention(batch: int, length: int, heads: int, size: int) -> Kernel:
    shape = (batch, heads, length, size)

    def prepare(torch: Any) -> Callable[[], Any]:
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.half) for _ in range(3))
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)

    operations = 4.0 * batch * heads * length * length * size
    moved = 4.0 * batch * heads * length * size * 2
    name = f"attention {batch}x{heads}x{length}x{size}"
    return Kernel(name, "encoder", Work("attention", "fp16", operations, moved=moved), prepare)


def _convolution(batch: int, side: int, ins: int, outs: int, kernel: int, stride: int) -> Kernel:
    out = side // stride
    rows, inner = batch * out * out, kernel * kernel * ins

    def prepare(torch: Any) -> Callable[[], Any]:
        last = torch.channels_last
        x = torch.randn((batch, ins, side, side), device="cuda", dtype=torch.half)
        w = torch.randn((outs, ins, kernel, kernel), device="cuda", dtype=torch.half)
        x, w = x.to(memory_format=last), w.to(memory_format=last)
        options = {"stride": stride, "padding": kernel // 2}
        return lambda: torch.nn.functional.conv2d(x, w, **options)

    bytes_moved = 2.0 * (batch * side * side * ins + rows * outs)
    asked = Work(
        "conv", "fp16", 2.0 * rows * inner * outs, 2.0 * inner * outs, bytes_moved,
        rows=rows, columns=outs,
    )  # fmt: skip
    name = f"conv {batch}x{ins}x{side} to {outs}, {kernel}x{kernel}/{stride}"
    return Kernel(name, "convolution", asked, prepare)
