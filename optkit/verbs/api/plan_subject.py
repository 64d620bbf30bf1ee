"""The costs of the model of a plan: from its exported and fused graph, or only from its sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.craft.prediction import decoder_shape
from optkit.craft.prediction.planned_model import Decoding, OneCallModel, Quantized
from optkit.facts.assignment import Scheme
from optkit.facts.documents.plan import PlannedDecoder, PlannedGraph
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.node_cost import NodeCost
from optkit.facts.precisions import precision
from optkit.facts.request import Request
from optkit.facts.tensors import TensorInfo, axes_of, size_of
from optkit.ground import runtimes
from optkit.ground.decoder import PRESENT, Decoder, DecoderSizes, SpecialTokens, Windows, read_json
from optkit.ground.devices import target as find_target
from optkit.ground.execute.runner import Runner
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike
from optkit.road.jobs.batches import Batch
from optkit.road.pipeline import Build, Job
from optkit.road.steps.file_names import GRAPH

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch.nn import Module

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PlanSubject:
    """A model, its description in a plan, and the batch sizes that it can have."""

    model: OneCallModel | Decoding
    facts: PlannedGraph | PlannedDecoder
    batches: tuple[int, ...]


def described(sizes: DecoderSizes, prompt: int | None, new_tokens: int | None) -> PlanSubject:
    """A decoder of which only the sizes are known."""
    shape, assumed = decoder_shape.described(sizes)
    model = Decoding(shape, sizes.parameters, *_tokens(prompt, new_tokens, None))
    name = f"decoder-{sizes.parameters / 1e9:.3g}b"
    return PlanSubject(model, _decoder(name, model, assumed), BATCHES)


def load(
    model: Module | Request | str | Path | None,
    example_inputs: Batch | None,
    recipe: RecipeLike | None,
    workspace: Workspace,
    prompt: int | None,
    new_tokens: int | None,
) -> PlanSubject:
    """The graph of the model. Only its export runs, which is the same for every target."""
    runner = workspace.runner()
    job = jobs.job_of(
        model,
        example_inputs,
        jobs.pair("cpu", "fp32"),
        recipe=recipe,
        calibration=None,
        name=None,
        runner=runner,
    )
    return exported(job, runner, prompt, new_tokens)


def configured(content: bytes, where: str, prompt: int, new_tokens: int) -> PlanSubject:
    """A decoder of which only the config.json of Hugging Face is read, not the weights. Raises
    InputRefused for the configuration of another kind of model."""
    config = read_json(content, where)
    shape = decoder_shape.of_config(config, where)
    if (windows := Windows.of(config)) is not None:
        shape = replace(shape, window=windows.window, local_layers=windows.layers)
    positions = SpecialTokens.of(config, {}).context
    model = Decoding(shape, shape.parameters, prompt, new_tokens, positions)
    name = str(config.get("_name_or_path") or config.get("model_type") or "decoder")
    return PlanSubject(model, _decoder(name, model), BATCHES)


def exported(job: Job, runner: Runner, prompt: int | None, new_tokens: int | None) -> PlanSubject:
    """Export and fuse through the store, then compute the costs of the graph; for an
    encoder-decoder, of both graphs.

    Raises UsageError for a decoder that has fewer positions than the plan has tokens."""
    if not pipeline.parts(job.recipe, runner):
        return _fused(job, runner, prompt, new_tokens)
    encoder, decoder = (
        _fused(_part(job, part), runner, prompt, new_tokens) for part in ("encoder", "decoder")
    )
    if not isinstance(encoder.model, OneCallModel) or not isinstance(decoder.model, Decoding):
        raise UsageError(
            "encoder and decoder of this model cannot be planned together",
            where=job.recipe.name,
            hint="name one: --set model.part=encoder",
        )
    parameters = encoder.model.parameters + decoder.model.parameters
    model = replace(decoder.model, parameters=parameters, encoder=encoder.model)
    batches = encoder.batches if len(encoder.batches) < len(BATCHES) else BATCHES
    return PlanSubject(model, _decoder(job.recipe.name, model), batches)


def _part(job: Job, part: str) -> Job:
    return replace(job, recipe=job.recipe.with_overrides([f"model.part={part}", f"name={part}"]))


def _fused(job: Job, runner: Runner, prompt: int | None, new_tokens: int | None) -> PlanSubject:
    """A model of one graph."""
    from optkit.ground import (
        graph,  # loads onnx_ir, which a decoder known by its sizes does not need
    )

    build = pipeline.run(job, runner, pipeline.FUSE)
    fused = graph.load(build.fused.path / GRAPH)
    recipe = build.job.recipe
    sizes = {axis: found.opt for axis, found in recipe.axis_ranges().items()}
    every = axes_of(dim for info in build.inputs for dim in info.shape)
    sizes = {**dict.fromkeys(every, 1), **sizes}
    count = graph.parameters(fused)
    decoder = Decoder.of(build.inputs, build.outputs)
    if decoder is not None and decoder.cache:
        shape = decoder_shape.of_graph(decoder, graph.costs(fused, sizes), count)
        shape = replace(shape, crossed=_crossed(decoder, sizes))
        if (windows := pipeline.windows(build, runner)) is not None:
            shape = replace(shape, window=windows.window, local_layers=windows.layers)
        positions = pipeline.positions(build, runner)
        model = Decoding(shape, count, *_tokens(prompt, new_tokens, positions), positions)
        _check_positions(model, recipe.name)
        return PlanSubject(model, _decoder(recipe.name, model), BATCHES)
    return _graphed(fused, build, sizes)


def _crossed(decoder: Decoder, sizes: Mapping[str, int]) -> int:
    """The number of the encoder's tokens that the cross attention reads."""
    lengths = (info.shape[2] for info in decoder.crossed if len(info.shape) == 4)
    return next((size_of(length, sizes) for length in lengths), 0)


