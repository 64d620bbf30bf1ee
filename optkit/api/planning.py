"""`plan`: what a model would take on targets before anything is built, all of it predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from optkit import pipeline
from optkit.api import objects, request
from optkit.devices import Target
from optkit.devices import target as find_target
from optkit.errors import Impossible, OptkitError, ToolchainMissing, UsageError, unknown_name
from optkit.execute.runner import Listener, Runner
from optkit.pipeline import Job
from optkit.precisions import PRECISIONS, precision
from optkit.recipe import Recipe
from optkit.tensors import TensorInfo, axes_of, size_of

if TYPE_CHECKING:  # opens graphs, which a described decoder does not need
    from optkit.graph import NodeCost
    from optkit.prediction.plans import Decoding, Graphed

SCHEMA = "optkit.plan/v1"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# What is planned where no precision is named, as far as the target has it.
_USUAL = ("fp16", "int8", "fp8", "int4")


@dataclass(frozen=True)
class Wishes:
    """What a plan is asked. `limit_ms`: of one call (of a decoder: of one token). `throughput`:
    samples (of a decoder: written tokens) per second. `prompt`, `new`: tokens per sequence."""

    targets: tuple[str, ...]
    precisions: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    prompt: int = 1024
    new: int = 256
    limit_ms: float | None = None
    throughput: float | None = None
    prices: Path | None = None
    methods: tuple[str, ...] = ()
    quick: bool = False


@dataclass(frozen=True)
class Description:
    """A decoder by its sizes, without a model. `tied`: its embedding is the vocabulary projection
    too (config.json: tie_word_embeddings)."""

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    heads: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    tied: bool = False


@dataclass(frozen=True)
class _Subject:
    name: str
    model: Graphed | Decoding
    facts: Mapping[str, Any]
    batches: tuple[int, ...]
    assumed: tuple[str, ...] = field(default=())


def plan(
    model: Any = None,
    example_inputs: Any = None,
    *,
    target: str | Iterable[str],
    precision: str | Iterable[str] = (),
    batches: Iterable[int] = (),
    decoder: Mapping[str, Any] | None = None,
    prompt: int = 1024,
    new_tokens: int = 256,
    latency_ms: float | None = None,
    throughput: float | None = None,
    prices: str | Path | None = None,
    training: Iterable[str] = (),
    quick: bool = False,
    recipe: str | Path | Mapping[str, Any] | None = None,
    cache: str | Path | None = None,
    memory: int | None = None,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Predict latency, throughput, memory and cost of MODEL on each target and precision.

    `decoder` instead of a model: {"parameters", "layers", "kv_heads", "head_dim"} and, where known,
    "heads", "hidden", "ffn", "vocabulary", "tied". `training`: "full", "lora", "qlora". Returns the
    object of `optkit plan --json` (schema optkit.plan/v1). Raises UsageError, UnknownName,
    Impossible for a precision that was named and a target cannot do, and whatever exporting a model
    raises.
    """
    wishes = Wishes(
        _named(target), _named(precision), tuple(batches), prompt, new_tokens, latency_ms,
        throughput,
        None if prices is None else Path(prices), tuple(training), quick,
    )  # fmt: skip
    if decoder is not None:
        if model is not None:
            raise UsageError("a model and a description of one exclude each other", where="decoder")
        found = plan_described(_description(decoder), wishes)
    else:
        runner = request.open_runner(
            cache=None if cache is None else Path(cache), memory=memory, listener=listener
        )
        if model is None or isinstance(model, str | Path):
            settings = request.resolve(None if model is None else str(model), recipe=recipe)
            job = _job(settings)
        else:
            job = objects.job(
                model, example_inputs, recipe, None, request.pair("cpu", "fp32"), runner
            )
        found = _plan(_exported(job, runner, wishes), wishes)
    if found["error"] is not None:
        raise Impossible(found["error"]["message"], where=found["error"]["where"],
                         hint=found["error"]["hint"])  # fmt: skip
    return found


