"""Inputs and outputs, fixed sizes for named axes, and taps on inner values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from optkit.facts.errors import InputRefused, OptkitError
from optkit.facts.tensors import TensorInfo
from optkit.ground.graph.semantics import check_growth, infer_shapes

_OFTEN = 1 << 16


def inputs(model: ir.Model) -> tuple[TensorInfo, ...]:
    """The inputs that a caller must feed (not those with a default initializer). A dynamic axis
    without a name is called `tensor.axis`."""
    return tuple(_spec(v) for v in model.graph.inputs if not v.is_initializer())


def outputs(model: ir.Model) -> tuple[TensorInfo, ...]:
    return tuple(_spec(v) for v in model.graph.outputs)


def bind(model: ir.Model, axes: Mapping[str, int]) -> ir.Model:
    """A copy in which the named axes have these sizes, and all shapes that follow from them are
    known.

    The size of an axis with an expression as its name ("past + sequence") follows from its parts.

    Raises InputRefused if a size does not fit the graph, or if values grow at these sizes.
    """
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape(_size(dim, axes) for dim in dims(value))
    for node in copy.graph.all_nodes():
        for value in node.outputs:
            # no longer valid: it follows from the inputs, except for operators of other domains
            inferred = node.domain in ("", "ai.onnx") or value.shape is None
            value.shape = None if inferred else ir.Shape(_size(dim, axes) for dim in dims(value))
    if _joined(copy) > _OFTEN:
        check_growth(copy)  # before the sizes were known, it could not see how long they are
    return infer_shapes(copy)


def _joined(model: ir.Model) -> int:
    """How often one number may be in a value, at most, because Concat nodes join values that have
    it."""
    times: dict[ir.Value | None, int] = {}
    for node in model.graph:
        read = [times.get(value, 1) for value in node.inputs]
        most = sum(read) if node.op_type == "Concat" else max(read, default=1)
        times |= dict.fromkeys(node.outputs, most)
    return max(times.values(), default=1)


def axes_in(dim: int | str) -> frozenset[str]:
    """The axes in a dimension: one, several in an expression ("past + sequence"), or none."""
    if isinstance(dim, int):
        return frozenset()
    # true for nearly all dimensions; it avoids the import of symbolic arithmetic
    if dim.isidentifier():
        return frozenset({dim})
    try:
        return ir.SymbolicDim(dim).free_symbols()
    except ValueError:  # a name that is no expression, such as "batch size"
        return frozenset({dim})


def expose(model: ir.Model, names: Iterable[str], *, alone: bool = False) -> ir.Model:
    """A copy with these values as further outputs, so that a session returns them. `alone`: without
    other outputs, which are then computed only if a value needs them.

    Graph inputs and existing outputs among the names are skipped, because the caller already has
    them.

    Raises OptkitError for a name that the graph does not have.
    """
    copy = model.clone()
    wanted = _named(copy, names)
    if any(value.type is None for value in wanted):
        infer_shapes(copy)
    fresh = [v for v in wanted if not v.is_graph_input() and not v.is_graph_output()]
    copy.graph.outputs.extend(fresh)
    if alone and any(value.is_graph_output() for value in wanted):
        copy.graph.outputs[:] = [v for v in copy.graph.outputs if v in wanted]
    return copy


def typed(model: ir.Model, names: Iterable[str]) -> dict[str, str]:
    """The dtypes of these values by name, if they are known. Raises OptkitError for a name that the
    graph does not have."""
    return {str(v.name): v.dtype.numpy().name for v in _named(model, names) if v.dtype is not None}


def _named(model: ir.Model, names: Iterable[str]) -> list[ir.Value]:
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in values]
    if missing:
        raise OptkitError(f"the graph has no value {missing[0]!r}", where="tap")
    return [values[name] for name in wanted]


def _spec(value: ir.Value) -> TensorInfo:
    if value.dtype is None or value.shape is None or not isinstance(value.type, ir.TensorType):
        raise InputRefused("an input or output has no tensor type or rank", where=value.name)
    return TensorInfo(value.name or "", value.dtype.numpy().name, dims(value))


def _size(dim: int | str, axes: Mapping[str, int]) -> int | str | ir.SymbolicDim:
    if isinstance(dim, int) or dim in axes:
        return dim if isinstance(dim, int) else axes[dim]
    try:
        return ir.SymbolicDim(dim).evaluate(axes)
    except ValueError:  # a name that is no expression, such as "batch size"
        return dim


def evaluated(dim: str, axes: Mapping[str, int]) -> int | None:
    """A dimension such as "(t - 1)//8 + 1" with these sizes of axes; None if it has other axes, or
    is no formula."""
    try:
        found = ir.SymbolicDim(dim).evaluate(axes)
    except ValueError:
        return None
    return found if isinstance(found, int) else None


def dims(value: ir.Value) -> tuple[int | str, ...]:
    """The dimensions of a value according to its graph, as in `TensorInfo.shape`; empty if its rank
    is not known."""
    return tuple(
        dim if isinstance(dim, int) else str(dim.value or f"{value.name}.{axis}")
        for axis, dim in enumerate(value.shape or ())
    )
