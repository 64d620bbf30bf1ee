"""The nodes and constants that say a quantization in plain ONNX.

activation     x ── Q(s, z) ── DQ(s, z) ──►      s, z of rank 0: a shape of [1] makes TensorRT
                                                 lose every convolution
weight         codes ── DQ(s_c, axis) ──►        axis: the output channels
split_scale    codes ── DQ(g) ──► Conv ── Mul(s_c / g) ── Add(b) ──►
integer_bias   int32 ── DQ(s · s_c) ──►          joins the integer products
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.errors import InputRefused
from optkit.quantization import operands, scales
from optkit.quantization.scales import Scale
from optkit.quantization.sites import Site
from optkit.runtime import PlacementRules


class _Weight(NamedTuple):
    """A constant weight as its node reads it, with its scales, and the node's constant bias."""

    name: str
    numbers: np.ndarray  # float32, holding what the scale's carrier holds
    axis: int | None  # of the output channels; None: one scale for the tensor
    scale: Scale
    split: bool  # into a common scale and ratios
    dtype: ir.DataType  # of the float graph
    bias: np.ndarray | None  # [channels]

    @property
    def live(self) -> np.ndarray:
        """bool [channels]: those that are not all zero."""
        others = tuple(d for d in range(self.numbers.ndim) if d != self.axis)
        return np.asarray(self.numbers.any(axis=others))


