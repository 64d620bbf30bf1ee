"""What a device is asked to do: operations, bytes and launches, with no device in them.

A `Work` is one kernel, or `times` equal ones. A matrix product of `rows` × `columns` outputs counts
two operations per multiply-add; convolutions are counted as the product they unroll to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from optkit.facts.dtypes import BY_SHORT

# Peak → bits of its operands.
BITS = MappingProxyType({"tf32": 32} | {short: dtype.bits for short, dtype in BY_SHORT.items()})

# Dtype → the peak of products of it.
_MULTIPLIED = ("fp32", "fp16", "bf16", "fp8", "fp4", "int8")
PEAKS = MappingProxyType({BY_SHORT[peak].name: peak for peak in _MULTIPLIED} | {"uint8": "int8"})

Kind = Literal["gemm", "conv", "attention", "elementwise"]


@dataclass(frozen=True)
class Work:
    """One kernel. Bytes are per kernel, not per `times`.

    `dtype`: the peak it multiplies at (a key of `Target.peaks`). `moved`: activation bytes read and
    written. `streamed`: bytes of a key-value cache, which no L2 cache holds. `reread`: bytes of it
    that beams of one sequence read at the same time as the first, from the L2 cache. `unpacked`:
    weights that are made floating again before they multiply. `linked`: bytes exchanged with each
    other one of the `devices` of a tensor-parallel group. `kernels` 0: it runs inside a neighbour.
    """

    kind: Kind
    dtype: str
    operations: float = 0.0
    weight_bytes: float = 0.0
    moved: float = 0.0
    streamed: float = 0.0
    reread: float = 0.0
    rows: float = 0.0
    columns: float = 0.0
    unpacked: float = 0.0
    linked: float = 0.0
    devices: int = 1
    kernels: float = 1.0
    times: int = 1


def gemm(
    rows: float,
    inner: float,
    columns: float,
    *,
    dtype: str,
    weight_bits: float,
    held_bits: float | None = None,
    weight_only: bool = False,
    kernels: float = 1.0,
    times: int = 1,
) -> Work:
    """[rows, inner] × constant [inner, columns]. `held_bits`: of activations; None: the peak's."""
    held = BITS[dtype] if held_bits is None else held_bits
    weights = inner * columns
    return Work(
        "gemm",
        dtype,
        2 * rows * weights,
        weights * weight_bits / 8,
        (rows * inner * held + rows * columns * max(held, 16)) / 8,
        rows=rows,
        columns=columns,
        unpacked=weights if weight_only else 0.0,
        kernels=kernels,
        times=times,
    )


def total(works: Iterable[Work]) -> Work:
    """Sums over all kernels, as one record; kind, rows, columns and devices mean nothing in it."""
    found = Work("elementwise", "fp16", kernels=0.0)
    for one in works:
        n = one.times
        found = replace(
            found,
            operations=found.operations + n * one.operations,
            weight_bytes=found.weight_bytes + n * one.weight_bytes,
            moved=found.moved + n * one.moved,
            streamed=found.streamed + n * one.streamed,
            reread=found.reread + n * one.reread,
            unpacked=found.unpacked + n * one.unpacked,
            linked=found.linked + n * one.linked,
            kernels=found.kernels + n * one.kernels,
        )
    return found
