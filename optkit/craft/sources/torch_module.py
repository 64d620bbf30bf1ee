"""Exports an nn.Module to an ONNX graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optkit.craft.sources import (
    adaptive_pools,
    attention_masks,
    constant_branches,
    embedding_bags,
    export_check,
    export_failures,
    guards,
    in_float64,
    one_hot,
    pool_sizes,
    program_to_onnx,
    recurrences,
    single_chunks,
    tensor_lengths,
    ties,
    toolchain,
    ultralytics_heads,
)
from optkit.craft.sources.comparison_trials import feed_at, trials
from optkit.craft.sources.disagreement import Witness
from optkit.craft.sources.dynamic_axes import fix_single_sizes, traced_sizes
from optkit.craft.sources.export_log import ExportLog
from optkit.craft.sources.module_state import changed, unchanged
from optkit.craft.sources.outputs import arrays, leaves, names_apart, register
from optkit.craft.sources.wrappers import evaluating, unwrapped
from optkit.facts.errors import InputRefused, OptkitError, UsageError
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground.graph.activation_bytes import Activations
from optkit.ground.runtimes import Progress, Session
from optkit.ground.trained_scales import KEY, TrainedScales

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn
    from torch.export import ExportedProgram

Bind = Callable[[Mapping[str, object]], inspect.BoundArguments]
"""Values by input name → arguments of `forward`."""


def export(
    module: nn.Module,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    *,
    session: Callable[[Path], Session],
    progress: Progress,
    outputs: Sequence[str] | None = None,
    owned: bool = False,
    samples: Sequence[Feed] = (),
    compared: Mapping[str, AxisRange] | None = None,
) -> ExportLog:
    """Write the graph of the module to `out`, and compare both (see `comparison_trials`).

    The module does not change (training mode, device). Its attribute `trained_scales`, which
    `optkit.qat.finalize` sets, becomes metadata of the graph. specs: for the parameters of
    `forward` with their names, or else in order. outputs: names of the outputs; by default
    dictionary keys and field names, else "output". An axis of one size becomes static. owned: the
    caller does not need the module any more, so large weights are freed once the graph is written.
    samples: the user's, of one sample each. compared: the ranges of the comparison, or else `axes`.

    Raises ExportFailed, or ToolchainMissing without torch.
    """
    toolchain.require()
    _check_declared(module, specs)
    module = unwrapped(module)
    specs, axes = fix_single_sizes(specs, axes)
    feed = feed_at(specs, axes, samples, traced_sizes(axes))
    bind = _binding(module, specs)
    with _exporting(module), unchanged(module):
        progress("running the model", 0.1)
        with unchanged(module):
            returned = _call(module, bind, feed, specs)
        names = _output_names(returned, specs, outputs)
        register(returned)
        progress("capturing the model", 0.2)
        program = _capture(module, bind, specs, axes, feed)
        progress("translating to ONNX", 0.4)
        model = program_to_onnx.translate(program, _in_order(bind(_by_name(specs))), names)
        _write(model, module, out)
        wide = axes if compared is None else {name: compared[name] for name in axes}
        with ties.lower_index_first(program):
            reference = partial(_outputs, module, bind, specs, names)
            runs, needs = trials(specs, wide, samples), Activations(model)
            expected = export_check.expected(reference, runs, needs, progress)
            told = attention_masks.told(module, reference, expected)
    described, returned = program_to_onnx.describe(model)
    nodes = len(model.graph)
    witness = None
    if not owned or toolchain.bytes_of(module) <= export_check.KEPT:
        witness = _witness(module, bind, specs, names, program, out, session)
    else:  # before the runtime also holds them
        del model, program
        toolchain.release((*module.parameters(), *module.buffers()))
    with session(out) as runner:
        checks = export_check.check(expected.cases, runner, witness)
    log = ExportLog("python", described, returned, program_to_onnx.OPSET, nodes, checks)
    told += export_check.warnings(expected, checks)
    return replace(log, left_out=expected.left_out, warnings=told)


def _write(model: ir.Model, module: nn.Module, out: Path) -> None:
    """With the scales that the module was trained with."""
    trained = getattr(module, "trained_scales", None)
    if isinstance(trained, TrainedScales):
        model.metadata_props[KEY] = trained.text()
    program_to_onnx.write(model, out)


def _outputs(
    module: nn.Module, bind: Bind, specs: Sequence[InputSpec], names: Sequence[str], feed: Feed
) -> Feed:
    return arrays(_call(module, bind, feed, specs), names)


@contextmanager
def _exporting(module: nn.Module) -> Iterator[None]:
    """The module computes what its graph does."""
    with evaluating(module), ultralytics_heads.exported(module), attention_masks.as_given():
        yield


def _witness(
    module: nn.Module,
    bind: Bind,
    specs: Sequence[InputSpec],
    names: Sequence[str],
    program: ExportedProgram,
    graph: Path,
    session: Callable[[Path], Session],
) -> Witness:
    def run(module: nn.Module, feed: Feed) -> Feed:
        with _exporting(module), ties.lower_index_first(program):
            return _outputs(module, bind, specs, names, feed)

    ordered = _in_order(bind(_by_name(specs)))
    return Witness(
        ordered,
        partial(run, module),
        partial(in_float64.exact, module, run),
        program,
        lambda: program_to_onnx.decomposed(program, ordered),
        lambda feed: changed(module, lambda: run(module, feed)),
        graph,
        session,
    )


def _check_declared(module: nn.Module, specs: Sequence[InputSpec]) -> None:
    if not specs:
        names = tuple(inspect.signature(module.forward).parameters)
        raise undeclared(f"{type(module).__name__}.forward({', '.join(names)})", names)


def undeclared(where: str, names: Sequence[str] = ()) -> InputRefused:
    """A model whose inputs the recipe does not declare. `names`: those of forward, if it was
    loaded."""
    example = f"inputs: {{{names[0] if names else 'x'}: {{dtype: float32, shape: [batch, ...]}}}}"
    return InputRefused(
        "the recipe does not declare the inputs of the Python model",
        where=where,
        hint=f"add dtype and shape of each to the recipe, {example}; `optkit init MODEL` writes "
        "a recipe that does; or give --calibration FILE.npz with one array of samples for each",
    )


def named(module: nn.Module, example: object) -> Feed:
    """Example inputs (a tensor, a tuple of them, or a dict) by the names of forward's parameters.

    Raises UsageError if forward does not take them.
    """
    signature = inspect.signature(unwrapped(module).forward)
    try:
        if isinstance(example, Mapping):
            bound = signature.bind(**example)
        else:
            bound = signature.bind(*(example if isinstance(example, tuple | list) else [example]))
    except TypeError as error:
        raise UsageError(
            f"forward{signature} does not take the example inputs: {error}",
            where=type(module).__name__,
            hint="give a tensor, a tuple in order, or a dict by argument name",
        ) from error
    flat: dict[str, object] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            flat |= {f"{name}_{index}": part for index, part in enumerate(value)}
        else:
            flat |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return {name: _as_array(value, name) for name, value in flat.items()}


def runs(module: nn.Module, feed: Feed) -> bool:
    """Whether the module runs on these arrays, [batch, …] each, by the names of `named`."""
    specs = [InputSpec(TensorInfo(n, str(array.dtype), array.shape)) for n, array in feed.items()]
    module = unwrapped(module)
    with evaluating(module), unchanged(module):
        try:
            _call(module, _binding(module, specs), feed, specs)
        except OptkitError:
            return False
    return True


def _as_array(value: object, name: str) -> np.ndarray:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, np.ndarray):
        return value
    raise UsageError(
        f"example input {name!r} is {type(value).__name__}",
        hint="give tensors or numpy arrays of float32, float16, integers or bool",
    )


def _binding(module: nn.Module, specs: Sequence[InputSpec]) -> Bind:
    """How inputs are passed to `forward`: by name if it has parameters of these names, otherwise in
    order."""
    signature = inspect.signature(module.forward)
    names = [spec.info.name for spec in specs]
    by_name = set(names) <= set(signature.parameters)

    def bind(values: Mapping[str, object]) -> inspect.BoundArguments:
        if by_name:
            return signature.bind(**{name: values[name] for name in names})
        return signature.bind(*(values[name] for name in names))

    try:
        bind(_by_name(specs))
    except TypeError as error:
        raise InputRefused(
            f"forward{signature} cannot be called with the inputs {', '.join(names)}: {error}",
            where=type(module).__name__,
            hint="name the inputs after forward's parameters, and give all that it requires "
            "(an .npz of samples has an array for each)",
        ) from error
    return bind


def _by_name(specs: Sequence[InputSpec]) -> dict[str, InputSpec]:
    return {spec.info.name: spec for spec in specs}


def _in_order(bound: inspect.BoundArguments) -> list[InputSpec]:
    """The inputs as torch orders them: positional ones, then keywords."""
    return [*bound.args, *bound.kwargs.values()]


def _call(module: nn.Module, bind: Bind, feed: Feed, specs: Sequence[InputSpec]) -> object:
    import torch

    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else "cpu"
    bound = bind(_tensors(feed, device))
    with torch.no_grad():
        try:
            return module(*bound.args, **bound.kwargs)
        except Exception as error:
            raise export_failures.call(error, module, feed, specs) from error


def _tensors(feed: Feed, device: Any) -> dict[str, object]:
    """Copies, because forward may work in place."""
    import torch

    return {name: torch.from_numpy(a.copy()).to(device) for name, a in feed.items()}


def _output_names(
    returned: object, specs: Sequence[InputSpec], given: Sequence[str] | None
) -> tuple[str, ...]:
    inputs = {spec.info.name for spec in specs}
    names = names_apart(leaves(returned), inputs)
    if given is not None and len(given) != len(names):
        raise UsageError(
            f"{len(given)} output names for {len(names)} outputs",
            where=", ".join(names),
            hint="give one name per tensor that the model returns",
        )
    return names if given is None else names_apart(given, inputs)


def _capture(
    module: nn.Module,
    bind: Bind,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    feed: Feed,
) -> ExportedProgram:
    import torch

    # an axis that may be empty: torch cannot prove what follows from such a Dim
    dims = {
        name: torch.export.Dim(name, min=axis.min, max=axis.max)
        for name, axis in axes.items()
        if axis.min
    }
    shapes = {
        spec.info.name: {
            # a Dim cannot be the sum of two: torch finds out that the axis is one
            i: dims.get(dim, torch.export.Dim.DYNAMIC)
            for i, dim in enumerate(spec.info.shape)
            if isinstance(dim, str)
        }
        for spec in specs
    }
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else "cpu"
    example = bind(_tensors(feed, device))
    dynamic = bind(shapes).arguments

    multiples = {name: axis.multiple for name, axis in axes.items()}

    def captured(*, deferred: bool) -> ExportedProgram:
        return torch.export.export(
            module, example.args, example.kwargs, dynamic_shapes=dynamic,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )  # fmt: skip

    with (
        toolchain.quiet(),
        adaptive_pools.open_bins(),
        embedding_bags.gathered(),
        one_hot.compared(),
        pool_sizes.unasked(),
        recurrences.kept(),
        single_chunks.unasked(),
        tensor_lengths.symbolic(module),
        unchanged(module),
    ):
        try:
            return _captured(captured, module, multiples)
        except Exception as error:
            raise export_failures.capture(error, module) from error


def _captured(
    capture: Callable[..., ExportedProgram], module: nn.Module, multiples: Mapping[str, int]
) -> ExportedProgram:
    """The program. Branches on the module's own buffers are decided only if torch refuses them."""
    try:
        return _provable(capture, multiples)
    except Exception as error:
        if not export_failures.is_data_dependent(error):
            raise
    with constant_branches.decided(module):
        return _provable(capture, multiples)


def _provable(
    capture: Callable[..., ExportedProgram], multiples: Mapping[str, int]
) -> ExportedProgram:
    """The program, without the conditions that torch cannot prove although they hold for every
    size. If others are left, the sizes that are 1 count as all others: the comparison shows whether
    the graph is right there."""
    from torch.fx.experimental import _config

    config: Any = _config
    try:
        return _proven(capture, multiples)
    except Exception as error:
        if not export_failures.fixes_sizes(error):
            raise
        with config.patch(backed_size_oblivious=True):
            try:
                return _proven(capture, multiples)
            except Exception:  # of a setting that torch calls experimental
                raise error from None


def _proven(
    capture: Callable[..., ExportedProgram], multiples: Mapping[str, int]
) -> ExportedProgram:
    try:
        return capture(deferred=False)
    except Exception as error:
        if not guards.hold(str(error), multiples):
            raise
    return capture(deferred=True)
