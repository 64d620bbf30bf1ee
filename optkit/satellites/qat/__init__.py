"""Quantization-aware training for the graph that a build will write.

    net = qat.prepare(net, example, target="l4", calibration=loader)     before the training
    ...                                                                  a training like any other
    optkit.build(qat.finalize(net), example, target="l4", ...)           after it
    qat.export(net, example, out="trained")                              or a file for the command

`prepare` builds the model until it is quantized, reads from the Q/DQ graph what is quantized where,
and computes the same in the module. `finalize` gives the float module with the trained weights and
the trained scales; a build writes its Q/DQ graph from them with the same codes and scales.

    quantization_plan   what a build would quantize
    placing             its place in the module
    equalization        the factors that a build moves between layers, in the parameters
    initialization      the codes and biases of the build, as the start
    fake_quantization   the arithmetic, with gradients
    agreement           whether the module computes what the graph does
    adapters            small float matrices beside quantized layers
    frozen              the weights of a build in the module, and where adapters start
    products            convolutions and linear layers, and BatchNorm folded into them
    additions           additions in the code of a module
    activations         results of modules that have no parts
    derived             the classes that modules have meanwhile
    distillation        a loss against the float module, without labels
    training            a short training with it, for a person who trains nothing else
    calls               a module called with a batch
    checks              what a caller may give
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch.nn import Identity, Module

from optkit.craft.sources import wrappers
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target
from optkit.ground.trained_scales import (
    BlockScales,
    TrainedActivation,
    TrainedScales,
    TrainedWeight,
)
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike
from optkit.road.jobs.batches import Batch
from optkit.road.pipeline import delivery
from optkit.road.steps.file_names import GRAPH
from optkit.satellites.qat import activations, additions, equalization, frozen, placing, products
from optkit.satellites.qat.adapters import merge, paths, save
from optkit.satellites.qat.agreement import alike, check_same, results
from optkit.satellites.qat.checks import (
    check_batches,
    check_count,
    check_example,
    new_folder,
    unwrapped,
)
from optkit.satellites.qat.distillation import Distillation, Teacher, remove_recorders
from optkit.satellites.qat.fake_quantization import ActivationQuantizer
from optkit.satellites.qat.initialization import initialize
from optkit.satellites.qat.quantization_plan import QuantizationPlan, plan
from optkit.satellites.qat.training import Distilled, distill, parameter_groups

__all__ = [
    "Distillation",
    "Distilled",
    "distill",
    "export",
    "finalize",
    "parameter_groups",
    "prepare",
    "prepare_adapters",
    "save_adapters",
]

Scales = Literal["learned", "fixed"]
Adapters = Literal["keep", "merge"]
PRECISIONS = ("int8", "fp8", "int4", "w4a8", "int2")
ADAPTED = ("int4", "w4a8", "int2", "nf4")


def prepare(
    model: Module,
    example_inputs: Batch,
    *,
    target: str | Target,
    precision: str | Precision = "int8",
    recipe: RecipeLike | None = None,
    calibration: Iterable[Batch] | None = None,
    scales: Scales = "learned",
    workspace: Workspace = Workspace(),
) -> Module:
    """A copy of the module that computes with the numbers of the quantized graph, to be trained.

    The parameters keep their names, and a state of the float model can be loaded. BatchNorm after a
    product is folded, with its statistics as they are. Where the build equalizes the channels of
    layers, the parameters have its factors. With learned scales, weights and biases start with the
    codes of the build, GPTQ and bias correction included: each weight becomes the number nearest to
    it with this code. A weight that modules share stays as it is.

    target, precision, recipe, calibration, workspace: as for `optkit.build`.
    scales: "learned": the scales are parameters (LSQ, arXiv:1902.08153), which start with those of
        the build; "fixed": activations keep the scales of the build, and those of weights follow
        the weights, which start as they are.

    Raises what `build` raises; UsageError for a precision that is not in PRECISIONS; InputRefused
    for a node that qat cannot quantize (the hint leaves it in float), or if the module does not
    compute what the quantized graph does.
    """
    if scales not in ("learned", "fixed"):
        raise UsageError(
            f"{scales!r} is no kind of scales", where="scales=", hint="learned or fixed"
        )
    pair = jobs.pair(target, precision)
    if pair[1].name not in PRECISIONS:
        raise UsageError(
            f"it does not train {pair[1]}", where="precision=", hint=" or ".join(PRECISIONS)
        )
    trained = _copied(model, example_inputs, calibration)
    _fold(trained, example_inputs)
    if iter(calibration or ()) is calibration:  # it may be read twice
        calibration = list(calibration)
    learned = scales == "learned"
    planned = partial(
        plan, _plain(trained), example_inputs, pair, recipe, calibration, workspace.runner(),
        rounding="start" if learned else "nearest",
    )  # fmt: skip
    found = planned(equalized=True)
    factors = equalization.equalize(trained, example_inputs, found)
    if factors is None:
        found, factors = planned(equalized=False), {}
    equalization.scale_states(trained, factors)
    placing.place(trained, found, learned=learned)
    starts = initialize(trained, found) if learned else {}
    trained.qat_plan = found  # type: ignore[assignment]
    trained.qat_teacher = Teacher(wrappers.unwrapped(model), factors)  # type: ignore[assignment]
    check_same(trained, example_inputs, found, starts)
    return trained


def prepare_adapters(
    model: Module,
    example_inputs: Batch,
    *,
    target: str | Target,
    precision: str | Precision = "int4",
    rank: int | None = None,
    recipe: RecipeLike | None = None,
    calibration: Iterable[Batch] | None = None,
    workspace: Workspace = Workspace(),
) -> Module:
    """A copy of the module whose linear layers have the codes and scales of a build, which stay as
    they are, and an adapter each, which is trained (QLoRA). BatchNorm is folded into weights.

    The codes are those of the build without its smoothing of activations: GPTQ, unless the recipe
    says otherwise. The adapters start with what the SVD of the error of the codes gives.

    target, recipe, calibration, workspace: as for `optkit.build`.
    precision: one of ADAPTED.
    rank: None: for each layer the one whose matrices add a quarter to the bytes of its codes.

    Raises what `build` raises; UsageError for a precision that is not in ADAPTED, for AWQ, and for
    a rank that is no whole number from 1 on or is larger than a weight; InputRefused if no linear
    layer is quantized in 4 bits or fewer, or as `prepare` does.
    """
    pair = jobs.pair(target, precision)
    if pair[1].name not in ADAPTED:
        raise UsageError(
            f"it trains no adapters for {pair[1]}", where="precision=", hint=" or ".join(ADAPTED)
        )
    if rank is not None:
        check_count("rank=", rank, "give a whole number from 1 on, or None")
    trained = _copied(model, example_inputs, calibration)
    _fold(trained, example_inputs)
    trained = _plain(trained)
    found = plan(
        trained,
        example_inputs,
        pair,
        recipe,
        calibration,
        workspace.runner(),
        rounding="frozen",
        equalized=False,
    )
    placing.place(trained, found, learned=False)
    lost = frozen.freeze(trained, found)
    check_same(trained, example_inputs, found, {})
    frozen.attach(lost, found, rank)
    trained.qat_plan = found  # type: ignore[assignment]
    trained.qat_teacher = Teacher(wrappers.unwrapped(model), {})  # type: ignore[assignment]
    return trained


def finalize(model: Module, *, adapters: Adapters = "keep") -> Module:
    """The float module with the trained weights, in evaluation mode, for `optkit.build`: without
    quantizers, with BatchNorm in the weights, and with the trained scales in its attribute
    `trained_scales`. `model` does not change; it may be in the wrappers of torch.compile, DDP or
    AveragedModel.

    adapters: "keep": they stay beside the quantized layers, in floats; "merge": they are added to
        the weights, which a build then rounds again, without trained scales.

    Raises UsageError for a module that `prepare` or `prepare_adapters` did not return, and for
    adapters to merge where there are none."""
    if adapters not in ("keep", "merge"):
        raise UsageError(
            f"{adapters!r} is not what becomes of adapters", where="adapters=", hint="keep or merge"
        )
    module = wrappers.unwrapped(model)
    found = getattr(module, "qat_plan", None)
    if not isinstance(found, QuantizationPlan):
        raise UsageError(
            "it was not prepared",
            where=type(module).__name__,
            hint="train the module that optkit.qat.prepare returns",
        )
    plain = _plain(module)
    if adapters == "keep":
        plain.trained_scales = _trained(module, found)  # type: ignore[assignment]
        return plain
    if not paths(plain):
        raise UsageError(
            "it has no adapters to merge",
            where=type(module).__name__,
            hint="train what optkit.qat.prepare_adapters returns",
        )
    merge(plain)
    return plain


def export(
    model: Module,
    example_inputs: Batch,
    *,
    out: str | Path,
    adapters: Adapters = "keep",
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Path:
    """Write `finalize(model, adapters=adapters)` as `model.onnx` into the new folder `out`: a float
    graph that carries the trained scales, for `optkit build`. Returns the file. Raises UsageError
    if `out` exists, or as `finalize` does; ExportFailed."""
    place = new_folder(out)
    runner = workspace.runner()
    job = jobs.job_of(
        finalize(model, adapters=adapters),
        example_inputs,
        jobs.pair("cpu", "fp32"),
        recipe=recipe,
        calibration=None,
        name=None,
        runner=runner,
    )
    graph = pipeline.run(job, runner, pipeline.EXPORT).source
    delivery.copy_out(graph, place, graph.meta)
    return place / GRAPH


def save_adapters(model: Module, out: str | Path) -> Path:
    """Write the adapters alone into the new folder `out`, as PEFT saves a LoRA adapter. They fit
    the artifact of a build of the float model with the same recipe and `quantization.smooth: off`:
    `optkit package --format lora` puts several beside its codes. Returns the folder. Raises
    UsageError for a module without adapters, or if `out` exists."""
    module = unwrapped(model)
    if not paths(module):
        raise UsageError(
            "it has no adapters to save",
            where=type(module).__name__,
            hint="train what optkit.qat.prepare_adapters returns",
        )
    place = new_folder(out)
    save(module, place)
    return place


def _copied(model: Module, example_inputs: Batch, calibration: Iterable[Batch] | None) -> Module:
    """A copy to prepare. Raises UsageError for a module that is prepared already, and for objects
    that are no batches; InputRefused for parameters that are not float32 and for a module that
    cannot be copied."""
    module = unwrapped(model)
    check_example(example_inputs)
    if calibration is not None:
        check_batches("calibration=", calibration)
    where = type(module).__name__
    if isinstance(getattr(module, "qat_plan", None), QuantizationPlan):
        raise UsageError(
            "it is prepared already",
            where=where,
            hint="give the float module, or finalize this one first",
        )
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise InputRefused(
                f"its parameter {name!r} is {parameter.dtype}",
                where=where,
                hint="train it in float32: model.float()",
            )
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of what the module holds besides its weights
        raise InputRefused(f"the module cannot be copied: {error}", where=where) from error


def _fold(model: Module, example_inputs: Batch) -> None:
    """Fold BatchNorm into the products before it, except where that changes the outputs, because
    another layer reads the result of the product too."""
    with wrappers.evaluating(model):
        before = results(model, example_inputs)
        pairs = products.foldable(model, lambda: results(model, example_inputs))
        for product, norm in pairs:
            products.fold(product, norm)
        if alike(before, results(model, example_inputs)):
            return
        for product, norm in pairs:
            products.unfold(product, norm)
        for product, norm in pairs:
            products.fold(product, norm)
            if not alike(before, results(model, example_inputs)):
                products.unfold(product, norm)


def _plain(model: Module) -> Module:
    """A copy without quantizers, with BatchNorm in the weights."""
    plain = copy.deepcopy(model).eval()
    vars(plain).pop("qat_plan", None)
    vars(plain).pop("qat_teacher", None)
    vars(plain).pop("qat_factors", None)
    remove_recorders(plain)
    for part in list(plain.modules()):
        if isinstance(part, products.Product):
            products.as_plain(part)
        elif isinstance(part, additions.QuantizedAdditions):
            additions.as_plain(part)
        elif isinstance(part, activations.QuantizedResult):
            activations.as_plain(part)
    for part in list(plain.modules()):
        for name, child in part.named_children():
            if isinstance(child, products.FoldedNorm) and not list(child.children()):
                setattr(part, name, Identity())
    return plain


@torch.no_grad()
def _trained(model: Module, found: QuantizationPlan) -> TrainedScales:
    activations, weights = {}, {}
    for part in model.modules():
        if isinstance(part, ActivationQuantizer):
            activations[part.value] = TrainedActivation(part.used_scale().item(), part.zero_point)
        elif isinstance(part, products.Product) and part.weight_quantizer is not None:
            quantizer, scale = part.weight_quantizer, part.used_weight_scale().cpu().numpy()
            if quantizer.common is not None:
                weight = TrainedWeight(quantizer.common, tuple(scale.tolist()))
            elif scale.ndim == 2:
                weight = TrainedWeight(BlockScales.of(scale))
            else:
                weight = TrainedWeight(tuple(scale.tolist()) if scale.ndim else float(scale))
            weights[quantizer.node] = weight
    return TrainedScales(found.target, found.precision, activations, weights, tuple(paths(model)))
