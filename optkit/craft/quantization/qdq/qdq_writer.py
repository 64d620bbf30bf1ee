"""The nodes and constants of a quantization in plain ONNX.

activation     x ── Q(s, z) ── DQ(s, z) ──►      s, z of rank 0: with shape [1], TensorRT fuses no
                                                 convolution
weight         codes ── DQ(s_c, axis) ──►        axis: the output channels
split_scale    codes ── DQ(g) ──► Conv ── Mul(s_c / g) ── Add(b) ──►
integer_bias   int32 ── DQ(s · s_c) ──►          joins the integer products
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.qparams import ActivationQParams, WeightQParams
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.qdq_placement import QdqPlacement, Rules
from optkit.craft.quantization.placement.weighted_nodes import known_dtype
from optkit.craft.quantization.qdq import dynamic
from optkit.craft.quantization.qdq.coding import Coding
from optkit.facts.placement import PlacementRules
from optkit.ground import graph

_NOT_LOADED = ("float4e2m1", "nf4")  # no DequantizeLinear of ONNX Runtime takes them


class QdqWriter:
    """Adds Q/DQ to one graph under new names; a weight that several nodes read is stored once."""

    def __init__(
        self, model: ir.Model, rules: Rules, carrier: np.dtype, *, simulated: bool
    ) -> None:
        self._graph = model.graph
        self._opset = model.opset_imports
        self._rules = rules
        self._carrier = carrier
        self._simulated = simulated
        self._first = model.graph[0]
        self._names = graph.FreeNames(model)
        self._stored: dict[tuple[str, int | None, str, bytes], ir.Value] = {}
        self._replaced: list[ir.Value] = []
        self._second: dict[ir.Value, ir.Value] = {}  # dequantized value → the dequantized remainder

    def pair(self, placement: QdqPlacement, numbers: ActivationQParams) -> None:
        """Insert Q and DQ between the value and its readers. For two terms, also insert a second
        pair for the remainder of the first."""
        value, name = placement.value, str(placement.value.name)
        if numbers.format.granularity == "block":
            pair = dynamic.DynamicPair(self, value, numbers.scale.scale, numbers.format)
            nodes = pair.simulated() if self._simulated else pair.compiled(self._opset)
            first = nodes[-1].outputs[0]
        else:
            nodes, first = self._pair(value, name, numbers.scale)
        if numbers.rest is not None:
            rest = self._node("Sub", [value, first], f"{name}_rest", value, value)
            rest_nodes, second = self._pair(rest.outputs[0], f"{name}_rest", numbers.rest)
            nodes += [rest, *rest_nodes]
            self._second[first] = second
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, nodes)
        else:
            self._graph.insert_after(producer, nodes)
        for reader, index in placement.readers:
            reader.replace_input_with(index, first)

    def _pair(self, value: ir.Value, name: str, scale: Scale) -> tuple[list[ir.Node], ir.Value]:
        s = self.constant(f"{name}_scale", scale.scale, known_dtype(value))
        z = self.constant(f"{name}_zero_point", scale.zero_point)
        q = self._node("QuantizeLinear", [value, s, z], f"{name}_quantized", z, value)
        dq = self._node("DequantizeLinear", [q.outputs[0], s, z], f"{name}_dequantized", s, value)
        return [q, dq], dq.outputs[0]

    def weight(self, node: ir.Node, numbers: WeightQParams, rules: PlacementRules) -> None:
        """Store the weight of the node as codes, and its bias in the form that the rules need.
        Layout operators before the weight are applied to the codes."""
        constant = node.inputs[1]
        assert constant is not None
        dtype = known_dtype(constant)
        if not self._simulated and (numbers.format.is_table or _by_bits(numbers, rules)):
            self._replace_by_contrib(node, numbers, rules, dtype)
            return
        if node.op_type in rules.split_scale and not self._simulated:
            numbers = _with_powers(node, numbers)
        if numbers.ratio is not None:
            self._scale_behind(node, numbers)
        key = (
            numbers.name,
            numbers.axis,
            numbers.format.dtype,
            numbers.scale.scale.tobytes() + numbers.stored.scale.tobytes(),
        )
        if key not in self._stored:
            self._stored[key] = self._dequantized(numbers, dtype)
        self._replace(node, 1, self._stored[key])
        if numbers.ratio is None and numbers.bias is not None:
            self._set_bias(node, numbers, rules, dtype)
        if node.op_type == "MatMul" and rules.gemm_for_matrices and _is_of_matrices(node):
            node.op_type = "Gemm"
        self._add_second_term(node)

    def remove_unread(self) -> None:
        """Remove the float weights and biases without readers, and the nodes between them and their
        readers."""
        graph.remove_unread(self._graph, self._replaced)

    def _dequantized(self, numbers: WeightQParams, dtype: ir.DataType) -> ir.Value:
        """The weight, read through a DequantizeLinear, or as the floats that its codes
        represent."""
        name, fmt = numbers.name, numbers.format
        if self._simulated and fmt.dtype in _NOT_LOADED:
            return self.constant(f"{name}_simulated", numbers.floats(), dtype)
        codes = self._stored_constant(f"{name}_quantized", numbers.stored_codes)
        stored = numbers.stored
        if stored.outer is not None:
            s = self._two_level(name, numbers)
            parts: list[ir.Value] = [codes, s]
        else:
            s = self.constant(f"{name}_scale", stored.scale, dtype)
            # without a zero point ONNX Runtime has no integer Gemm
            parts = [codes, s, self.constant(f"{name}_zero_point", stored.zero_point)]
        dq = self._node("DequantizeLinear", parts, f"{name}_dequantized", s, codes)
        if stored.scale.ndim and numbers.axis is not None:
            dq.attributes.add(ir.AttrInt64("axis", numbers.axis))
        if numbers.block_size is not None:
            dq.attributes.add(ir.AttrInt64("block_size", numbers.block_size))
        self._graph.insert_before(self._first, dq)  # before all nodes that may read it
        if known_dtype(s) == dtype:
            return dq.outputs[0]
        cast = self._node("Cast", [dq.outputs[0]], f"{name}_held", s, codes)
        cast.attributes.add(ir.AttrInt64("to", dtype.value))
        cast.outputs[0].type = ir.TensorType(dtype)
        self._graph.insert_before(self._first, cast)
        return cast.outputs[0]

    def _two_level(self, name: str, numbers: WeightQParams) -> ir.Value:
        """The block scales as E4M3 with one scale for the tensor. It is FP32, like the scale of the
        activations of the FP4 product, because the compiler crashes with another dtype."""
        block, outer = scales.two_level(numbers.stored)
        b = self.constant(f"{name}_block_scale", block)
        o = self.constant(f"{name}_tensor_scale", outer)
        dq = self._node("DequantizeLinear", [b, o], f"{name}_scale", o, b)
        self._graph.insert_before(self._first, dq)
        return dq.outputs[0]

    def _set_bias(
        self, node: ir.Node, numbers: WeightQParams, rules: PlacementRules, dtype: ir.DataType
    ) -> None:
        """Set the bias of the node: as integers if its kernel needs them, otherwise as floats in
        the node or in an Add after it."""
        bias, activation = numbers.bias, numbers.activation
        assert bias is not None
        if node.op_type in rules.integer_bias and activation is not None:
            scale = scales.bias_scale(activation, numbers.scale)
            codes = np.rint(bias / scale.scale.astype(np.float64)).astype(np.int32)
            c = self.constant(f"{node.name}_bias_quantized", codes)
            s = self.constant(f"{node.name}_bias_scale", scale.scale, dtype)
            z = self.constant(f"{node.name}_bias_zero_point", scale.zero_point)
            dq = self._node("DequantizeLinear", [c, s, z], f"{node.name}_bias_dequantized", s, c)
            if scale.scale.ndim:
                dq.attributes.add(ir.AttrInt64("axis", 0))
            self._graph.insert_before(self._first, dq)
            self._replace(node, 2, dq.outputs[0])
        elif weighted_nodes.has_bias(node):
            self._replace(node, 2, self.constant(f"{node.name}_bias", bias, dtype))
        elif not self._join_bias(node, bias):
            self._behind(node, [("Add", "bias", bias)])

    def _join_bias(self, node: ir.Node, bias: np.ndarray) -> bool:
        """Add the bias to the constant of an Add after the node. False if there is no such Add."""
        result = node.outputs[0]
        add = weighted_nodes.biased(result).producer()
        if add is None or add is node:
            return False
        index = 0 if add.inputs[1] is result else 1
        numbers, constant = graph.array(add.inputs[index]), add.inputs[index]
        if numbers is None or constant is None or numbers.size not in (1, bias.size):
            return False
        joined = self.constant(f"{node.name}_bias", numbers + bias, known_dtype(constant))
        self._replace(add, index, joined)
        return True

    def _add_second_term(self, node: ir.Node) -> None:
        """y = dq(q(x)) W + dq(q(x - dq(q(x)))) W. The two products share the weight. An Add of a
        bias stays with the first product, because its kernel may fuse it."""
        first = node.inputs[0]
        second = self._second.get(first) if first is not None else None
        if second is None or node.op_type not in ("MatMul", "Gemm"):
            return
        result = weighted_nodes.biased(node.outputs[0])
        name = str(result.name)
        uses = list(result.uses())
        result.name = self._names.value(f"{name}_first")
        weight = node.inputs[1]
        assert weight is not None
        parts = [second, weight]
        product = self._node("MatMul", parts, f"{name}_second", result, result)
        if node.op_type == "Gemm":
            product.op_type = "Gemm"
            for attribute in node.attributes.values():
                product.attributes[attribute.name] = attribute
        total = self._node("Add", [result, product.outputs[0]], name, result, result)
        after = result.producer()
        assert after is not None
        self._graph.insert_after(after, [product, total])
        self._take_over(result, uses, total.outputs[0], name)

    def _replace_by_contrib(
        self, node: ir.Node, numbers: WeightQParams, rules: PlacementRules, dtype: ir.DataType
    ) -> None:
        """Replace the product by MatMulBnb4 or MatMulNBits (com.microsoft): the weight by rows, two
        codes per byte."""
        codes, scale, zero_point = (array.T for array in numbers.by_rows())
        fmt = replace(numbers.format, block_size=numbers.block_size or len(codes))
        accuracy = rules.nbits_accuracy or 0
        coding = Coding(codes.shape, fmt, False, dtype.numpy(), accuracy)
        packed, *others = coding.parts(codes, scale, zero_point)
        key = (numbers.name, numbers.axis, coding.op, numbers.scale.scale.tobytes())
        if key not in self._stored:
            self._stored[key] = self.constant(f"{numbers.name}_quantized", packed)
        endings = [form.name for form in coding.forms()[1:]]
        values = [self._stored[key]] + [
            self.constant(f"{numbers.name}_{ending}", part)
            for ending, part in zip(endings, others, strict=True)
        ]
        self._replaced += [value for value in node.inputs[1:] if value is not None]
        bias = coding.read_by(node, values)
        if numbers.bias is not None:
            self._behind(node, [("Add", "bias", numbers.bias)])
        elif bias is not None:
            self._add_behind(node, bias)

    def _scale_behind(self, node: ir.Node, numbers: WeightQParams) -> None:
        """Multiply the result of the node by the ratios [channels], and add the bias after this."""
        assert numbers.ratio is not None
        behind = [("Mul", "scale", numbers.ratio)]
        if numbers.bias is not None:
            if weighted_nodes.has_bias(node):
                self._replace(node, 2, None)
                node.resize_inputs(2)  # TensorRT's parser treats an empty name as a missing tensor
            behind.append(("Add", "bias", numbers.bias))
        self._behind(node, behind)

    def _behind(self, node: ir.Node, operations: Sequence[tuple[str, str, np.ndarray]]) -> None:
        """Insert element-wise operations with constants [channels] after the node. The last one
        gets the name of the node's result."""
        convolves = node.op_type == "Conv"
        result, name = node.outputs[0], str(node.outputs[0].name)
        along = (1, -1) + (1,) * (_rank(node) - 2) if convolves else (-1,)
        uses, dtype = list(result.uses()), known_dtype(result)
        result.name = self._names.value(f"{name}_unscaled")
        nodes, last = [], result
        for op, what, numbers in operations:
            c = self.constant(f"{node.name}_channel_{what}", numbers.reshape(along), dtype)
            nodes.append(self._node(op, [last, c], f"{name}_{what}", result, result))
            last = nodes[-1].outputs[0]
        self._graph.insert_after(node, nodes)
        self._take_over(result, uses, last, name)

    def _add_behind(self, node: ir.Node, value: ir.Value) -> None:
        """Add a value after the node; it broadcasts to the shape of the node's result."""
        result, name = node.outputs[0], str(node.outputs[0].name)
        uses = list(result.uses())
        result.name = self._names.value(f"{name}_product")
        total = self._node("Add", [result, value], f"{name}_sum", result, result)
        self._graph.insert_after(node, total)
        self._take_over(result, uses, total.outputs[0], name)

    def _take_over(
        self, result: ir.Value, uses: Sequence[tuple[ir.Node, int]], last: ir.Value, name: str
    ) -> None:
        """Replace `result` by `last` in its readers and in the graph outputs. `last` gets the name
        `name`."""
        last.name = name
        for node, index in uses:
            node.replace_input_with(index, last)
        graph.replace_output(self._graph, result, last)

    def _node(
        self, op: str, inputs: list[ir.Value], name: str, typed: ir.Value, shaped: ir.Value
    ) -> ir.Node:
        """A node whose output has the dtype of `typed` and the shape of `shaped`."""
        output = ir.Value(name=self._names.value(name), type=typed.type, shape=shaped.shape)
        return ir.node(op, inputs, outputs=[output], name=self.node_name(f"{op}_{name}"))

    def constant(
        self, name: str, numbers: np.ndarray, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """A new constant with a free name, cast to `dtype` if one is given."""
        if dtype is not None:
            numbers = numbers.astype(dtype.numpy())
        return graph.add_constant(self._graph, self._names.value(name), numbers)

    def _stored_constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A new constant with a free name, and with the numbers of a tensor that may be in a
        file."""
        free = self._names.value(name)
        if isinstance(tensor, graph.MappedTensor):
            return graph.add_tensor(self._graph, tensor.named(free))
        return graph.add_constant(self._graph, free, tensor.numpy())

    def value(self, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        """A new value with a free name."""
        return ir.Value(name=self._names.value(name), type=ir.TensorType(dtype), shape=shape)

    def node_name(self, name: str) -> str:
        """A free name for a node."""
        return self._names.node(name)

    def _replace(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        old = node.inputs[index]
        node.replace_input_with(index, value)
        if old is not None:
            self._replaced.append(old)


def _with_powers(node: ir.Node, numbers: WeightQParams) -> WeightQParams:
    """Scales of two levels, divided by a power of two per channel. A Mul after the product
    multiplies by it, so the numbers are exactly the same. As with scalar scales, the compiler then
    keeps a projection that is split after the product (merged Q, K, V) as one layer."""
    stored, channels = numbers.stored, 1 if numbers.axis == 0 else 0
    loose = weighted_nodes.has_bias(node) and numbers.bias is None
    if stored.outer is None or numbers.ratio is not None or loose:
        return numbers
    peaks = stored.scale.max(axis=1 - channels)
    ratio = np.exp2(np.ceil(np.log2(peaks / peaks.max()))).astype(np.float32)  # [channels], <= 1
    along = ratio[None, :] if channels else ratio[:, None]
    return replace(numbers, stored=stored._replace(scale=stored.scale / along), ratio=ratio)


def _by_bits(numbers: WeightQParams, rules: PlacementRules) -> bool:
    """Whether the product is written as MatMulNBits."""
    return rules.nbits_accuracy is not None and numbers.block_size is not None


def _is_of_matrices(node: ir.Node) -> bool:
    return all(v is not None and v.shape is not None and len(v.shape) == 2 for v in node.inputs)


def _rank(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None and weight.shape is not None
    return len(weight.shape)
