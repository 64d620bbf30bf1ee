"""Faults planted into quantized graphs, each as somebody's tool or recipe leaves it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

Fault = Callable[[ir.Model], None]


def unfused_pair(node: str, scale: float) -> Fault:
    """A Q/DQ pair on the result of `node`, in front of whoever reads it."""

    def plant(model: ir.Model) -> None:
        value = _node(model, node).outputs[0]
        uses = list(value.uses())
        s = graph.add_constant(model.graph, "planted_scale", np.array(scale, _numpy(value)))
        z = graph.add_constant(model.graph, "planted_zero", np.array(0, np.int8))
        q = ir.node("QuantizeLinear", [value, s, z], name="planted/QuantizeLinear")
        dq = ir.node("DequantizeLinear", [q.outputs[0], s, z], name="planted/DequantizeLinear")
        q.outputs[0].name, dq.outputs[0].name = "planted_codes", "planted_value"
        model.graph.insert_after(_node(model, node), [q, dq])
        for use in uses:
            use.node.replace_input_with(use.idx, dq.outputs[0])

    return plant


def weight_along_inputs(node: str) -> Fault:
    """The weight of `node` quantized with one scale per input, which is summed over."""

    def plant(model: ir.Model) -> None:
        found = _node(model, node)
        pair = found.inputs[1].producer()
        assert pair is not None and pair.op_type == "DequantizeLinear"
        codes, scale = (graph.array(value) for value in pair.inputs[:2])
        axis = pair.attributes.get_int("axis", 1) if scale.ndim else 1
        along = [1] * codes.ndim
        along[axis] = -1
        weight = codes.astype(np.float32) * (scale.reshape(along) if scale.ndim else scale)
        summed = 1 if found.op_type == "Conv" or found.attributes.get_int("transB", 0) else 0
        rest = tuple(d for d in range(codes.ndim) if d != summed)
        most = np.abs(weight).max(axis=rest).astype(np.float32) / 127
        along = [1] * codes.ndim
        along[summed] = -1
        turned = np.clip(np.rint(weight / most.reshape(along)), -127, 127).astype(np.int8)
        parts = [
            graph.add_constant(model.graph, "planted_codes", turned),
            graph.add_constant(model.graph, "planted_scale", most.astype(scale.dtype)),
            graph.add_constant(model.graph, "planted_zero", np.zeros(len(most), np.int8)),
        ]
        for index, part in enumerate(parts):
            pair.replace_input_with(index, part)
        pair.attributes["axis"] = ir.AttrInt64("axis", summed)

    return plant


def left_in_float(node: str) -> Fault:
    """`node` multiplies floats: its activation without the pair, its weight without codes."""

    def plant(model: ir.Model) -> None:
        found = _node(model, node)
        activation, weight = (found.inputs[index].producer() for index in (0, 1))
        assert activation is not None and weight is not None
        before = activation.inputs[0].producer().inputs[0]
        codes, scale = (graph.array(value) for value in weight.inputs[:2])
        along = [1] * codes.ndim
        along[weight.attributes.get_int("axis", 1) if scale.ndim else 1] = -1
        numbers = codes.astype(scale.dtype) * (scale.reshape(along) if scale.ndim else scale)
        found.replace_input_with(0, before)
        found.replace_input_with(
            1, graph.add_constant(model.graph, "planted_weight", numbers.astype(scale.dtype))
        )
        _tidy(model)

    return plant


def rescaled(value: str, factor: float) -> Fault:
    """The pair on `value` with a scale of `factor` times its own: less than 1 clips it."""

    def plant(model: ir.Model) -> None:
        for pair in _pairs(model, value):
            scale = graph.array(pair[0].inputs[1])
            small = graph.add_constant(
                model.graph, "planted_scale", np.asarray(scale * factor, scale.dtype)
            )
            for node in pair:
                node.replace_input_with(1, small)

    return plant


def shifted(value: str, codes: int) -> Fault:
    """The pair on `value` with its zero point moved by so many codes: a side is cut off."""

    def plant(model: ir.Model) -> None:
        for pair in _pairs(model, value):
            zero = graph.array(pair[0].inputs[2])
            ends = np.iinfo(zero.dtype)
            moved = np.clip(zero.astype(int) + codes, ends.min, ends.max).astype(zero.dtype)
            other = graph.add_constant(model.graph, "planted_zero", moved)
            for node in pair:
                node.replace_input_with(2, other)

    return plant


def duplicated(value: str, factor: float) -> Fault:
    """Behind the pair on `value` another one, its scale `factor` times as large."""

    def plant(model: ir.Model) -> None:
        for quantize, *halves in _pairs(model, value):
            scale, zero = (graph.array(one) for one in quantize.inputs[1:3])
            dtype = scale.dtype
            s = graph.add_constant(model.graph, "again_scale", np.asarray(scale * factor, dtype))
            z = graph.add_constant(model.graph, "again_zero", np.asarray(zero))
            for number, half in enumerate(halves):
                uses = list(half.outputs[0].uses())
                q = ir.node("QuantizeLinear", [half.outputs[0], s, z], name=f"again/Q{number}")
                dq = ir.node("DequantizeLinear", [q.outputs[0], s, z], name=f"again/DQ{number}")
                q.outputs[0].name, dq.outputs[0].name = f"again_q{number}", f"again_dq{number}"
                model.graph.insert_after(half, [q, dq])
                for use in uses:
                    use.node.replace_input_with(use.idx, dq.outputs[0])

    return plant


def weight_scaled(node: str, factor: float) -> Fault:
    """The weight of `node` in codes of `factor` times its scale; what is beyond them saturates."""

    def plant(model: ir.Model) -> None:
        half = _node(model, node).inputs[1].producer()
        if half is None or half.op_type != "DequantizeLinear":
            return  # it has no codes
        codes, scale = (graph.array(value) for value in half.inputs[:2])
        turned = np.clip(np.rint(codes.astype(np.float32) / factor), -127, 127).astype(np.int8)
        half.replace_input_with(0, graph.add_constant(model.graph, "scaled_codes", turned))
        other = np.asarray(scale * factor, scale.dtype)
        half.replace_input_with(1, graph.add_constant(model.graph, "scaled_scale", other))

    return plant


def casts(value: str, times: int) -> Fault:
    """`value` to FP16 and back, `times` times, for all who read it."""

    def plant(model: ir.Model) -> None:
        own = next(v for node in model.graph for v in node.outputs if v.name == value)
        uses, last, node = list(own.uses()), own, own.producer()
        for number in range(times):
            for to in (ir.DataType.FLOAT16, ir.DataType.FLOAT):
                cast = ir.node("Cast", [last], {"to": to}, name=f"planted.{number}/Cast_{to.name}")
                cast.outputs[0].name = f"planted_{number}_{to.name}"
                model.graph.insert_after(node, [cast])
                last, node = cast.outputs[0], cast
        for use in uses:
            use.node.replace_input_with(use.idx, last)

    return plant


def reshaping_tail(times: int) -> Fault:
    """The output y [batch, n] shuffled and put in order again, `times` times: a reshape, a
    transpose and a reshape, and their inverse."""

    def plant(model: ir.Model) -> None:
        output = model.graph.outputs[0]
        last = output.producer()
        assert last is not None
        size = output.shape[-1]
        tall = graph.add_constant(model.graph, "planted_tall", np.array([-1, size // 8, 8]))
        wide = graph.add_constant(model.graph, "planted_wide", np.array([-1, 8, size // 8]))
        flat = graph.add_constant(model.graph, "planted_flat", np.array([-1, size]))
        value, nodes = output, []
        turn = ("Transpose", [], {"perm": [0, 2, 1]})
        steps = [
            step
            for shape in (tall, wide)
            for step in (("Reshape", [shape], {}), turn, ("Reshape", [flat], {}))
        ]
        for number in range(times):
            for index, (op, others, attributes) in enumerate(steps):
                name = f"tail.{number}/{op}_{index}"
                node = ir.node(op, [value, *others], attributes, name=name)
                node.outputs[0].name = f"tail_{number}_{index}"
                nodes.append(node)
                value = node.outputs[0]
        name = output.name
        output.name = "planted_inner"
        value.name, value.type, value.shape = name, output.type, output.shape
        model.graph.insert_after(last, nodes)
        model.graph.outputs[0] = value

    return plant


def _pairs(model: ir.Model, value: str) -> list[list[ir.Node]]:
    """The pairs on `value`: a QuantizeLinear and its DequantizeLinear nodes. None where its readers
    are in float."""
    found = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    reads = [(node, node.inputs[0]) for node in found]
    return [[node, *node.outputs[0].consumers()] for node, read in reads
            if read is not None and read.name == value]  # fmt: skip


def _node(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def _numpy(value: ir.Value) -> np.dtype:
    assert value.dtype is not None
    return value.dtype.numpy()


def _tidy(model: ir.Model) -> None:
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)
