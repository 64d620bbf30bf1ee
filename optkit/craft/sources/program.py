"""A `.pt2` archive (torch.export) to an ONNX graph. It has its axes; the recipe names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.craft.sources import (
    archive,
    export_check,
    export_failures,
    outputs,
    program_to_onnx,
    ties,
    toolchain,
)
from optkit.craft.sources.comparison_trials import trials
from optkit.craft.sources.disagreement import Witness
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import ExportFailed, InputRefused, nearest
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground.graph.activation_bytes import Activations
from optkit.ground.runtimes import Progress, Session

if TYPE_CHECKING:
    from torch.export import ExportedProgram


_NO_ARRAYS = ("bfloat16", "complex", "float8")
_MULTIPLE = re.compile(r"(\d+)\*\w+")


def load(path: Path) -> ExportedProgram:
    """Raises UnsafeFile for an archive that could run code, InputRefused for one torch rejects."""
    torch = toolchain.require()
    archive.check(path)
    with toolchain.quiet():
        try:
            program: ExportedProgram = torch.export.load(path)
        except Exception as error:  # any exception of a damaged program
            raise InputRefused(
                f"torch cannot load the program: {export_failures.first_line(error)}",
                where=str(path),
                hint="was it saved by a newer torch?",
            ) from error
    return program


def export(
    path: Path,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    *,
    session: Callable[[Path], Session],
    progress: Progress,
    samples: Sequence[Feed] = (),
) -> ExportLog:
    """Write the graph of the program to `out`, and compare it with the program (see
    `comparison_trials`).

    specs: the inputs of the program, by name or else in order; if empty, its own names are used,
    and the first axis of its first input is "batch". samples: the user's, of one sample each.

    Raises ExportFailed, InputRefused, UnsafeFile.
    """
    progress("loading the program", 0.0)
    program = load(path)
    declared = _declared(_inputs(program), specs, str(path))
    moving = _moving(program, declared, axes, str(path))
    names = outputs.names_apart(_returned(program), {spec.info.name for spec in declared})
    progress("translating to ONNX", 0.4)
    model = program_to_onnx.translate(program, declared, names)
    program_to_onnx.write(model, out)
    reference = partial(_outputs, program, declared, names)
    with ties.lower_index_first(program):
        expected = export_check.expected(
            reference,
            trials(declared, _in_multiples(program, declared, moving), samples),
            Activations(model),
            progress,
        )
    described, returned = program_to_onnx.describe(model)
    nodes = len(model.graph)
    witness = None
    weights = [one for one in (*program.state_dict.values(), *program.constants.values())
               if hasattr(one, "nbytes")]  # fmt: skip
    if sum(one.nbytes for one in weights) <= export_check.KEPT:
        witness = Witness(
            declared,
            reference,
            lambda feed: None,
            program,
            lambda: program_to_onnx.decomposed(program, declared),
            lambda feed: (),
            out,
            session,
        )
    else:  # before the runtime also holds the weights
        del model
        toolchain.release(weights)
    with session(out) as runner:
        checks = export_check.check(expected.cases, runner, witness)
    log = ExportLog("pt2", described, returned, program_to_onnx.OPSET, nodes, checks)
    told = export_check.warnings(expected, checks)
    return replace(log, left_out=expected.left_out, warnings=told)


def _in_multiples(
    program: ExportedProgram, declared: Sequence[InputSpec], axes: Mapping[str, AxisRange]
) -> dict[str, AxisRange]:
    """The ranges of the sizes that the program takes: multiples of 8 for a dimension "8*s7"."""
    found = dict(axes)
    for info, spec in zip(_inputs(program), declared, strict=True):
        for symbol, axis in zip(info.shape, spec.info.shape, strict=False):
            match = _MULTIPLE.fullmatch(str(symbol))
            if axis in found and match is not None:
                found[axis] = replace(found[axis], multiple=int(match[1]))
    return found


def _outputs(
    program: ExportedProgram, declared: Sequence[InputSpec], names: Sequence[str], feed: Feed
) -> Feed:
    return outputs.arrays(_call(program, declared, feed), names)


def _inputs(program: ExportedProgram) -> list[TensorInfo]:
    """The tensor inputs as the program has them; a dynamic axis is torch's symbol ("s77")."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [
        _info(name, placeholders[name].meta["val"])
        for name in program.graph_signature.user_inputs
        if isinstance(name, str) and name in placeholders
    ]


