"""Activations in E2M1 with a scale per block that the kernel computes at run time (NVFP4).

    s_b = E4M3(max|x_b| / (6 · g)) · g        blocks of 16 along the last axis, g calibrated
    x'  = E2M1(x / s_b) · s_b

(NVIDIA, "Introducing NVFP4", 2025; TensorRT operator reference, DynamicQuantize.) There are two
forms:

    compiled    x ── TRT_FP4DynamicQuantize(g) ──► codes, scales ── DQ(g) ── DQ ── Cast ──►
    simulated   the same arithmetic in FP32 nodes: ONNX has no such operator, ONNX Runtime no E2M1.
                In half precision a Cast stands before them and one behind, as in the other form
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import format_codes
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import NumberFormat

_DOMAIN, _OPSET = "trt", 23


class Maker(Protocol):
    """Creates named nodes and constants in one graph."""

    def constant(self, name: str, numbers: np.ndarray) -> ir.Value: ...

    def value(self, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value: ...

    def node_name(self, name: str) -> str: ...


def rounded(x: np.ndarray, outer: float, fmt: NumberFormat) -> np.ndarray:
    """The numbers that the kernel multiplies for `x`, float32 [..., K]; K is a multiple of the
    block size."""
    assert fmt.block_size is not None
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, fmt.block_size)
    ideal = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(outer * fmt.largest)
    scale = format_codes.nearest(
        np.clip(ideal, format_codes.E4M3_LEAST, format_codes.E4M3_MOST), format_codes.E4M3
    ) * np.float32(outer)
    held: np.ndarray = format_codes.nearest(blocks / scale, fmt) * scale
    return held.reshape(x.shape)


@dataclass
class DynamicPair:
    """Writes the nodes between a value and its rounded copy, which is their last output."""

    maker: Maker
    value: ir.Value
    outer: np.ndarray  # float32, rank 0
    fmt: NumberFormat

    def _width(self) -> int:
        shape = self.value.shape
        width = shape[-1] if shape is not None and len(shape) else None
        if not isinstance(width, int):
            raise InputRefused("its last axis is not known", where=f"tensor {self.value.name!r}")
        return width

    def compiled(self, opset: dict[str, int]) -> list[ir.Node]:
        """The form for TensorRT, whose domain is added to the `opset` of the graph. It is a
        DequantizeLinear with FP32 scales, which the FP4 product needs, then a Cast to the dtype of
        the value. Raises InputRefused for an opset below 23."""
        if opset.get("", 0) < _OPSET:
            raise InputRefused(f"E2M1 needs opset {_OPSET}", hint="run graph.upgrade first")
        opset.setdefault(_DOMAIN, 1)
        name, shape, block = str(self.value.name), self.value.shape, self.fmt.block_size
        width = self._width()
        assert shape is not None and self.value.dtype is not None and block is not None
        g = self.maker.constant(f"{name}_tensor_scale", self.outer)
        coarse = ir.Shape([*shape[:-1], width // block])
        codes = self.maker.value(f"{name}_quantized", ir.DataType.FLOAT4E2M1, shape)
        scales = self.maker.value(f"{name}_block_scale", ir.DataType.FLOAT8E4M3FN, coarse)
        quantize = ir.node(
            "TRT_FP4DynamicQuantize",
            [self.value, g],
            {"axis": -1, "block_size": block, "scale_type": ir.DataType.FLOAT8E4M3FN.value},
            domain=_DOMAIN,
            outputs=[codes, scales],
            name=self.maker.node_name(f"quantize_{name}"),
        )
        held = self._one("DequantizeLinear", [scales, g], "scale", coarse)
        wide = self._one("DequantizeLinear", [codes, held.outputs[0]], "dequantized", shape)
        wide.attributes.add(ir.AttrInt64("axis", -1))
        wide.attributes.add(ir.AttrInt64("block_size", block))
        nodes = [quantize, held, wide]
        if self.value.dtype != ir.DataType.FLOAT:
            cast = self._one("Cast", [wide.outputs[0]], "held", shape, self.value.dtype)
            cast.attributes.add(ir.AttrInt64("to", self.value.dtype.value))
            nodes.append(cast)
        return nodes

    def simulated(self) -> list[ir.Node]:
        """The form in FP32 nodes."""
        shape, block, width = self.value.shape, self.fmt.block_size, self._width()
        assert shape is not None and block is not None
        leading = len(shape) - 1
        fold = self._numbers("fold", [0] * leading + [width // block, block], np.int64)
        flat = self._numbers("flat", [0] * leading + [width], np.int64)
        nodes: list[ir.Node] = []

        def add(op: str, inputs: Sequence[ir.Value], what: str, **attributes: int) -> ir.Value:
            dtype = ir.DataType(attributes.get("to", ir.DataType.FLOAT.value))
            kind = ir.DataType.BOOL if op == "Less" else dtype
            node = self._one(op, inputs, what, None, kind)
            for key, number in attributes.items():
                node.attributes.add(ir.AttrInt64(key, number))
            nodes.append(node)
            return node.outputs[0]

        g = self._numbers("tensor_scale", self.outer)
        least = self._numbers("least", format_codes.E4M3_LEAST)
        most = self._numbers("most", format_codes.E4M3_MOST)
        dtype, value = self.value.dtype or ir.DataType.FLOAT, self.value
        if dtype != ir.DataType.FLOAT:
            value = add("Cast", [value], "wide", to=ir.DataType.FLOAT.value)
        blocks = add("Reshape", [value, fold], "blocks")
        sizes = add("Abs", [blocks], "sizes")
        last = self._numbers("last", [-1], np.int64)
        peak = add("ReduceMax", [sizes, last], "peak", keepdims=1)
        unit = add("Div", [peak, self._numbers("peak_unit", self.outer * self.fmt.largest)], "unit")
        inside = add("Clip", [unit, least, most], "inside")
        e4m3 = add("Cast", [inside], "block_scale", to=ir.DataType.FLOAT8E4M3FN.value)
        wide = add("Cast", [e4m3], "wide_scale", to=ir.DataType.FLOAT.value)
        scale = add("Mul", [wide, g], "scale")
        x = add("Div", [blocks, scale], "units")
        two, four = self._numbers("two", 2.0), self._numbers("four", 4.0)
        size = add("Abs", [x], "unit_sizes")
        small, middle = add("Less", [size, two], "small"), add("Less", [size, four], "middle")
        step_of_one, half = self._numbers("one", 1.0), self._numbers("half", 0.5)
        upper = add("Where", [middle, step_of_one, two], "upper_step")
        step = add("Where", [small, half, upper], "step")
        steps = add("Round", [add("Div", [x, step], "ratio")], "steps")
        codes = add("Mul", [steps, step], "unclipped")
        bounds = [self._numbers(n, v) for n, v in (("low", -6.0), ("high", 6.0))]
        held = add("Mul", [add("Clip", [codes, *bounds], "codes"), scale], "held_blocks")
        whole = add("Reshape", [held, flat], "dequantized")
        if dtype != ir.DataType.FLOAT:
            add("Cast", [whole], "held", to=dtype.value)
        nodes[-1].outputs[0].shape = shape
        return nodes

    def _one(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        what: str,
        shape: ir.Shape | None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Node:
        name = f"{self.value.name}_{what}"
        result = self.maker.value(name, dtype, shape)
        return ir.node(op, inputs, outputs=[result], name=self.maker.node_name(f"{op}_{name}"))

    def _numbers(self, what: str, numbers: object, dtype: type = np.float32) -> ir.Value:
        return self.maker.constant(f"{self.value.name}_{what}", np.asarray(numbers, dtype))
