"""The model that a plan is about, weighed: exported and fused, or known by its sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod

import numpy as np

from optkit import pipeline
from optkit.decoder import Decoder, DecoderSizes
from optkit.documents.plan import PlannedDecoder, PlannedGraph
from optkit.errors import UsageError
from optkit.execute.runner import Runner
from optkit.node_cost import NodeCost
from optkit.pipeline import Job
from optkit.prediction import shapes
from optkit.prediction.plans import Decoding, Graphed
from optkit.steps import GRAPH
from optkit.tensors import TensorInfo, axes_of, size_of

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Subject:
    """A model, what a plan says of it, and the batch sizes that it can have."""

    model: Graphed | Decoding
    facts: PlannedGraph | PlannedDecoder
    batches: tuple[int, ...]


def described(sizes: DecoderSizes, prompt: int, new_tokens: int) -> Subject:
    """A decoder that is known by its sizes alone."""
    shape, assumed = shapes.described(sizes)
    model = Decoding(shape, sizes.parameters, prompt, new_tokens)
    name = f"decoder-{sizes.parameters / 1e9:.3g}b"
    return Subject(model, _decoder(name, model, assumed), BATCHES)


def exported(job: Job, runner: Runner, prompt: int, new_tokens: int) -> Subject:
    """Export and fuse through the store, then weigh the graph."""
    from optkit import graph  # loads onnx_ir, which a decoder known by its sizes does not need

    if pipeline.parts(job.recipe, runner):
        raise UsageError(
            "an encoder-decoder consists of two graphs", where=job.recipe.name,
            hint="name one: --set model.part=encoder",
        )  # fmt: skip
    build = pipeline.run(job, runner, pipeline.FUSE)
    fused = graph.load(build.fused.path / GRAPH)
    recipe = build.job.recipe
    sizes = {axis: span.opt for axis, span in recipe.axis_ranges().items()}
    every = axes_of(dim for info in build.inputs for dim in info.shape)
    sizes = {**dict.fromkeys(every, 1), **sizes}
    name, axis = recipe.name, build.batch_axis
    count = graph.parameters(fused)
    decoder = Decoder.of(build.inputs, build.outputs)
    if decoder is not None:
        shape = shapes.of_graph(decoder, graph.costs(fused, sizes), count)
        model = Decoding(shape, count, prompt, new_tokens)
        return Subject(model, _decoder(name, model), BATCHES)

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
    smallest = _with_batch(sizes, axis, batches[0])
    passed = sum(_bytes(info, smallest) for info in (*build.inputs, *build.outputs))
    macs = sum(cost.macs or 0 for cost in at(batches[0]).values())
    facts = PlannedGraph(
        name=name, kind="graph", parameters=count, macs=macs // batches[0],
        axes={n: size for n, size in sizes.items() if n != axis}, assumed=(),
    )  # fmt: skip
    return Subject(Graphed(count, at, live, passed / batches[0]), facts, batches)


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
        one, macs=at("macs"), in_bytes=at("in_bytes"), out_bytes=at("out_bytes"),
        columns=two.columns, bits=two.bits,
    )  # fmt: skip


def _bytes(info: TensorInfo, sizes: Mapping[str, int]) -> int:
    """The size of one input or output. An axis that only an output has counts as 1."""
    width = 2 if info.dtype == "bfloat16" else np.dtype(info.dtype).itemsize
    sizes = {**dict.fromkeys(axes_of(info.shape), 1), **sizes}
    return width * prod(size_of(dim, sizes) for dim in info.shape)


def _decoder(name: str, model: Decoding, assumed: Sequence[str] = ()) -> PlannedDecoder:
    return PlannedDecoder(
        name=name, kind="decoder", parameters=round(model.parameters), shape=asdict(model.shape),
        prompt_tokens=model.prompt, new_tokens=model.new,
        kv_bytes_per_token_fp16=model.shape.kv_bytes(), assumed=tuple(assumed),
    )  # fmt: skip