_PROMPT, _NEW = 1_024, 256  # default numbers of tokens that are read and written


def _tokens(prompt: int | None, new: int | None, positions: int | None) -> tuple[int, int]:
    """Numbers of tokens that are read and written. Defaults shrink to fit into the positions."""
    most = positions or _PROMPT + _NEW + (prompt or 0) + (new or 0)
    if new is None:
        new = min(_NEW, max(1, most // 5 if prompt is None else most - prompt))
    if prompt is None:
        prompt = min(_PROMPT, max(1, most - new))
    return prompt, new


def _check_positions(model: Decoding, name: str) -> None:
    tokens = model.prompt + model.new
    if model.positions is not None and tokens > model.positions:
        raise UsageError(
            f"{model.prompt:,} tokens read and {model.new:,} written are {tokens:,}, but the model "
            f"has {model.positions:,} positions",
            where=name,
            hint="lower --prompt or --new",
        )


def _graphed(fused: ir.Model, build: Build, sizes: Mapping[str, int]) -> PlanSubject:
    """A model that computes its outputs in one call."""
    from optkit.ground import graph

    axis = build.batch_axis

    @cache
    def at(batch: int) -> Mapping[str, NodeCost]:
        costs = graph.costs(fused, _with_batch(sizes, axis, batch))
        if isinstance(axis, str) and batch == 1:  # sizes that broadcast with 1 stay unknown
            return {n: _before(c, at(2)[n], at(4)[n]) for n, c in costs.items()}
        return costs

    @cache
    def live(batch: int) -> int:
        if isinstance(axis, str) and batch == 1:
            return live(2) - (live(4) - live(2)) // 2
        return graph.peak_live_bytes(fused, _with_batch(sizes, axis, batch))

    batches = (axis,) if isinstance(axis, int) else BATCHES if axis is not None else (1,)
    one, count = _with_batch(sizes, axis, batches[0]), graph.parameters(fused)
    caches = re.compile(rf"{PRESENT}\.\d+\..+")  # which stay on the device for the decoder
    cached = [info for info in build.outputs if caches.fullmatch(info.name)]
    copied = (*build.inputs, *(info for info in build.outputs if info not in cached))
    passed, read, kept = (
        sum(_bytes(info, one) for info in of) / batches[0] for of in (copied, build.inputs, cached)
    )
    macs = sum(found.macs or 0 for found in at(batches[0]).values())
    facts = PlannedGraph(
        name=build.job.recipe.name,
        kind="graph",
        parameters=count,
        macs=macs // batches[0],
        axes={n: size for n, size in sizes.items() if n != axis},
        assumed=(),
    )
    model = OneCallModel(count, at, live, passed, read, kept, _placement(fused, build.job))
    return PlanSubject(model, facts, batches)


def _placement(fused: ir.Model, job: Job) -> Callable[[str, str], Quantized]:
    """What a build of the job quantizes for a target in a precision, as far as the graph decides:
    the ranges of a calibration may keep further nodes in float."""

    @cache
    def quantized(target: str, number: str) -> Quantized:
        from optkit.craft.quantization.placement.assign import assign

        of = replace(job, target=find_target(target), precision=precision(number))
        backends = [runtimes.backend(option.name) for option in of.target.default_backends]
        able = [each for each in backends if each.refuses(of.target, of.precision) is None]
        if not able or not of.precision.quantized:
            return None
        scheme = Scheme(of.precision, of.precision.carrier, pipeline.rules_of(able[0], of))
        try:
            return assign(fused, scheme, overrides=job.recipe.quantization.nodes).quantized()
        except InputRefused:  # all products are in bodies of If and Loop
            return {}

    return quantized


def _with_batch(sizes: Mapping[str, int], axis: int | str | None, batch: int) -> dict[str, int]:
    return {**sizes, axis: batch} if isinstance(axis, str) else dict(sizes)


def _before(one: NodeCost, two: NodeCost, four: NodeCost) -> NodeCost:
    """The cost at batch 1; what is unknown there lies on the line through batches 2 and 4."""

    def at(name: str) -> int | None:
        size, a, b = getattr(one, name), getattr(two, name), getattr(four, name)
        if size is not None or a is None or b is None:
            return size  # type: ignore[no-any-return]
        return int(a - (b - a) // 2)

    return replace(
        one,
        macs=at("macs"),
        in_bytes=at("in_bytes"),
        out_bytes=at("out_bytes"),
        columns=two.columns,
        bits=two.bits,
    )


def _bytes(info: TensorInfo, sizes: Mapping[str, int]) -> int:
    """The size of one input or output. An axis that only an output has counts as 1."""
    width = 2 if info.dtype == "bfloat16" else np.dtype(info.dtype).itemsize
    sizes = {**dict.fromkeys(axes_of(info.shape), 1), **sizes}
    return width * prod(size_of(dim, sizes) for dim in info.shape)


def _decoder(name: str, model: Decoding, assumed: Sequence[str] = ()) -> PlannedDecoder:
    return PlannedDecoder(
        name=name,
        kind="decoder",
        parameters=round(model.parameters),
        shape=asdict(model.shape),
        prompt_tokens=model.prompt,
        new_tokens=model.new,
        kv_bytes_per_token_fp16=model.shape.kv_bytes(),
        assumed=tuple(assumed),
    )
