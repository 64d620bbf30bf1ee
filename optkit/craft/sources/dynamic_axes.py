"""Axes: which of them are dynamic, the sizes for tracing and comparing, and their names in the
graph."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from optkit.facts.errors import InputRefused, UsageError, unknown_name
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo, axes_of, with_sizes
from optkit.ground import graph

Dimension = int | ir.SymbolicDim

_NAME = re.compile(r"[A-Za-z_]\w*")


def fix_single_sizes(
    specs: Sequence[InputSpec], axes: Mapping[str, AxisRange]
) -> tuple[list[InputSpec], dict[str, AxisRange]]:
    """Put the size of an axis with a single size into the shapes. Raises UsageError for an axis
    without a range."""
    for spec in specs:
        for axis in axes_of(spec.info.shape):
            if axis not in axes:
                raise UsageError(
                    f"axis {axis!r} of input {spec.info.name!r} has no range",
                    hint="declare its min, opt and max under axes",
                )
    used = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    fixed = {name: axis.min for name, axis in axes.items() if axis.min == axis.max}
    moving = {name: axis for name, axis in axes.items() if name in used and name not in fixed}
    return [_with_sizes(spec, fixed) for spec in specs], moving


def traced_sizes(axes: Mapping[str, AxisRange]) -> dict[str, int]:
    """Sizes for tracing: near `opt`, at least 2 and all different, if the ranges allow it.

    A size of 1 is broadcast, and two equal sizes look like one axis: both hide errors.
    """
    sizes: dict[str, int] = {}
    # those with the fewest choices first
    for name in sorted(axes, key=lambda name: (axes[name].max, -axes[name].min)):
        axis = axes[name]
        away = [axis.multiple * n for n in range(1, len(axes) + 1)]
        near = [axis.opt, *(axis.opt + n for n in away), *(axis.opt - n for n in away)]
        large = [n for n in near if n in axis and n > 1]
        free = (n for n in large if n not in sizes.values())
        sizes[name] = next(free, large[0] if large else axis.opt)
    return {name: sizes[name] for name in axes}


def declare(model: ir.Model, specs: Sequence[InputSpec]) -> None:
    """Give the dynamic axes of the graph the declared names, or a declared size.

    Names are replaced in the whole graph ("2*s77 + 1" → "2*batch + 1"). Raises InputRefused if an
    input, its dtype or its shape differs from the declaration.
    """
    known = {str(value.name): value for value in model.graph.inputs if not value.is_initializer()}
    _check_names(known, specs)
    names: dict[str, int | str] = {}
    for spec in specs:
        names |= _name_dims(known[spec.info.name], spec, names)
    sums = {
        frozenset(axes_of([dim])): dim
        for spec in specs
        for dim in spec.info.shape
        if isinstance(dim, str) and len(axes_of([dim])) > 1
    }
    for value in values(model):
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape([_renamed(dim, names, sums) for dim in value.shape])
    _check_declared(graph.inputs(model), {spec.info.name: spec.info for spec in specs})


def _check_names(known: Collection[str], specs: Sequence[InputSpec]) -> None:
    for spec in specs:
        if spec.info.name not in known:
            hint = unknown_name("input", spec.info.name, known).hint
            raise InputRefused(f"the graph has no input {spec.info.name!r}", hint=hint)
    missing = set(known) - {spec.info.name for spec in specs}
    if missing:
        raise InputRefused(
            f"the graph also has the inputs {', '.join(sorted(missing))}",
            hint="declare all of the graph's inputs, or none",
        )


def _check_declared(infos: Sequence[TensorInfo], declared: Mapping[str, TensorInfo]) -> None:
    for info in infos:
        wanted = declared[info.name]
        if (info.dtype, info.shape) != (wanted.dtype, wanted.shape):
            raise InputRefused(
                f"the model has {info.dtype} {list(info.shape)}, but the recipe declares "
                f"{wanted.dtype} "
                f"{list(wanted.shape)}",
                where=f"input {info.name!r}",
                hint="declare the input as the model has it",
            )


def values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value of the model, including subgraphs."""
    for part in model.graphs():
        yield from part.inputs
        yield from part.initializers.values()
        for node in part:
            yield from node.outputs


def _name_dims(
    value: ir.Value, spec: InputSpec, names: Mapping[str, int | str]
) -> dict[str, int | str]:
    """The graph's name of each dynamic axis → the declared dimension. An axis without a name gets
    the declared one."""
    dims = list(value.shape or ())
    if len(dims) != len(spec.info.shape):
        return {}  # it is reported with all other differences
    renamed: dict[str, int | str] = {}
    for axis, (dim, wanted) in enumerate(zip(dims, spec.info.shape, strict=True)):
        if isinstance(dim, int):
            continue
        if dim.value is None:
            dims[axis] = _dim(wanted)
        elif str(dim.value) not in names:
            renamed.setdefault(str(dim.value), wanted)
    value.shape = ir.Shape(dims)
    return renamed


def _dim(size: int | str) -> Dimension:
    return size if isinstance(size, int) else ir.SymbolicDim(size)


def _renamed(
    dim: Dimension, names: Mapping[str, int | str], sums: Mapping[frozenset[str], str]
) -> Dimension:
    """The dimension with the declared names; a sum of axes in the declared order."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    text = str(dim.value)
    if text in names:
        return _dim(names[text])
    text = _NAME.sub(lambda part: str(names.get(part[0], part[0])), text)
    return ir.SymbolicDim(sums.get(frozenset(text.split(" + ")), text))


def _with_sizes(spec: InputSpec, sizes: Mapping[str, int]) -> InputSpec:
    shape = tuple(with_sizes(dim, sizes) for dim in spec.info.shape)
    return InputSpec(replace(spec.info, shape=shape), spec.range)
