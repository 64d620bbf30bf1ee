"""The bytes of the values that a run of a graph computes, at any sizes of its axes, from the shapes
that the graph states: a pass of shape inference for each choice of sizes would take seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from optkit.ground.graph.nodes import is_constant
from optkit.ground.graph.shapes import dims, evaluated


class Bytes(NamedTuple):
    """`live`: the most at one time, if nodes run in graph order and a value lives until its last
    reader; `all`: of all values."""

    live: int
    all: int


_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Activations:
    """The values of one graph. `halves`: some have 16 bits."""

    def __init__(self, model: ir.Model) -> None:
        kept = (*model.graph.inputs, *model.graph.outputs)
        self._kept = dict.fromkeys(value for value in kept if not is_constant(value))
        self._nodes = [
            ([v for v in node.outputs if v not in self._kept and not is_constant(v)], node.inputs)
            for node in model.graph
        ]
        values = (value for node in model.graph for value in node.outputs)
        self.halves = any(value.dtype in _HALVES for value in values)
        self._last = {v: at for at, (_, read) in enumerate(self._nodes) for v in read}

    def at(self, axes: Mapping[str, int]) -> Bytes:
        """The bytes at these sizes. Values whose size the graph does not state count as zero."""
        known: dict[str, int | None] = {}
        live = peak = total = sum(_size(value, axes, known) for value in self._kept)
        held: dict[ir.Value, int] = {}
        for at, (written, read) in enumerate(self._nodes):
            new = {value: _size(value, axes, known) for value in written}
            held |= new
            live += sum(new.values())
            total += sum(new.values())
            peak = max(peak, live)
            for value in {*read, *written}:
                if value is not None and self._last.get(value, at) == at:
                    live -= held.pop(value, 0)
        return Bytes(peak, total)


def _size(value: ir.Value, axes: Mapping[str, int], known: dict[str, int | None]) -> int:
    if value.dtype is None or value.shape is None:
        return 0
    size = value.dtype.itemsize
    for dim in dims(value):
        if isinstance(dim, str) and dim not in known:
            known[dim] = evaluated(dim, axes)
        size *= (known[dim] if isinstance(dim, str) else dim) or 0
    return int(size)
