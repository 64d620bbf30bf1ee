"""The operands of a Conv, MatMul or Gemm: activation, constant weight, constant bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.statistics import Window

MOST_OUTLIERS = 64
"""The most outlier channels of an activation that are multiplied in float beside the others."""


def constant(node: ir.Node) -> ir.Value:
    """The stored weight of a node that has one (`graph.constant_weight`)."""
    weight = graph.constant_weight(node)
    assert weight is not None
    return weight[1]


def channel_axis(node: ir.Node) -> int:
    """The axis of the weight for the output channels: one scale each."""
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return 0 if node.op_type == "Conv" else 1


def summed_axis(node: ir.Node) -> int:
    """The axis of a MatMul's or Gemm's weight along which products are summed."""
    return 1 - channel_axis(node)


def summed(node: ir.Node) -> int:
    """How many products a MatMul or Gemm sums: the length of that axis."""
    shape = constant(node).shape
    assert shape is not None
    stored = shape.numpy()
    return int(stored[1 - summed_axis(node)] if is_turned(node) else stored[summed_axis(node)])


def is_turned(node: ir.Node) -> bool:
    """Whether an odd number of Transposes is between the stored matrix and its node."""
    place = graph.constant_weight(node)
    assert place is not None
    value, turned = node.inputs[place[0]], False
    while value is not None and value is not place[1]:
        producer = value.producer()
        assert producer is not None
        turned ^= producer.op_type == "Transpose"
        value = producer.inputs[0]
    return turned


def is_depthwise(node: ir.Node) -> bool:
    """Whether it is a convolution whose groups have one input channel."""
    grouped = node.op_type == "Conv" and node.attributes.get_int("group", 1) > 1
    shape = constant(node).shape if grouped else None
    return shape is not None and shape.numpy()[1] == 1


def weight(node: ir.Node) -> np.ndarray:
    """The constant weight as the node reads it, after the Transposes before the node."""
    place = graph.constant_weight(node)
    assert place is not None
    index, stored = place
    return _laid_out(node.inputs[index], stored)


def reads_alone(node: ir.Node) -> bool:
    """Whether no other node reads its stored weight."""
    value, stored = node.inputs[1], constant(node)
    while value is not None and value is not stored:
        producer = value.producer()
        if producer is None or producer.op_type != "Transpose" or len(value.uses()) > 1:
            return False
        value = producer.inputs[0]
    return stored.is_initializer() and len(stored.uses()) == 1 and not stored.is_graph_output()


def replace_weight(node: ir.Node, by_columns: np.ndarray) -> None:
    """Store another weight [K, N] for a MatMul or Gemm, which reads its weight alone."""
    stored = constant(node)
    assert stored.const_value is not None
    numbers = by_columns if summed_axis(node) == 0 else by_columns.T
    numbers = (numbers.T if is_turned(node) else numbers).astype(stored.const_value.dtype.numpy())
    stored.const_value = ir.Tensor(np.ascontiguousarray(numbers), name=stored.name)


def window(node: ir.Node) -> Window:
    """How a Conv reads its input."""
    shape = constant(node).shape
    assert shape is not None
    kernel, attributes = tuple(shape.numpy()[2:]), node.attributes
    axes = len(kernel)
    return Window(
        kernel=kernel,
        strides=tuple(attributes.get_ints("strides") or (1,) * axes),
        pads=tuple(attributes.get_ints("pads") or (0,) * 2 * axes),
        dilations=tuple(attributes.get_ints("dilations") or (1,) * axes),
        groups=attributes.get_int("group", 1),
        auto_pad=attributes.get_string("auto_pad", "NOTSET"),
    )


def bias(node: ir.Node) -> np.ndarray | None:
    """The bias as one number per output channel; None if there is none, or if it has another
    form."""
    numbers = graph.array(node.inputs[2]) if has_bias(node) else None
    if numbers is None or any(size != 1 for size in numbers.shape[:-1]):
        return None
    channels = weight(node).shape[channel_axis(node)]
    return np.broadcast_to(numbers.reshape(-1), channels) if numbers.size in (1, channels) else None


def loose_bias(node: ir.Node) -> bool:
    """A bias that is not one constant per output channel, so that no correction can be added to
    it."""
    return has_bias(node) and bias(node) is None


def has_bias(node: ir.Node) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] is not None


def biased(value: ir.Value) -> ir.Value:
    """The result of a product, or its sum with a constant if this sum alone reads it."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != "Add":
        return value
    other = uses[0].node.inputs[1 - uses[0].idx]
    constant = other is not None and graph.is_constant(other)
    return uses[0].node.outputs[0] if constant else value


def multiplies_outliers(node: ir.Node) -> bool:
    """Whether it is a product of few channels that a Gather takes from an activation
    (`rescaling.outlier_channels`)."""
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node.op_type != "MatMul" or source is None or source.op_type != "Gather":
        return False
    taken = graph.array(source.inputs[1])
    last = source.attributes.get_int("axis", 0) == -1
    return last and taken is not None and taken.ndim == 1 and taken.size <= MOST_OUTLIERS


def is_split(value: ir.Value) -> bool:
    """Whether other products multiply the outlier channels of this activation."""
    readers = (reader for use in value.uses() for reader in use.node.outputs[0].uses())
    return any(multiplies_outliers(reader.node) for reader in readers if reader.idx == 0)


def known_dtype(value: ir.Value | None) -> ir.DataType:
    """The dtype of the value. Raises InputRefused if it is unknown."""
    assert value is not None
    if value.dtype is None:
        raise InputRefused("its dtype is unknown", where=f"tensor {value.name!r}")
    return value.dtype


def uncast(value: ir.Value) -> ir.Value:
    """The float value before a cast to another float type, else the value itself: the cast graph
    may not have this Cast."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Cast":
        source = producer.inputs[0]
        if source is None or source.dtype is None or not source.dtype.is_floating_point():
            break
        value, producer = source, source.producer()
    return value


def computed(node: ir.Node) -> list[ir.Value]:
    """The operands that are activations: neither constant nor integer (shapes, axes, indices)."""
    return [
        value
        for value in node.inputs
        if value is not None
        and not graph.is_constant(value)
        and (value.dtype is None or value.dtype.is_floating_point())
    ]


def _laid_out(value: ir.Value | None, stored: ir.Value) -> np.ndarray:
    if value is stored:
        numbers = graph.array(stored)
        assert numbers is not None
        return numbers
    producer = value.producer() if value is not None else None
    assert producer is not None
    numbers = _laid_out(producer.inputs[0], stored)
    if producer.op_type == "Transpose":
        return numbers.transpose(producer.attributes.get_ints("perm") or None)
    return numbers
