"""Half-precision models become FP32 inside: the `standard` form has a single float carrier.

    x (half) ── Cast ──► … float32 … ── Cast ──► y (half)      inputs and outputs keep their dtype

So "fp32" means the same everywhere: in the reference, in the baseline on a CPU, and in the graph of
calibration. Half precision on a GPU is written later by `precision_cast`, which removes these casts
again. Widening is exact for every stored number; the roundings of half operators disappear. A value
that is cast to half and back, without arithmetic between, is a rounding that the model intends (to
the grid of a format, or to infinity beyond its range): those Casts remain.

    x (float32) ── Cast ──► half ── Reshape, … ──► half ── Cast ──► float32

Weights that are too large for the model file keep their dtype, with a Cast after them: in FP32 they
would take twice their bytes in every later step.

    w (half, in a data file) ── Cast ──► w.fp32 ──► MatMul
    table (half, in a data file) ── Gather ── Cast ──►           only rows that are looked up
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from optkit.facts.documents.rewrites import Rewrite
from optkit.ground import graph

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = ir.DataType.FLOAT
_LARGE_BYTES = 1 << 20  # bytes of a weight from which a separate Cast is worthwhile
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_MOVING = frozenset(
    {
        *("Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"),
        *("Slice", "Gather", "Tile"),
    }
)
"""Operators that compute nothing: their results are numbers of their first input."""
_DTYPES = ("to", "dtype", "output_dtype", "precision", "softmax_precision", "stash_type")
"""Attributes that hold a dtype."""


def widen(model: ir.Model, *, inline_limit: int = graph.INLINE_LIMIT) -> tuple[Rewrite, ...]:
    """Convert float16 and bfloat16 to float32, including subgraphs, in place. Returns one entry if
    anything was half, else none. `inline_limit`: if half weights have this many bytes in total,
    large ones keep their dtype.

    Raises InputRefused if an operator needs half precision.
    """
    if not _halves(model):
        return ()
    foreign = next((node for node in model.graph.all_nodes() if node.domain != ""), None)
    if foreign is not None:
        reason = f"{foreign.domain}.{foreign.op_type} may need half precision"
        return (Rewrite("widen", str(foreign.name), "declined", reason),)
    borders = {value: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    names = graph.FreeNames(model)
    _part_roundings(model, names)
    roundings = _roundings(model)
    if roundings.issuperset(_halves(model)):
        return ()
    stay = _large_weights(model, inline_limit) - borders.keys()
    _widen_inside(model, {value for value in borders if value.producer() is None}, stay, roundings)
    for value in sorted(stay, key=lambda value: str(value.name)):
        _cast_behind(model.graph, value, names)
    halves = {value: dtype for value, dtype in borders.items() if dtype in _HALVES}
    for value, dtype in halves.items():
        _cast_at_border(model.graph, value, dtype, names)
    graph.infer_shapes(model)
    what = f"half became float32, {len(halves)} borders kept"
    what += f", {len(stay)} weights stored as they are" if stay else ""
    return (Rewrite("widen", "", "applied", what),)


def _widen_inside(
    model: ir.Model, inputs: set[ir.Value], stay: set[ir.Value], roundings: set[ir.Value]
) -> None:
    """Widen all values except these, and the attributes of the nodes that compute them."""
    for value in _halves(model):
        if value not in inputs | stay | roundings:
            _widen_value(value)
    for node in model.graph.all_nodes():
        if roundings.isdisjoint(node.outputs):
            _widen_attributes(node)


def _roundings(model: ir.Model) -> set[ir.Value]:
    """The half values that are casts of wider values, are cast to a wider dtype again, and are not
    used for arithmetic. Their readers are Casts to another dtype, or move the numbers to other such
    values."""
    roundings = {
        value
        for node in model.graph.all_nodes()
        for value in node.outputs
        if _is_half(value) and node.op_type in _MOVING and not value.is_graph_output()
    }
    while wrong := {value for value in roundings if not _rounds(value, roundings)}:
        roundings -= wrong
    return roundings


def _rounds(value: ir.Value, roundings: set[ir.Value]) -> bool:
    node = value.producer()
    source = node.inputs[0] if node is not None else None
    if node is None or source is None or not value.uses():
        return False
    begins = node.op_type == "Cast" and source.dtype in _WIDE and not graph.is_constant(source)
    return (begins or source in roundings) and all(_passes(*use, roundings) for use in value.uses())


def _passes(node: ir.Node, index: int, roundings: set[ir.Value]) -> bool:
    """Whether a reader of a half value casts it back, or passes it on unchanged."""
    ends = node.op_type == "Cast" and not _is_half(node.outputs[0])
    return ends or (index == 0 and node.outputs[0] in roundings)


def _part_roundings(model: ir.Model, names: graph.FreeNames) -> None:
    """A Cast to half may have a result that is cast back and is also used for arithmetic or as an
    output. It becomes two Casts, one for each kind of reader."""
    for cast in [node for node in model.graph.all_nodes() if node.op_type == "Cast"]:
        value, source = cast.outputs[0], cast.inputs[0]
        if not _is_half(value) or source is None or source.dtype not in _WIDE:
            continue
        back = [
            u for u in value.uses() if u.node.op_type == "Cast" and not _is_half(u.node.outputs[0])
        ]
        if not back or (len(back) == len(value.uses()) and not value.is_graph_output()):
            continue
        name = names.value(f"{value.name}.rounded")
        second = ir.node("Cast", [source], dict(cast.attributes), name=names.node(f"cast_{name}"))
        second.outputs[0].name, second.outputs[0].type = name, value.type
        second.outputs[0].shape = value.shape
        assert cast.graph is not None
        cast.graph.insert_before(cast, second)
        _redirect(back, second.outputs[0])


def _large_weights(model: ir.Model, inline_limit: int) -> set[ir.Value]:
    halves = {
        v: v.const_value.nbytes
        for v in model.graph.initializers.values()
        if _is_half(v) and v.const_value is not None
    }
    if sum(halves.values()) < inline_limit:
        return set()
    return {value for value, size in halves.items() if size >= _LARGE_BYTES}


def _cast_behind(main: ir.Graph, value: ir.Value, names: graph.FreeNames) -> None:
    """Let all readers of a value without a producer read it in FP32. For a table whose rows are
    looked up, cast only these rows."""
    uses = list(value.uses())
    for use in [use for use in uses if (use.node.op_type, use.idx) == ("Gather", 0)]:
        rows = use.node.outputs[0]
        if use.node.graph is main and not rows.is_graph_output():
            readers = list(rows.uses())
            cast = _cast(rows, _FLOAT, names)
            main.insert_after(use.node, cast)
            rows.type = None if value.dtype is None else ir.TensorType(value.dtype)
            _redirect(readers, cast.outputs[0])
            uses.remove(use)
    if uses:
        cast = _cast(value, _FLOAT, names)
        main.insert_before(main[0], cast)
        _redirect(uses, cast.outputs[0])


def _cast(value: ir.Value, dtype: ir.DataType, names: graph.FreeNames) -> ir.Node:
    """A Cast of `value` that is not yet in the graph; the name of its result is that of its FP32
    side."""
    name = names.value(f"{value.name}.fp32")
    cast = ir.node("Cast", [value], {"to": dtype.value}, name=names.node(f"cast_{name}"))
    result = cast.outputs[0]
    result.name, result.type, result.shape = name, ir.TensorType(dtype), value.shape
    return cast


def _redirect(uses: Iterable[tuple[ir.Node, int]], value: ir.Value) -> None:
    for node, index in uses:
        node.replace_input_with(index, value)


def _cast_at_border(
    main: ir.Graph, value: ir.Value, dtype: ir.DataType, names: graph.FreeNames
) -> None:
    if value.producer() is None:
        _cast_behind(main, value, names)
        return
    cast = _cast(value, dtype, names)
    main.append(cast)
    result = cast.outputs[0]
    result.name, value.name = value.name, result.name
    graph.replace_output(main, value, result)


def _halves(model: ir.Model) -> list[ir.Value]:
    """The values in half precision, subgraphs included."""
    values: list[ir.Value] = []
    for part in model.graphs():
        values += [*part.inputs, *part.initializers.values()]
        values += [value for node in part for value in node.outputs]
    return [value for value in values if _is_half(value)]


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
            node.attributes.add(ir.AttrInt64(name, _FLOAT.value))
    given = node.attributes.get("value")
    if given is not None and given.type == ir.AttributeType.TENSOR:
        tensor = given.as_tensor()
        if tensor.dtype in _HALVES:
            wide = ir.Tensor(tensor.numpy().astype(np.float32))
            node.attributes.add(ir.AttrTensor("value", wide))