def plan_one(*, recipe: Recipe, wishes: Wishes, runner: Runner) -> dict[str, Any]:
    """The plan of a recipe's model. A pair that is impossible is a row, and the plan's `error`."""
    return _plan(_exported(_job(recipe), runner, wishes), wishes)


def plan_described(description: Description, wishes: Wishes) -> dict[str, Any]:
    """The plan of a decoder that is known by its sizes alone."""
    from optkit.prediction import shapes
    from optkit.prediction.plans import Decoding

    d = description
    shape, assumed = shapes.described(
        d.parameters, layers=d.layers, kv_heads=d.kv_heads, head_dim=d.head_dim, heads=d.heads,
        hidden=d.hidden, ffn=d.ffn, vocabulary=d.vocabulary, tied=d.tied,
    )  # fmt: skip
    model = Decoding(shape, d.parameters, wishes.prompt, wishes.new)
    name = f"decoder-{d.parameters / 1e9:.3g}b"
    return _plan(_Subject(name, model, _decoder_facts(model), BATCHES, tuple(assumed)), wishes)


def failed(error: OptkitError) -> dict[str, Any]:
    """The object of a plan that never came to a figure."""
    return {
        "schema": SCHEMA, "status": "error", "error": error.to_json(), "model": None,
        "asked": None, "results": [], "cheapest": None, "advice": [], "fit": None,
    }  # fmt: skip


