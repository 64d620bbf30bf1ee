"""Axes of an ONNX file to which its exporter gave no meaning.

An exporter that does not know a size writes no name, or a name with a number
("p2o.DynamicDimension.0", "x_dynamic_axes_1") that it uses only once. As axis 0 of the inputs, such
axes are all the batch; otherwise each is an axis of its own. Behind the inputs these names say
nothing, and shape inference replaces them. (Loading removes -1, "?" and "unk__749".)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from optkit.craft.sources.dynamic_axes import Dimension, values
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec, axes_of
from optkit.ground.graph.shapes import bind

_UNNAMED = ir.SymbolicDim(None)
_NUMBERED = re.compile(r"(p2o\.)?DynamicDimension\.\d+|.+_dynamic_axes_\d+|.+_dim_\d+")
_COUNTS_SAMPLES = re.compile(r"n|b|bs|batch.*", re.IGNORECASE)


def settle(model: ir.Model) -> None:
    """Give the open axes 0 of all inputs one name, and a sum whose parts no input has a name of its
    own."""
    inputs = [value for value in model.graph.inputs if value.shape and not value.is_initializer()]
    firsts = [_dims(value)[0] for value in inputs]
    batch = _batch(firsts, inputs)
    if batch is not None:
        for value, first in zip(inputs, firsts, strict=True):
            if first == _UNNAMED:
                value.shape = ir.Shape([batch, *_dims(value)[1:]])
        united = [first for first in firsts if batch in firsts and is_numbered(first)]
        _replace(model, lambda dim: batch if dim in united else dim)
    known = _symbols(inputs)
    sums = {dim: _own(dim) for dim in known if _lacks_parts(dim, known)}
    _replace(model, lambda dim: sums.get(dim, dim))


def opened(model: ir.Model, specs: Sequence[InputSpec]) -> dict[str, tuple[Dimension, ...]]:
    """Open the axes that a recipe names and the file fixes. The shapes behind the inputs are then
    inferred anew. Returns the shapes of these inputs in the file."""
    wanted = {spec.info.name: spec.info.shape for spec in specs}
    found: dict[str, tuple[Dimension, ...]] = {}
    for value in model.graph.inputs:
        had, shape = _dims(value), wanted.get(str(value.name), ())
        free = [isinstance(a, int) and isinstance(b, str) for a, b in zip(had, shape, strict=False)]
        if len(had) == len(shape) and any(free):
            found[str(value.name)] = tuple(had)
            dims = zip(free, had, strict=True)
            value.shape = ir.Shape([None if is_free else dim for is_free, dim in dims])
    for node in model.graph.all_nodes() if found else ():
        if node.domain in ("", "ai.onnx"):
            for output in node.outputs:
                output.shape = None
    return found


def warnings(
    model: ir.Model, specs: Sequence[InputSpec], sizes: Mapping[str, tuple[Dimension, ...]]
) -> tuple[str, ...]:
    """What is not known of a graph whose axes were `opened`. Raises InputRefused if it does not
    even fit twice the sizes of the file."""
    shapes = {spec.info.name: spec.info.shape for spec in specs if spec.info.name in sizes}
    twice = {
        dim: 2 * size if isinstance(size, int) else 2
        for name, shape in shapes.items()
        for dim, size in zip(shape, sizes[name], strict=True)
        if isinstance(dim, str)
    }
    try:
        bind(model, twice)
    except InputRefused as error:
        raise InputRefused(
            f"the file has {', '.join(map(_shown, sizes.values()))}, and the graph does not fit "
            f"other sizes: {error.message}",
            where=", ".join(f"input {name!r}" for name in sizes),
            hint="declare the input as the model has it",
        ) from error
    return tuple(
        f"input {name!r} has the shape {_shown(sizes[name])} in the file and {list(shape)} in the "
        "recipe. The file has no other size to compare with: check the outputs at yours"
        for name, shape in shapes.items()
    )


def _shown(dims: Iterable[Dimension]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def forget(model: ir.Model) -> None:
    """Remove the numbered names that no input has, so that shape inference finds these axes."""
    known = _symbols(value for value in model.graph.inputs if not value.is_initializer())
    _replace(model, lambda dim: _UNNAMED if is_numbered(dim) and dim not in known else dim)


def is_numbered(dim: Dimension) -> bool:
    """Whether an exporter invented the name of this axis."""
    return isinstance(dim, ir.SymbolicDim) and bool(_NUMBERED.fullmatch(str(dim.value)))


def _batch(firsts: Sequence[Dimension], inputs: Sequence[ir.Value]) -> Dimension | None:
    """The axis that the open axes 0 become: that of the first input if it counts samples, else the
    first one with a number, else "batch". None if they stay as they are."""
    if firsts and isinstance(firsts[0], ir.SymbolicDim):
        name = firsts[0].value
        if name is not None and _COUNTS_SAMPLES.fullmatch(name):
            return firsts[0]
        if is_numbered(firsts[0]) or name is None:
            numbered = next((first for first in firsts if is_numbered(first)), None)
            if numbered is not None:
                return numbered
    batch = ir.SymbolicDim("batch")
    return None if any(batch in _dims(value) for value in inputs) else batch


def _lacks_parts(dim: Dimension, known: Sequence[Dimension]) -> bool:
    """Whether it is a sum of axes ("past + new"), and no input has one of these axes alone: then
    the sizes of the parts cannot be seen in samples."""
    parts = axes_of([str(dim)])
    return parts != (str(dim),) and not all(ir.SymbolicDim(part) in known for part in parts)


def _own(dim: Dimension) -> Dimension:
    """An axis of its own in place of a sum."""
    return ir.SymbolicDim(re.sub(r"\W+", "_", str(dim)))


def _symbols(inputs: Iterable[ir.Value]) -> list[Dimension]:
    return [dim for value in inputs for dim in _dims(value) if isinstance(dim, ir.SymbolicDim)]


def _replace(model: ir.Model, change: Callable[[Dimension], Dimension]) -> None:
    """Change the dimensions of all values."""
    for value in values(model):
        dims = _dims(value)
        changed = [change(dim) for dim in dims]
        if changed != dims:
            value.shape = ir.Shape(changed)


def _dims(value: ir.Value) -> list[Dimension]:
    return list(value.shape or ())