def _info(name: str, tensor: Any) -> TensorInfo:
    shape = tuple(dim if isinstance(dim, int) else str(dim) for dim in tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype.startswith(_NO_ARRAYS):
        raise InputRefused(
            f"input {name!r} of the program is {dtype}, of which there are no arrays",
            where=name,
            hint="take float32 in forward and cast it there, then export the program again",
        )
    return TensorInfo(name, dtype, shape)


def _declared(
    inputs: Sequence[TensorInfo], specs: Sequence[InputSpec], where: str
) -> list[InputSpec]:
    """One spec per program input, in the program's order."""
    if not specs:
        return _with_batch(inputs)
    by_name = {spec.info.name: spec for spec in specs}
    names = [info.name for info in inputs]
    if by_name.keys() == set(names):
        return [by_name[name] for name in names]
    if len(specs) == len(inputs):
        return list(specs)
    close = [near for name in by_name if name not in names for near in nearest(name, names)]
    raise InputRefused(
        f"{len(specs)} inputs are declared, the program has {len(inputs)}: {', '.join(names)}",
        where=where,
        hint=f"did you mean {' or '.join(close)}?" if close else "declare all of them, or none",
    )


def _with_batch(inputs: Sequence[TensorInfo]) -> list[InputSpec]:
    """The inputs of the program itself; the first axis of the first one is named "batch"."""
    first = inputs[0].shape[0] if inputs and inputs[0].shape else None
    if not isinstance(first, str):
        return [InputSpec(info) for info in inputs]
    shapes = [tuple("batch" if dim == first else dim for dim in info.shape) for info in inputs]
    return [InputSpec(replace(i, shape=s)) for i, s in zip(inputs, shapes, strict=True)]


def _moving(
    program: ExportedProgram,
    declared: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    where: str,
) -> dict[str, AxisRange]:
    """The dynamic axes, each with a range that the program allows."""
    allowed = {str(symbol): interval for symbol, interval in program.range_constraints.items()}
    moving: dict[str, AxisRange] = {}
    for info, spec in zip(_inputs(program), declared, strict=True):
        for symbol, axis in zip(info.shape, spec.info.shape, strict=False):
            if not isinstance(axis, str) or not isinstance(symbol, str):
                continue  # `declare` reports what does not fit
            moving[axis] = wanted = _range(axis, axes, where)
            limits = allowed.get(symbol)
            if limits is None:
                continue
            # torch traces with sizes from 2 on; the comparison shows whether 1 works as well
            if wanted.max > limits.upper or (limits.lower > 2 and wanted.min < limits.lower):
                raise InputRefused(
                    f"axis {axis!r} is declared as {wanted.min} to {wanted.max}, but the program "
                    "allows "
                    f"{limits.lower} to {limits.upper}",
                    where=where,
                    hint="narrow the axis, or export the program again with a wider Dim",
                )
    return moving


def _range(axis: str, axes: Mapping[str, AxisRange], where: str) -> AxisRange:
    if axis not in axes:
        raise InputRefused(
            f"axis {axis!r} has no range",
            where=where,
            hint="declare the inputs with names for their axes, and each axis under axes",
        )
    return axes[axis]


def _returned(program: ExportedProgram) -> list[str]:
    """Names of the tensors in the structure that the program returns."""
    from torch.utils import _pytree

    returned = program.graph_signature.user_outputs
    tree = program.call_spec.out_spec
    assert tree is not None
    places = outputs.leaves(_pytree.tree_unflatten(list(range(len(returned))), tree))
    return [name for name, place in places.items() if isinstance(returned[place], str)]


def _call(program: ExportedProgram, declared: Sequence[InputSpec], feed: Feed) -> object:
    import torch
    from torch.utils import _pytree

    tensors = iter([torch.from_numpy(feed[spec.info.name].copy()) for spec in declared])
    names = {info.name for info in _inputs(program)}
    flat = [
        next(tensors) if name in names else name for name in program.graph_signature.user_inputs
    ]
    assert program.call_spec.in_spec is not None
    args, kwargs = _pytree.tree_unflatten(flat, program.call_spec.in_spec)
    with torch.no_grad():
        try:
            # the guards would refuse a size of 1, with which torch never traces
            return program.module(check_guards=False)(*args, **kwargs)
        except Exception as error:
            raise ExportFailed(
                f"the program failed: {export_failures.first_line(error)}",
                hint="compare the declared inputs with those it was exported for",
            ) from error
