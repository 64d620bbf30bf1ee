"""Half-precision models become FP32 inside: the `standard` form has one float carrier.

    x (half) ── Cast ──► … float32 … ── Cast ──► y (half)      inputs and outputs keep their dtype

What is called fp32 from here on is so: the reference, the baseline on a CPU, the graph that
calibration runs. Half precision on a GPU is the work of `quantization.cast`, which drops these
casts again. Widening is exact for every stored number; only roundings in between are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.fusion.rule import FusionEntry

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = ir.DataType.FLOAT
_DTYPES = ("to", "dtype", "output_dtype", "precision", "softmax_precision", "stash_type")
"""Attributes that hold a dtype."""


def widen(model: ir.Model) -> tuple[FusionEntry, ...]:
    """Turn float16 and bfloat16 into float32, subgraphs included, in place. One entry if anything
    was half, none else. Raises InputRefused where an operator needs the half precision."""
    if not any(_is_half(value) for value in _values(model)):
        return ()
    foreign = next((node for node in model.graph.all_nodes() if node.domain != ""), None)
    if foreign is not None:
        reason = f"{foreign.domain}.{foreign.op_type} may need half precision"
        return (FusionEntry("widen", str(foreign.name), "declined", reason),)
    borders = {value: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    for value in _values(model):
        if _is_half(value) and (value not in borders or value.producer() is not None):
            _widen_value(value)
    for node in model.graph.all_nodes():
        _widen_attributes(node)
    names = graph.value_names(model)
    nodes = {str(node.name) for node in model.graph.all_nodes()}
    casts = 0
    for value, dtype in borders.items():
        if dtype in _HALVES and (value in model.graph.inputs or value.producer() is not None):
            _cast_at_border(model.graph, value, dtype, names, nodes)
            casts += 1
    graph.infer_shapes(model)
    return (FusionEntry("widen", "", "applied", f"half became float32, {casts} borders kept"),)


def _cast_at_border(
    main: ir.Graph, value: ir.Value, dtype: ir.DataType, names: set[str], nodes: set[str]
) -> None:
    name = graph.unique_name(f"{value.name}.fp32", names)
    names.add(name)
    node = graph.unique_name(f"cast_{name}", nodes)
    nodes.add(node)
    if value.producer() is None:
        uses = list(value.uses())
        cast = ir.node("Cast", [value], {"to": _FLOAT.value}, name=node)
        main.insert_before(main[0], cast)
        cast.outputs[0].name, cast.outputs[0].type = name, ir.TensorType(_FLOAT)
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    else:
        cast = ir.node("Cast", [value], {"to": dtype.value}, name=node)
        main.append(cast)
        cast.outputs[0].name, value.name = value.name, name
        cast.outputs[0].type = ir.TensorType(dtype)
        for index, output in enumerate(main.outputs):
            if output is value:
                main.outputs[index] = cast.outputs[0]
    cast.outputs[0].shape = value.shape


def _values(model: ir.Model) -> Iterable[ir.Value]:
    for part in model.graphs():
        yield from part.inputs
        yield from part.initializers.values()
        for node in part:
            yield from node.outputs


def _is_half(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in _HALVES


def _widen_value(value: ir.Value) -> None:
    value.type = ir.TensorType(_FLOAT)
    if value.const_value is not None:
        numbers = value.const_value.numpy().astype(np.float32)
        value.const_value = ir.Tensor(numbers, name=value.name)


def _widen_attributes(node: ir.Node) -> None:
    halves = [dtype.value for dtype in _HALVES]
    for name in _DTYPES:
        if node.attributes.get_int(name) in halves:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT.value)
    given = node.attributes.get("value")
    if given is not None and given.type == ir.AttributeType.TENSOR:
        tensor = given.as_tensor()
        if tensor.dtype in _HALVES:
            wide = ir.Tensor(tensor.numpy().astype(np.float32))
            node.attributes["value"] = ir.AttrTensor("value", wide)
