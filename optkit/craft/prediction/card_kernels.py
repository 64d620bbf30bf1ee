"""The kernels that are timed on a card, and each as work for the performance model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from optkit.craft.prediction import work
from optkit.craft.prediction.work import Work
from optkit.facts.card_facts import CardKernel, CardPrecision
from optkit.ground.devices import Target

_ROWS = (1, 16, 128, 1024, 8192)
_LAYERS = ((768, 768), (1024, 4096), (4096, 4096), (4096, 11008))  # inner × columns
_SEQUENCES = tuple(product((1, 8, 32), (128, 512, 2048), ((12, 64), (32, 128))))
_BATCHES = (1, 8, 32)
# side, input channels, output channels, kernel, stride
_CONVOLUTIONS = (
    (224, 3, 64, 7, 2),
    (56, 64, 64, 1, 1),
    (56, 64, 64, 3, 1),
    (56, 64, 256, 1, 1),
    (56, 256, 128, 1, 1),
    (28, 128, 128, 3, 1),
    (28, 512, 256, 1, 1),
    (14, 256, 256, 3, 1),
    (14, 1024, 512, 1, 1),
    (7, 512, 512, 3, 1),
)
_COPIES = tuple(2**power for power in range(14, 31, 2))  # 16 KiB to 1 GiB


def kernels(target: Target) -> Iterator[CardKernel]:
    """All kernels for which the target has peaks."""
    yield from products(target)
    for rows, (inner, columns) in product(_ROWS[:-1], _LAYERS):
        yield CardKernel("gemm", "int4", (rows, inner, columns))
    for size in _COPIES:
        yield CardKernel("copy", "fp16", (size,))


def products(target: Target) -> Iterator[CardKernel]:
    """Those of the acceptance test: 100 where the target has FP8."""
    for rows, (inner, columns) in product(_ROWS, _LAYERS):
        yield CardKernel("gemm", "fp16", (rows, inner, columns))
    narrow: tuple[CardPrecision, ...] = ("int8", "fp8")
    for precision in narrow:
        if target.peak(precision) is not None:
            for rows, (inner, columns) in product(_ROWS[1:], _LAYERS):
                # torch._int_mm takes more than 16 rows
                yield CardKernel("gemm", precision, (2 * rows, inner, columns))
    for batch, length, (heads, size) in _SEQUENCES:
        yield CardKernel("attention", "fp16", (batch, heads, length, size))
    for batch, shape in product(_BATCHES, _CONVOLUTIONS):
        yield CardKernel("conv", "fp16", (batch, *shape))


def work_of(kernel: CardKernel) -> Work:
    """What the kernel asks of a device."""
    return _WORKS[kernel.kind](kernel)


def group(asked: Work) -> str | None:
    """The kind and the precision by which a kernel is corrected; None: by none. What reads a cache
    waits for memory, as a copy does."""
    if asked.linked:
        return None
    if asked.kind == "elementwise" or asked.streamed:
        return "copy fp16"
    dtype = "int4" if asked.unpacked else "fp16" if asked.dtype == "bf16" else asked.dtype
    return f"{asked.kind} {dtype}"


def _gemm(kernel: CardKernel) -> Work:
    rows, inner, columns = kernel.sizes
    if kernel.precision == "int4":
        return work.gemm(rows, inner, columns, dtype="fp16", weight_bits=4.25, weight_only=True)
    bits = work.BITS[kernel.precision]
    return work.gemm(rows, inner, columns, dtype=kernel.precision, weight_bits=bits)


def _attention(kernel: CardKernel) -> Work:
    batch, heads, length, size = kernel.sizes
    operations = 4.0 * batch * heads * length * length * size
    return Work("attention", "fp16", operations, moved=4.0 * batch * heads * length * size * 2)


def _convolution(kernel: CardKernel) -> Work:
    batch, side, ins, outs, size, stride = kernel.sizes
    out = side // stride
    rows, inner = batch * out * out, size * size * ins
    moved = 2.0 * (batch * side * side * ins + rows * outs)
    return Work(
        "conv",
        "fp16",
        2.0 * rows * inner * outs,
        2.0 * inner * outs,
        moved,
        rows=rows,
        columns=outs,
    )


def _copy(kernel: CardKernel) -> Work:
    return Work("elementwise", "fp16", moved=2.0 * kernel.sizes[0])


_WORKS = {"gemm": _gemm, "attention": _attention, "conv": _convolution, "copy": _copy}
