"""One model on one target in one precision: latency, memory and cost.

The rows of `optkit.plan/v1`. A decoder's `p50_ms` is the time of one token at that batch, its
`throughput` written tokens per second with the prefill counted in; any other model's are those of
one call and of samples. Every figure is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from optkit.craft.prediction import graph_work, memory, serving, training_memory
from optkit.craft.prediction.call import Call, call
from optkit.craft.prediction.card_correction import widened
from optkit.craft.prediction.cost import energy_per_million, per_million
from optkit.craft.prediction.fitted import UNSEEN, fitted
from optkit.craft.prediction.planned_model import Decoding, OneCallModel
from optkit.craft.prediction.work import Work, total
from optkit.craft.prediction.work_time import link_of, longest
from optkit.facts.device_facts import Fact, Price
from optkit.facts.documents.plan import (
    Bound,
    DecodeBounds,
    InferenceMemory,
    Method,
    PlannedLatency,
    PlanRow,
)
from optkit.facts.measurement import Interval
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target


@dataclass(frozen=True)
class _Figures:
    """What depends on the kind of the model. `empty`: why a pair without any latency has none."""

    devices: int
    latency: tuple[PlannedLatency, ...]
    memory: InferenceMemory
    largest_batch: int | None
    notes: tuple[str, ...]
    empty: str
    largest_context: int | None = None
    kv_bytes_per_token: int | None = None
    decode: DecodeBounds | None = None


def row(
    model: OneCallModel | Decoding,
    target: Target,
    number: Precision,
    batches: Sequence[int],
    price: Price | None,
    methods: Sequence[Method] = (),
) -> PlanRow:
    """Everything about one pair. Batches that do not fit have no latency. Raises ToolchainMissing
    where the target's own figures are unknown."""
    figures = (
        _decoder(model, target, number, batches, price)
        if isinstance(model, Decoding)
        else _graph(model, target, number, batches, price)
    )
    return PlanRow(
        target=target.name,
        precision=number.name,
        status="ok" if figures.latency else "does_not_fit",
        reason=None if figures.latency else figures.empty,
        devices=figures.devices,
        latency=figures.latency,
        memory=figures.memory,
        largest_batch=figures.largest_batch,
        largest_context=figures.largest_context,
        kv_bytes_per_token=figures.kv_bytes_per_token,
        decode=figures.decode,
        notes=(*figures.notes, *foreign(target), *on_card(target)),
        price=price,
        unverified=unverified(target, number, _links(model, target, figures.devices)),
        measured_generation=in_measured_generation(target),
        training=tuple(training_memory.planned(model, target, method) for method in methods),
    )


def in_measured_generation(target: Target) -> bool:
    """Whether a device of its generation was among the measurements of the fit."""
    return target.compute_capability in fitted().generations


def foreign(target: Target) -> tuple[str, ...]:
    """What must be said of devices of another vendor than those of the fit."""
    if target.vendor == "nvidia":
        return ()
    return (
        "the model of latency was fitted to NVIDIA GPUs only, none of this vendor was measured",
    )


def on_card(target: Target) -> tuple[str, ...]:
    """What the row rests on if kernels were measured on this card."""
    return () if target.card is None else (target.card.told,)


def _graph(
    model: OneCallModel,
    target: Target,
    number: Precision,
    batches: Sequence[int],
    price: Price | None,
) -> _Figures:
    latency: list[PlannedLatency] = []
    notes: tuple[str, ...] = ()
    sizes: list[tuple[int, memory.MemoryEstimate]] = []
    for batch in batches:
        costs = model.at(batch)
        works = model.works(batch, target, number)
        held = _held(model, number, batch, works)
        sizes.append((batch, held))
        if held.total > (target.memory_bytes or 0):
            continue
        unknown = graph_work.uncounted(costs)
        latency.append(_call(model, target, number, batch, works, price, known=not unknown))
        if unknown:
            notes = (f"not fully counted: {', '.join(unknown)}",)
        elif in_measured_generation(target):
            notes = fitted().doubts(graph_work.category(works))
    return _Figures(
        1,
        tuple(latency),
        sizes[0][1].rounded(),
        _largest(sizes, target),
        notes,
        "it does not fit into the device's memory",
    )