class Writer:
    """Adds Q/DQ to one graph under fresh names; a weight that several nodes read is stored once.

    `clamped` counts the scales moved to what the carrier holds as a normal number.
    """

    def __init__(self, model: ir.Model, rules: PlacementRules, carrier: np.dtype) -> None:
        self.clamped = 0
        self._graph = model.graph
        self._rules = rules
        self._carrier = carrier
        self._first = model.graph[0]
        self._nodes = {str(node.name) for node in model.graph.all_nodes()}
        self._values = graph.value_names(model)
        self._stored: dict[tuple[str, int | None, bytes], ir.Value] = {}
        self._replaced: list[ir.Value] = []

    def pair(self, site: Site, low: float, high: float) -> Scale:
        """Put Q and DQ between the value and the site's readers."""
        value, name, dtype = site.value, str(site.value.name), _dtype(site.value)
        scale = scales.activation_scale(low, high, self._rules.activation, self._carrier)
        self.clamped += scale.clamped
        s = self._constant(f"{name}_scale", scale.scale, dtype)
        z = self._constant(f"{name}_zero_point", scale.zero_point)
        q = self._node("QuantizeLinear", [value, s, z], f"{name}_quantized", z, value)
        dq = self._node("DequantizeLinear", [q.outputs[0], s, z], f"{name}_dequantized", s, value)
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, [q, dq])
        else:
            self._graph.insert_after(producer, [q, dq])
        for reader, index in site.readers:
            reader.replace_input_with(index, dq.outputs[0])
        return scale

    def weights(self, nodes: Sequence[ir.Node], activation: Scale) -> list[Scale]:
        """Store the weights of all nodes that multiply one activation as codes, layout changes on
        the way to them folded in, and their biases in the form the rules ask for.

        Returns the effective scales. Where scales are split, the nodes share the common one:
        compilers merge products of one activation (query, key, value) if their scale is the same.
        """
        weights = [self._read(node, activation) for node in nodes]
        live = [w.scale.scale[w.live] for w in weights if w.split]
        common = scales.common_scale(live, self._carrier)
        effective = []
        for node, weight in zip(nodes, weights, strict=True):
            scale = stored = weight.scale
            if weight.split:
                ratio = scales.ratio(weight.scale, common, weight.live, self._carrier)
                scale = ratio._replace(scale=common.scale * ratio.scale)
                stored = common
                self._scale_behind(node, weight, ratio.scale)
            self._store(node, weight, scale, stored)
            if node.op_type in self._rules.integer_bias and weight.bias is not None:
                self._integer_bias(node, weight.bias, activation, scale, weight.dtype)
            if node.op_type == "MatMul" and self._rules.gemm_for_matrices and _is_of_matrices(node):
                node.op_type = "Gemm"
            self.clamped += scale.clamped
            effective.append(scale)
        return effective

    def remove_unread(self) -> None:
        """Drop the float weights and biases that nobody reads any more, and what led from them."""
        for value in self._replaced:
            walk: ir.Value | None = value
            while walk is not None and not walk.uses() and not walk.is_graph_output():
                producer = walk.producer()
                if producer is None:
                    self._graph.initializers.pop(str(walk.name), None)
                    break
                walk = producer.inputs[0]
                self._graph.remove(producer, safe=True)

    def _read(self, node: ir.Node, activation: Scale) -> _Weight:
        value = node.inputs[1]
        assert value is not None
        fmt, bias = self._rules.weight, operands.bias(node)
        numbers = _held(operands.weight(node), self._carrier)
        axis = operands.channel_axis(node) if fmt.granularity == "channel" else None
        movable = bias is not None or not operands.has_bias(node)
        split = axis is not None and node.op_type in self._rules.split_scale and movable
        floor = scales.floor_for_bias(
            bias if node.op_type in self._rules.integer_bias else None, activation
        )
        # the parts of a split scale are rounded to the carrier, not their product
        carrier = np.dtype(np.float32) if split else self._carrier
        scale = scales.weight_scale(numbers, axis, fmt, carrier, floor)
        return _Weight(str(value.name), numbers, axis, scale, split, _dtype(value), bias)

    def _store(self, node: ir.Node, weight: _Weight, scale: Scale, stored: Scale) -> None:
        """Codes under `scale`, dequantized with `stored`: the same, or the common part of it."""
        key = (weight.name, weight.axis, scale.scale.tobytes() + stored.scale.tobytes())
        if key not in self._stored:
            codes = scales.quantize(weight.numbers, scale, self._rules.weight, weight.axis)
            self._stored[key] = self._dequantized(
                weight.name, codes, stored, weight.axis, weight.dtype
            )
        self._replace(node, 1, self._stored[key])

    def _integer_bias(
        self, node: ir.Node, bias: np.ndarray, activation: Scale, weight: Scale, dtype: ir.DataType
    ) -> None:
        scale = scales.bias_scale(activation, weight)
        codes = np.rint(bias / scale.scale.astype(np.float64)).astype(np.int32)
        self._replace(node, 2, self._dequantized(f"{node.name}_bias", codes, scale, 0, dtype))

    def _dequantized(
        self, name: str, codes: np.ndarray, scale: Scale, axis: int | None, dtype: ir.DataType
    ) -> ir.Value:
        q = self._constant(f"{name}_quantized", codes)
        s = self._constant(f"{name}_scale", scale.scale, dtype)
        # without one ONNX Runtime has no integer Gemm
        z = self._constant(f"{name}_zero_point", scale.zero_point)
        dq = self._node("DequantizeLinear", [q, s, z], f"{name}_dequantized", s, q)
        if scale.scale.ndim and axis is not None:
            dq.attributes["axis"] = ir.AttrInt64("axis", axis)
        self._graph.insert_before(self._first, dq)  # ahead of every node that may read it
        return dq.outputs[0]

    def _scale_behind(self, node: ir.Node, weight: _Weight, ratio: np.ndarray) -> None:
        """Multiply the node's result by `ratio` [channels] and add its bias there."""
        along = (1, -1) + (1,) * (weight.numbers.ndim - 2) if node.op_type == "Conv" else (-1,)
        result, name = node.outputs[0], str(node.outputs[0].name)
        uses, dtype = list(result.uses()), _dtype(result)
        result.name = self._claim(f"{name}_unscaled")
        r = self._constant(f"{node.name}_channel_scale", ratio.reshape(along), dtype)
        made = [self._node("Mul", [result, r], f"{name}_scaled", result, result)]
        if weight.bias is not None:
            self._replace(node, 2, None)
            node.resize_inputs(2)  # TensorRT's parser takes an empty name for a missing tensor
            b = self._constant(f"{node.name}_channel_bias", weight.bias.reshape(along), dtype)
            made.append(self._node("Add", [made[0].outputs[0], b], name, result, result))
        self._graph.insert_after(node, made)
        last = made[-1].outputs[0]
        last.name = name
        for use in uses:
            use.node.replace_input_with(use.idx, last)
        for index, output in enumerate(self._graph.outputs):
            if output is result:
                self._graph.outputs[index] = last

    def _node(
        self, op: str, inputs: list[ir.Value], name: str, typed: ir.Value, shaped: ir.Value
    ) -> ir.Node:
        """A node whose output has the dtype of `typed` and the shape of `shaped`."""
        output = ir.Value(name=self._claim(name), type=typed.type, shape=shaped.shape)
        node_name = graph.unique_name(f"{op}_{name}", self._nodes)
        self._nodes.add(node_name)
        return ir.node(op, inputs, outputs=[output], name=node_name)

    def _constant(
        self, name: str, numbers: np.ndarray, dtype: ir.DataType | None = None
    ) -> ir.Value:
        if dtype is not None:
            numbers = numbers.astype(dtype.numpy())
        return graph.add_constant(self._graph, self._claim(name), numbers)

    def _claim(self, name: str) -> str:
        free = graph.unique_name(name, self._values)
        self._values.add(free)
        return free

    def _replace(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        old = node.inputs[index]
        node.replace_input_with(index, value)
        if old is not None:
            self._replaced.append(old)


def _held(numbers: np.ndarray, carrier: np.dtype) -> np.ndarray:
    """As the FP16 cast leaves a weight: rounded, or in FP32 where it is beyond half's range."""
    if np.abs(numbers).max(initial=0.0) > np.finfo(carrier).max:
        return numbers.astype(np.float32)
    return numbers.astype(carrier).astype(np.float32)


def _is_of_matrices(node: ir.Node) -> bool:
    return all(v is not None and v.shape is not None and len(v.shape) == 2 for v in node.inputs)


def _dtype(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise InputRefused("its dtype is unknown", where=f"tensor {value.name!r}")
    return value.dtype
