"""Comparisons inside a graph: it puts out sums over two values, never the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit import graph


class Sums:
    """Writes comparisons as sums [n] into a graph; `outputs`: one value for each. `taken`: names of
    values in use."""

    def __init__(self, model: ir.Model, taken: set[str]) -> None:
        self._graph, self._taken = model.graph, taken
        self._flat = self._constant("flat", np.array([-1], np.int64))
        self.outputs: list[ir.Value] = []

    def compare(self, name: str, r: ir.Value, c: ir.Value) -> None:
        """Σ r², Σ (r-c)², Σ c², Σ r·c, max |r-c|."""
        r, c = self._flattened(r), self._flattened(c)
        error = self._node("Sub", r, c)
        self._put(name, [
            self._node("ReduceSumSquare", r),
            self._node("ReduceSumSquare", error),
            self._node("ReduceSumSquare", c),
            self._node("ReduceSum", self._node("Mul", r, c)),
            self._node("ReduceMax", self._node("Abs", error)),
        ])  # fmt: skip

    def clip(self, name: str, x: ir.Value, y: ir.Value, ends: tuple[float, float]) -> None:
        """Σ x², Σ (x-y)², Σ (x-clip(x))², elements that are clipped, all elements, min x, max x."""
        x, y = self._flattened(x), self._flattened(y)
        low, high = (
            self._constant(f"{name} {end}", np.asarray(number, np.float32))
            for end, number in zip(("low", "high"), ends, strict=True)
        )
        beyond = self._node("Sub", x, self._node("Clip", x, low, high))
        clipped = self._node("Abs", self._node("Sign", beyond))
        self._put(name, [
            self._node("ReduceSumSquare", x),
            self._node("ReduceSumSquare", self._node("Sub", x, y)),
            self._node("ReduceSumSquare", beyond),
            self._node("ReduceSum", clipped),
            self._node("Cast", self._node("Size", x), to=ir.DataType.FLOAT),
            self._node("ReduceMin", x),
            self._node("ReduceMax", x),
        ])  # fmt: skip

    def _flattened(self, value: ir.Value) -> ir.Value:
        return self._node("Reshape", value, self._flat)

    def _put(self, name: str, sums: Sequence[ir.Value]) -> None:
        rows = [self._node("Reshape", one, self._flat) for one in sums]
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