def _held(
    model: OneCallModel, number: Precision, batch: int, works: Sequence[Work]
) -> memory.MemoryEstimate:
    """What a call of that batch keeps in memory."""
    carried = number.carrier_bits
    multiplied = sum(
        c.weight_bytes * 8 / (c.bits or 32) for c in model.at(batch).values() if c.macs
    )
    rest = max(0.0, model.parameters - multiplied) * carried / 8
    return memory.MemoryEstimate(
        total(works).weight_bytes + rest,
        0,
        model.live(batch) * carried / 32,
        max((w.moved for w in works), default=0.0),
        memory.RUNTIME_BYTES,
    )


def _call(
    model: OneCallModel,
    target: Target,
    number: Precision,
    batch: int,
    works: Sequence[Work],
    price: Price | None,
    *,
    known: bool,
) -> PlannedLatency:
    one, sums = call(works, target, batch, batch * model.passed, known=known), total(works)
    pace, bytes_ = batch / one.throughput, sums.weight_bytes + sums.moved
    return PlannedLatency(
        batch=batch,
        evidence="predicted",
        p50_ms=one.total * 1e3,
        band=_in_ms(one.interval),
        throughput=one.throughput,
        throughput_band=one.throughput_interval,
        bounds={"call": one.bound},
        parts_ms=_milliseconds({**one.time.parts, "pcie": one.copies}),
        mfu=_share(sums.operations, pace, target.peak(graph_work.multiplies_in(number))),
        mbu=_share(bytes_, pace, target.bandwidth),
        operations=sums.operations,
        bytes=bytes_,
        usd_per_million=None if price is None else per_million(price.usd_per_hour, one.throughput),
        kwh_per_million=energy_per_million(target, one.throughput),
    )


def _largest(sizes: Sequence[tuple[int, memory.MemoryEstimate]], target: Target) -> int | None:
    """The batch at which memory is full, on the line through the smallest and the largest."""
    (small, first), (large, last) = sizes[0], sizes[-1]
    if small == large or last.total <= first.total:
        return None
    each = (last.total - first.total) / (large - small)
    return max(0, int(((target.memory_bytes or 0) - first.total) / each + small))


def _decoder(
    model: Decoding, target: Target, number: Precision, batches: Sequence[int], price: Price | None
) -> _Figures:
    shape, numbers = model.shape, serving.numbers_of(number)
    beside = _encoder_memory(model.encoder, target, number)
    capacity, tokens = float(target.memory_bytes or 0) - beside.total, model.prompt + model.new
    devices = memory.devices_needed(shape, numbers, capacity, tokens)
    load = serving.Load(model.prompt, model.new, devices)
    largest = memory.largest_batch(shape, numbers, capacity, tokens, devices)
    base = serving.numbers_of(number.unquantized)
    decode = DecodeBounds(
        compute_bound_from_batch=serving.compute_bound_from(shape, numbers, target, load),
        baseline=number.carrier,
        stops_paying_at_batch=None
        if number.name == number.carrier
        else serving.slower_from(shape, numbers, base, target, load),
    )
    held = memory.of_decoder(shape, numbers, tokens=tokens, batch=1, devices=devices)
    held = replace(
        held,
        weights=held.weights + beside.weights * devices,
        activations=held.activations + beside.activations * devices,
        workspace=held.workspace + beside.workspace * devices,
    )
    context = memory.largest_context(shape, numbers, capacity, devices)
    return _Figures(
        devices,
        tuple(
            _token(
                serving.generate(shape, numbers, target, load, batch),
                target,
                load,
                batch,
                price,
                _encode(model.encoder, target, number),
            )
            for batch in batches
            if batch <= largest
        ),
        held.rounded(),
        largest,
        (*_parallel(target, devices), *_doubts(target, batches)),
        "no batch that was asked for fits",
        context if model.positions is None else min(context, model.positions),
        shape.kv_bytes(numbers.kv_bits),
        decode,
    )


def _encoder_memory(
    encoder: OneCallModel | None, target: Target, number: Precision
) -> memory.MemoryEstimate:
    """What each device holds of an encoder that reads one sequence at a time. The caches that it
    makes are counted with the decoder's."""
    if encoder is None:
        return memory.MemoryEstimate(0, 0, 0, 0, 0)
    held = _held(encoder, number, 1, encoder.works(1, target, number))
    cached = encoder.cached * number.carrier_bits / 32
    return replace(held, activations=max(0.0, held.activations - cached), runtime=0)


