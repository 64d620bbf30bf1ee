"""The parameters of a QuantizeLinear or DequantizeLinear, and the numbers of constant codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
PAIR = (QUANTIZE, DEQUANTIZE)


@dataclass(frozen=True)
class QuantizationParameters:
    """How codes stand for numbers: x = (code - zero_point) * scale.

    scale, zero_point: float64 and int64 (float64 for float codes), of rank 0, 1 [channels], or the
    rank of the tensor (blocks). `axis`: of the channels or blocks. `block_size`: 0 without blocks.
    """

    dtype: ir.DataType
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    block_size: int

    @property
    def granularity(self) -> str:
        """ "tensor", "channel" or "block"."""
        if self.block_size:
            return "block"
        return "channel" if self.scale.size > 1 else "tensor"

    @property
    def symmetric(self) -> bool:
        """Whether code zero stands for zero: what TensorRT calls a zero point of 0."""
        return not self.zero_point.any()

    @property
    def integer(self) -> bool:
        return not self.dtype.is_floating_point()

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest code."""
        return float(self.dtype.min), float(self.dtype.max)

    @property
    def range(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest number, in the shape of the scale."""
        low, high = self.ends
        return (low - self.zero_point) * self.scale, (high - self.zero_point) * self.scale

    @property
    def cuts_at_zero(self) -> bool:
        """Whether the smallest number is 0, so that the pair does what a Relu does. Quantizers then
        remove the Relu before it."""
        return self.integer and bool((self.range[0] == 0).all())

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """float32 numbers of codes."""
        scale, zero = (
            self.spread(self.scale, codes.shape),
            self.spread(self.zero_point, codes.shape),
        )
        numbers: np.ndarray = ((codes.astype(np.float64) - zero) * scale).astype(np.float32)
        return numbers

    def spread(self, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """`values`, one for each scale, in a form that broadcasts to a tensor of this shape."""
        if values.size == 1:
            return values.reshape(())
        if self.block_size:
            repeated = np.repeat(values, self.block_size, axis=self.axis)
            return np.take(repeated, range(shape[self.axis]), axis=self.axis)
        sizes = [1] * len(shape)
        sizes[self.axis] = values.size
        return values.reshape(sizes)


def codes_of(node: ir.Node) -> QuantizationParameters | None:
    """The parameters of a QuantizeLinear or DequantizeLinear; None if they are not constant."""
    scale = graph.array(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero = np.zeros(()) if given is None else graph.array(given)
    dtype = _dtype(node)
    if scale is None or zero is None or dtype is None:
        return None
    kind = np.float64 if dtype.is_floating_point() else np.int64
    numbers = scale.astype(np.float64)
    zeros = zero.astype(kind)
    if zero.size == 1:
        zeros = np.broadcast_to(zeros, numbers.shape)
    axis = node.attributes.get_int("axis", 1)
    return QuantizationParameters(
        dtype, numbers, zeros, axis, node.attributes.get_int("block_size", 0)
    )


def _dtype(node: ir.Node) -> ir.DataType | None:
    """The dtype of the codes. Without a zero point QuantizeLinear writes uint8, unless an attribute
    says otherwise (ONNX)."""
    if node.op_type == DEQUANTIZE:
        codes = node.inputs[0]
        return None if codes is None else codes.dtype
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if given is not None:
        return given.dtype
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8.value)


def is_pair(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in PAIR


def producer(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """The node that computes a value, if it has one of these operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in ops else None


def set_codes(node: ir.Node, names: graph.FreeNames, scale: np.ndarray, zero: np.ndarray) -> None:
    """Give a Q or DQ new parameters, as new constants. `scale` keeps the dtype of the old one."""
    owner, old = node.graph, node.inputs[1]
    assert owner is not None and old is not None and old.dtype is not None
    numbers = scale.astype(old.dtype.numpy())
    base = str(node.name)
    first = graph.add_constant(owner, names.value(f"{base}.scale"), numbers)
    second = graph.add_constant(owner, names.value(f"{base}.zero_point"), zero)
    before = [value for value in node.inputs[1:3] if value is not None]
    node.replace_input_with(1, first)
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, second)
    if node.op_type == QUANTIZE:
        node.attributes.pop("output_dtype", None)  # the zero point has it
    graph.remove_unread(owner, before)
