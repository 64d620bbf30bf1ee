"""Comparisons inside a graph: its outputs are sums over two values, never the values themselves.

Padding is left out of the sums: at places that the mask of the model's inputs hides, both sides are
zero. The caller feeds these places for each axis that counts tokens (`ComparisonSums.real`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit.ground import graph
from optkit.ground.data.padding import TokenAxes

_MOST = 3.4e38


class ComparisonSums:
    """Writes comparisons as sums [n] into a graph. `outputs`: one value for each; `real`: dimension
    → the new input, bool [samples, tokens], that says which tokens are not padding. `taken`: names
    of values that are in use; `tokens`: the mask of the model, None if it has none."""

    def __init__(self, model: ir.Model, taken: set[str], tokens: TokenAxes | None = None) -> None:
        self._graph, self._taken, self._tokens = model.graph, taken, tokens
        self._flat = self._constant("flat", np.array([-1], np.int64))
        self._spread: dict[tuple[int | str, int, int], ir.Value] = {}
        self.outputs: list[ir.Value] = []
        self.real: dict[int | str, ir.Value] = {}

    def compare(self, name: str, r: ir.Value, c: ir.Value) -> None:
        """Σ r², Σ (r-c)², Σ c², Σ r·c, max |r-c|."""
        places = self._places(r)
        r, c = (self._flattened(self._shown(x, places, 0.0)) for x in (r, c))
        error = self._node("Sub", r, c)
        self._put(
            name,
            [
                self._node("ReduceSumSquare", r),
                self._node("ReduceSumSquare", error),
                self._node("ReduceSumSquare", c),
                self._node("ReduceSum", self._node("Mul", r, c)),
                self._node("ReduceMax", self._node("Abs", error)),
            ],
        )

    def clip(
        self,
        name: str,
        x: ir.Value,
        y: ir.Value,
        ends: tuple[float, float],
        channels: np.ndarray | None = None,
    ) -> None:
        """Σ x², Σ (x-y)², Σ (x-clip(x))², elements that are clipped, all elements, min x, max x; of
        these channels along the last axis (None: of all)."""
        places = self._places(x)
        if channels is not None:
            taken = self._constant(f"{name} channels", channels)
            x, y = (self._node("Gather", one, taken, axis=-1) for one in (x, y))
        least, most = (self._flattened(self._shown(x, places, end)) for end in (_MOST, -_MOST))
        size = self._node("Cast", self._node("Size", x), to=ir.DataType.FLOAT)
        if places:
            one = self._constant(f"{name} one", np.ones(1, np.float32))
            ones = self._node("Expand", one, self._node("Shape", x))
            size = self._node("ReduceSum", self._flattened(self._shown(ones, places, 0.0)))
        x, y = (self._flattened(self._shown(one, places, 0.0)) for one in (x, y))
        low, high = (
            self._constant(f"{name} {end}", np.asarray(number, np.float32))
            for end, number in zip(("low", "high"), ends, strict=True)
        )
        beyond = self._node("Sub", x, self._node("Clip", x, low, high))
        clipped = self._node("Abs", self._node("Sign", beyond))
        self._put(
            name,
            [
                self._node("ReduceSumSquare", x),
                self._node("ReduceSumSquare", self._node("Sub", x, y)),
                self._node("ReduceSumSquare", beyond),
                self._node("ReduceSum", clipped),
                size,
                self._node("ReduceMin", least),
                self._node("ReduceMax", most),
            ],
        )

    def _places(self, value: ir.Value) -> list[ir.Value]:
        """Which places along each token axis of the value are not padding, as bools that broadcast
        to it."""
        dims = graph.dims(value)
        axes = self._tokens.axes(dims) if self._tokens is not None else ()
        return [self._real(dims[axis], axis, len(dims)) for axis in axes]

    def _real(self, dim: int | str, axis: int, rank: int) -> ir.Value:
        """bool [samples, 1, …, tokens, …, 1] of this rank."""
        if dim not in self.real:
            bools = ir.TensorType(ir.DataType.BOOL)
            given = ir.Value(
                name=self._claimed(f"real {dim}"), type=bools, shape=ir.Shape([None, dim])
            )
            self._graph.inputs.append(given)
            self.real[dim] = given
        key = (dim, axis, rank)
        if key not in self._spread:
            others = [other for other in range(1, rank) if other != axis]
            axes = self._constant(f"axes {key}", np.array(others, np.int64))
            self._spread[key] = self._node("Unsqueeze", self.real[dim], axes)
        return self._spread[key]

    def _shown(self, value: ir.Value, places: Sequence[ir.Value], fill: float) -> ir.Value:
        for real in places:
            dtype = np.float32 if value.dtype is None else value.dtype.numpy()
            number = self._constant("fill", np.asarray(fill, dtype))
            value = self._node("Where", real, value, number)
        return value

    def _flattened(self, value: ir.Value) -> ir.Value:
        return self._node("Reshape", value, self._flat)

    def _put(self, name: str, sums: Sequence[ir.Value]) -> None:
        rows = [self._node("Reshape", total, self._flat) for total in sums]
        output = self._node("Concat", *rows, axis=0)
        output.name = name
        output.shape, output.type = ir.Shape([len(rows)]), ir.TensorType(ir.DataType.FLOAT)
        self.outputs.append(output)

    def _constant(self, name: str, numbers: np.ndarray) -> ir.Value:
        return graph.add_constant(self._graph, self._claimed(name), numbers)

    def _claimed(self, name: str) -> str:
        return graph.claim_name(f"sum/{name}", self._taken)

    def _node(self, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(op, inputs, attributes)
        node.name = node.outputs[0].name = self._claimed(str(len(self._graph)))
        self._graph.append(node)
        return node.outputs[0]