def _encode(
    encoder: OneCallModel | None, target: Target, number: Precision
) -> Callable[[int], Call] | None:
    """Batch → the call of the encoder that a batch starts with."""
    if encoder is None:
        return None

    def at(batch: int) -> Call:
        works = encoder.works(batch, target, number)
        return call(works, target, batch, batch * encoder.passed)

    return at


def _token(
    made: serving.Generation,
    target: Target,
    load: serving.Load,
    batch: int,
    price: Price | None,
    encode: Callable[[int], Call] | None = None,
) -> PlannedLatency:
    """Of one token for each of `batch` sequences."""
    devices, bounds, first_token = load.devices, dict[str, Bound](), made.first_token
    taken = batch * load.new / made.tokens_per_second
    if encode is not None:
        first_token += encode(1).total
        taken += encode(batch).total
        bounds["encode"] = encode(batch).bound
    decodes, reads = "decode" if batch == 1 else "serving", "prefill"
    if not in_measured_generation(target):
        decodes = reads = UNSEEN
    band, first = fitted().band(decodes, made.token), fitted().band(reads, first_token)
    to_first, each = made.spreads
    band, first = widened(band, made.token, each), widened(first, first_token, to_first)
    parts: dict[Bound, float] = {**made.decode.parts, "host": made.token - made.decode.total}
    throughput = batch * load.new / taken
    written = throughput * made.token
    return PlannedLatency(
        batch=batch,
        evidence="predicted",
        p50_ms=made.token * 1e3,
        band=_in_ms(band),
        throughput=throughput,
        throughput_band=(written / band.high, written / band.low),
        bounds={**bounds, "prefill": made.prefill.bound, "decode": longest(parts)},
        parts_ms=_milliseconds(parts),
        first_token_ms=first_token * 1e3,
        first_token_band=_in_ms(first),
        mfu=made.mfu,
        mbu=made.mbu,
        operations=made.operations,
        bytes=made.bytes,
        usd_per_million=None
        if price is None
        else per_million(price.usd_per_hour, throughput, devices),
        kwh_per_million=energy_per_million(target, throughput, devices),
    )


def _doubts(target: Target, batches: Sequence[int]) -> tuple[str, ...]:
    """Which intervals of a decoder are wide because little was measured."""
    if not in_measured_generation(target):
        return ()
    kinds = dict.fromkeys(["prefill", *("decode" if n == 1 else "serving" for n in batches)])
    return tuple(doubt for kind in kinds for doubt in fitted().doubts(kind))


def _parallel(target: Target, devices: int) -> tuple[str, ...]:
    if devices == 1:
        return ()
    link = link_of(target, devices)
    if link.name != "PCIe":
        return (f"tensor parallel over {link.name}",)
    joined = f" (NVLink joins {link.joined} of these devices)" if link.joined > 1 else ""
    return (f"tensor parallel over PCIe{joined}, which no measurement of the fit covers",)


def _in_ms(band: Interval) -> tuple[float, float]:
    return band.low * 1e3, band.high * 1e3


def _milliseconds(parts: Mapping[Bound, float]) -> dict[str, float]:
    return {name: value * 1e3 for name, value in parts.items()}


def _share(amount: float, time: float, rate: float | None) -> float | None:
    return None if rate is None or not time else amount / time / rate


def _links(model: OneCallModel | Decoding, target: Target, devices: int) -> tuple[str, ...]:
    """Figures of the links that count: of a call its copies, of a decoder those between devices."""
    if isinstance(model, OneCallModel):
        return ("pcie_gbs",) if "pcie_gbs" in target.facts else ()  # else there is one memory
    return link_of(target, devices).figures if devices > 1 else ()


def unverified(target: Target, number: Precision, links: Sequence[str]) -> tuple[str, ...]:
    """The figures of the target that the row rests on and nobody read in a source."""
    held = "memory_mib" if "memory_mib" in target.facts else "memory_gb"
    names = ("bandwidth_gbs", held, "l2_mb", "sm_count", "boost_mhz", "tdp_w", *links)
    used: dict[str, Fact | None] = {name: target.facts.get(name) for name in names}
    for dtype in {number.carrier, graph_work.multiplies_in(number)}:
        used[f"peak {dtype}"] = target.peaks.get(dtype)
    return tuple(sorted(n for n, fact in used.items() if fact is None or not fact.verified))