def _named(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _description(sizes: Mapping[str, Any]) -> Description:
    known = ", ".join(Description.__dataclass_fields__)
    try:
        found = Description(**sizes)
    except TypeError as error:
        raise UsageError(str(error), where="decoder", hint=f"its keys: {known}") from error
    for name, value in sizes.items():
        if name != "tied" and (not isinstance(value, int | float) or not 1 <= value < inf):
            raise UsageError(f"{name} must be at least 1", where="decoder")
    return found


def _job(recipe: Recipe) -> Job:
    return Job(recipe, *request.pair("cpu", "fp32"), code=Path.cwd())


def _exported(job: Job, runner: Runner, wishes: Wishes) -> _Subject:
    """Export and fuse through the store, then weigh the graph."""
    from optkit import graph
    from optkit.decoder import Decoder
    from optkit.prediction import shapes
    from optkit.prediction.plans import Decoding, Graphed
    from optkit.steps import GRAPH

    if pipeline.parts(job.recipe, runner):
        raise UsageError(
            "an encoder-decoder is two graphs", where=job.recipe.name,
            hint="name one: --set model.part=encoder",
        )  # fmt: skip
    made = pipeline.run(job, runner, pipeline.FUSE)
    fused = graph.load(made.entries["fused"].path / GRAPH)
    recipe = made.job.recipe
    sizes = {axis: found.opt for axis, found in recipe.axis_ranges().items()}
    every = axes_of(dim for info in made.inputs for dim in info.shape)
    sizes = {**dict.fromkeys(every, 1), **sizes}
    name, axis = recipe.name, made.batch_axis
    count = graph.parameters(fused)
    decoder = Decoder.of(made.inputs, made.outputs)
    if decoder is not None:
        shape = shapes.of_graph(decoder, graph.costs(fused, sizes), count)
        model = Decoding(shape, count, wishes.prompt, wishes.new)
        return _Subject(name, model, _decoder_facts(model), BATCHES)

    @cache
    def at(batch: int) -> Mapping[str, NodeCost]:
        found = graph.costs(fused, _with_batch(sizes, axis, batch))
        if isinstance(axis, str) and batch == 1:  # sizes that broadcast with 1 stay unknown
            return {n: _before(c, at(2)[n], at(4)[n]) for n, c in found.items()}
        return found

    @cache
    def live(batch: int) -> int:
        if isinstance(axis, str) and batch == 1:
            return live(2) - (live(4) - live(2)) // 2
        return graph.peak_live_bytes(fused, _with_batch(sizes, axis, batch))

    batches = (axis,) if isinstance(axis, int) else BATCHES if axis is not None else (1,)
    one = _with_batch(sizes, axis, batches[0])
    passed = sum(_bytes(info, one) for info in (*made.inputs, *made.outputs))
    macs = sum(found.macs or 0 for found in at(batches[0]).values())
    facts = {
        "kind": "graph", "parameters": count, "macs": macs // batches[0],
        "axes": {n: size for n, size in sizes.items() if n != axis},
    }  # fmt: skip
    model_ = Graphed(count, at, live, passed / batches[0])
    return _Subject(name, model_, facts, batches)


def _with_batch(sizes: Mapping[str, int], axis: int | str | None, batch: int) -> dict[str, int]:
    return {**sizes, axis: batch} if isinstance(axis, str) else dict(sizes)


def _before(found: NodeCost, two: NodeCost, four: NodeCost) -> NodeCost:
    """What is unknown at batch 1, on the line through batches 2 and 4."""

    def at(name: str) -> int | None:
        known, a, b = getattr(found, name), getattr(two, name), getattr(four, name)
        if known is not None or a is None or b is None:
            return known  # type: ignore[no-any-return]
        return int(a - (b - a) // 2)

    return replace(
        found, macs=at("macs"), in_bytes=at("in_bytes"), out_bytes=at("out_bytes"),
        columns=two.columns, bits=two.bits,
    )  # fmt: skip


def _bytes(info: TensorInfo, sizes: Mapping[str, int]) -> int:
    """Of one input or output; axes that only an output has count as 1."""
    width = 2 if info.dtype == "bfloat16" else np.dtype(info.dtype).itemsize
    known = {**dict.fromkeys(axes_of(info.shape), 1), **sizes}
    return width * prod(size_of(dim, known) for dim in info.shape)


def _decoder_facts(model: Decoding) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "kind": "decoder", "parameters": round(model.parameters), "shape": asdict(model.shape),
        "prompt_tokens": model.prompt, "new_tokens": model.new,
        "kv_bytes_per_token_fp16": model.shape.kv_bytes(),
    }  # fmt: skip


def _plan(subject: _Subject, wishes: Wishes) -> dict[str, Any]:
    from optkit.prediction import advice, cost, memory
    from optkit.prediction.fitted import fitted

    _check(subject, wishes)
    overrides = {} if wishes.prices is None else cost.read_prices(wishes.prices)
    results, refused = [], None
    devices = {found.name: found for found in map(find_target, wishes.targets)}
    for device in devices.values():
        for name in _precisions(device, wishes):
            try:
                results.append(_row(subject, device, name, wishes, overrides))
            except (Impossible, ToolchainMissing) as error:
                refused = refused or error
                results.append(_refused(device, name, error))
    fit = fitted()
    return {
        "schema": SCHEMA,
        "status": "ok" if refused is None else "impossible",
        "error": None if refused is None else refused.to_json(),
        "model": {
            "name": subject.name, **subject.facts, "assumed": list(subject.assumed),
            "quick_training": memory.quick(2 * subject.facts["parameters"]).to_json()
            if wishes.quick else None,
        },
        "asked": {
            "latency_ms": wishes.limit_ms, "throughput": wishes.throughput,
            "batches": list(wishes.batches),
        },
        "results": results,
        "cheapest": _cheapest(results, wishes),
        "advice": advice.advise(results, limit_ms=wishes.limit_ms),
        "fit": {"rows": fit.rows, "half_widths": dict(fit.widths)},
    }  # fmt: skip


def _check(subject: _Subject, wishes: Wishes) -> None:
    """Raises UsageError for what no plan can start from."""
    from optkit.prediction import memory

    if not wishes.targets:
        raise UsageError("no target", where="--target", hint="see `optkit targets`")
    numbers = {"--batch": wishes.batches, "--prompt": (wishes.prompt,), "--new": (wishes.new,)}
    for option, values in numbers.items():
        if any(value < 1 for value in values):
            raise UsageError("it must be at least 1", where=option)
    for option, value in (("--latency", wishes.limit_ms), ("--throughput", wishes.throughput)):
        if value is not None and not 0 < value < inf:
            raise UsageError("it must be a number above 0", where=option)
    for method in wishes.methods:
        if method not in get_args(memory.Method):
            raise unknown_name("training method", method, get_args(memory.Method))
    fixed = subject.batches if len(subject.batches) == 1 else None
    other = [batch for batch in wishes.batches if fixed and batch not in fixed]
    if fixed and other:
        raise UsageError(
            f"the model's batch is fixed at {fixed[0]}", where="--batch",
            hint="export it with a batch axis",
        )  # fmt: skip


def _precisions(device: Target, wishes: Wishes) -> Sequence[str]:
    if wishes.precisions:
        return [precision(name).name for name in dict.fromkeys(wishes.precisions)]
    return [
        name for name in _USUAL if all(device.supports(need) for need in PRECISIONS[name].needs)
    ] or ["fp16"]  # fmt: skip


def _row(
    subject: _Subject, device: Target, name: str, wishes: Wishes, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    from optkit.prediction import cost, plans

    if "gpu" not in PRECISIONS[name].runs_on:
        raise Impossible(f"{name} runs on ONNX Runtime's CPU kernels only", where=device.name)
    for need in PRECISIONS[name].needs:
        reason = device.why_not(need, of=name)
        if reason is not None:
            raise Impossible(reason, where=device.name, hint=f"see `optkit targets {device.name}`")
    if device.vendor != "nvidia":
        raise Impossible(
            "predictions were fitted to NVIDIA GPUs alone", where=device.name,
            hint="`optkit bench --target cpu` measures this machine",
        )  # fmt: skip
    batches = tuple(sorted({*subject.batches, *wishes.batches}))
    return plans.row(
        subject.model,
        device,
        name,
        batches,
        cost.price_of(device, overrides),
        wishes.methods,  # type: ignore[arg-type]  # checked above
    )


def _refused(device: Target, name: str, error: OptkitError) -> dict[str, Any]:
    """A row without figures; the same fields as any."""
    return {
        "target": device.name, "precision": name, "status": "impossible", "reason": error.message,
        "devices": None, "latency": [], "memory": None, "largest_batch": None,
        "largest_context": None, "kv_bytes_per_token": None, "decode": None, "notes": [],
        "price": None, "unverified": [], "measured_generation": None, "training": [],
    }  # fmt: skip


def _cheapest(results: Sequence[Mapping[str, Any]], wishes: Wishes) -> dict[str, Any] | None:
    """The pair and batch of the lowest price that meets the limits: per hour for a throughput that
    is asked, else per million. `certain`: the whole interval meets the latency. None: nothing that
    has a price meets them."""
    options = []
    for row in results:
        for one in row["latency"]:
            late = wishes.limit_ms is not None and one["p50_ms"] > wishes.limit_ms
            if late or row["price"] is None:
                continue
            copies = 1 if wishes.throughput is None else ceil(wishes.throughput / one["throughput"])
            devices = copies * row["devices"]
            hourly = devices * row["price"]["usd_per_hour"]
            options.append(
                {
                    "target": row["target"], "precision": row["precision"], "batch": one["batch"],
                    "devices": devices, "usd_per_hour": hourly,
                    "usd_per_million": one["usd_per_million"],
                    "kwh_per_million": one["kwh_per_million"], "p50_ms": one["p50_ms"],
                    "band": one["band"], "throughput": one["throughput"] * copies,
                    "price": row["price"], "evidence": "predicted",
                    "certain": wishes.limit_ms is None or one["band"][1] <= wishes.limit_ms,
                }
            )  # fmt: skip
    key = "usd_per_million" if wishes.throughput is None else "usd_per_hour"
    return min(options, key=lambda one: (one[key], one["usd_per_million"]), default=None)
