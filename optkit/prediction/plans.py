"""One model on one target in one precision: latency, memory and cost as plain data.

The rows of `optkit.plan/v1`. A decoder's `p50_ms` is the time of one token at that batch, its
`throughput` written tokens per second with the prefill counted in; any other model's are those of
one call and of samples. Every figure is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from optkit.devices import Fact, Target
from optkit.graph import NodeCost
from optkit.precisions import Precision, precision
from optkit.prediction import cost as costs_of
from optkit.prediction import layers, memory, serving
from optkit.prediction.cost import Price
from optkit.prediction.decoder import DecoderShape
from optkit.prediction.fitted import fitted
from optkit.prediction.latency import Seconds, link_of, seconds
from optkit.prediction.work import total

_PCIE = 0.8  # of the link's rate that copies reach, unverified


@dataclass(frozen=True)
class Graphed:
    """A model of one call. `at`: batch → costs of its nodes; `live`: batch → bytes of activations
    alive at once; `passed`: bytes of inputs and outputs per sample."""

    parameters: int
    at: Callable[[int], Mapping[str, NodeCost]]
    live: Callable[[int], int]
    passed: float


@dataclass(frozen=True)
class Decoding:
    """A decoder, and what is asked of it."""

    shape: DecoderShape
    parameters: float
    prompt: int
    new: int


def row(
    model: Graphed | Decoding, target: Target, name: str, batches: Sequence[int],
    price: Price | None, methods: Sequence[memory.Method] = (),
) -> dict[str, Any]:  # fmt: skip
    """Everything about one pair. Batches that do not fit have no latency. Raises ToolchainMissing
    where the target's own figures are unknown."""
    number = precision(name)
    made = _decoder(model, target, number, batches) if isinstance(model, Decoding) else _graph(
        model, target, number, batches
    )  # fmt: skip
    devices = made["devices"]
    for one in made["latency"]:
        one["usd_per_million"] = (
            None if price is None else costs_of.per_million(price, one["throughput"], devices)
        )
        one["kwh_per_million"] = costs_of.energy_per_million(target, one["throughput"], devices)
    return {
        "target": target.name,
        "precision": name,
        "status": "ok" if made["latency"] else "does_not_fit",
        "reason": made.pop("reason", None),
        **made,
        "price": None if price is None else price.to_json(),
        "unverified": _unverified(target, number, _links(model, target, devices)),
        "measured_generation": target.compute_capability in fitted().generations,
        "training": [_training(model, target, method) for method in methods],
    }


def _graph(
    model: Graphed, target: Target, number: Precision, batches: Sequence[int]
) -> dict[str, Any]:
    fit, carried = fitted(), number.carrier_bits
    found: list[dict[str, Any]] = []
    notes: list[str] = []
    sizes: list[tuple[int, memory.Memory]] = []
    for batch in batches:
        costs = model.at(batch)
        works = layers.of_graph(costs, number, target)
        time = seconds(works, target, fit.efficiencies)
        sums = total(works)
        multiplied = sum(c.weight_bytes * 8 / (c.bits or 32) for c in costs.values() if c.macs)
        rest = max(0.0, model.parameters - multiplied) * carried / 8
        live = model.live(batch) * carried / 32
        held = memory.Memory(
            sums.weight_bytes + rest, 0, live, max((w.moved for w in works), default=0.0),
            memory.RUNTIME_BYTES,
        )  # fmt: skip
        sizes.append((batch, held))
        if held.total > (target.memory_bytes or 0):
            continue
        link = target.facts.get("pcie_gbs")
        copies = (
            batch * model.passed / (float(link.value) * 1e9 * _PCIE) if link and link.value else 0.0
        )
        bound = "pcie" if copies > time.total else time.bound
        low, high = fit.band(layers.category(works), time.total)
        pace = max(time.total, copies)
        found.append(
            {
                **_latency(batch, time.total, low, high, batch, copies=copies),
                "bounds": {"call": bound},
                "parts_ms": _parts(time, pcie=copies),
                "first_token_ms": None,
                "first_token_band": None,
                "mfu": _share(sums.operations, pace, target.peak(layers.multiplies_in(number))),
                "mbu": _share(sums.weight_bytes + sums.moved, pace, target.bandwidth),
                "operations": sums.operations,
                "bytes": sums.weight_bytes + sums.moved,
            }
        )
        unknown = layers.uncounted(costs)
        if unknown:
            notes = [f"not fully counted: {', '.join(unknown)}"]
    return {
        "devices": 1,
        "latency": found,
        "memory": sizes[0][1].to_json(),
        "largest_batch": _largest(sizes, target),
        "largest_context": None,
        "kv_bytes_per_token": None,
        "decode": None,
        "notes": notes,
        "reason": None if found else "it does not fit into the device's memory",
    }


def _largest(sizes: Sequence[tuple[int, memory.Memory]], target: Target) -> int | None:
    """The batch at which memory is full, on the line through the smallest and the largest."""
    (small, first), (large, last) = sizes[0], sizes[-1]
    if small == large or last.total <= first.total:
        return None
    each = (last.total - first.total) / (large - small)
    return max(0, int(((target.memory_bytes or 0) - first.total) / each + small))


def _decoder(
    model: Decoding, target: Target, number: Precision, batches: Sequence[int]
) -> dict[str, Any]:
    fit, shape = fitted(), model.shape
    numbers = serving.numbers_of(number)
    capacity, tokens = float(target.memory_bytes or 0), model.prompt + model.new
    devices = memory.devices_needed(shape, numbers, capacity, tokens)
    load = serving.Load(model.prompt, model.new, devices)
    largest = memory.largest_batch(shape, numbers, capacity, tokens, devices)
    found: list[dict[str, Any]] = []
    for batch in (b for b in batches if b <= largest):
        made = serving.generate(shape, numbers, target, load, batch)
        low, high = fit.band("decode" if batch == 1 else "serving", made.token)
        parts = _parts(made.decode, host=made.token - made.decode.total)
        first = fit.band("prefill", made.first_token)
        found.append(
            {
                **_latency(batch, made.token, low, high, made.tokens_per_second * made.token),
                "bounds": {
                    "prefill": made.prefill.bound,
                    "decode": max(parts, key=lambda name: parts[name]),
                },
                "parts_ms": parts,
                "first_token_ms": made.first_token * 1e3,
                "first_token_band": [first.low * 1e3, first.high * 1e3],
                "mfu": made.mfu,
                "mbu": made.mbu,
                "operations": made.operations,
                "bytes": made.bytes,
            }
        )
    base = serving.numbers_of(precision(number.carrier))
    return {
        "devices": devices,
        "latency": found,
        "memory": memory.of_decoder(
            shape, numbers, tokens=tokens, batch=1, devices=devices
        ).to_json(),
        "largest_batch": largest,
        "largest_context": memory.largest_context(shape, numbers, capacity, devices),
        "kv_bytes_per_token": shape.kv_bytes(numbers.kv_bits),
        "decode": {
            "compute_bound_from_batch": serving.compute_bound_from(shape, numbers, target, load),
            "baseline": number.carrier,
            "stops_paying_at_batch": None
            if number.name == number.carrier
            else serving.slower_from(shape, numbers, base, target, load),
        },
        "notes": _parallel(target, devices),
        "reason": None if found else "no batch that was asked for fits",
    }


def _parallel(target: Target, devices: int) -> list[str]:
    if devices == 1:
        return []
    link = link_of(target, devices)
    if link.name == "NVLink":
        return ["tensor parallel over NVLink"]
    joined = f" (NVLink joins {link.joined} of these devices)" if link.joined > 1 else ""
    return [f"tensor parallel over PCIe{joined}, which no measurement of the fit covers"]


def _latency(
    batch: int, time: float, low: float, high: float, units: float, copies: float = 0.0
) -> dict[str, Any]:
    """`units`: what comes out in `time`. One call also waits for its `copies`, in seconds; of many,
    they run beside the next one, and set the pace where they take longer."""
    return {
        "batch": batch,
        "evidence": "predicted",
        "p50_ms": (time + copies) * 1e3,
        "band": [(low + copies) * 1e3, (high + copies) * 1e3],
        "throughput": units / max(time, copies),
        "throughput_band": [units / max(high, copies), units / max(low, copies)],
    }


def _longest(parts: Mapping[str, float]) -> str:
    return max(parts, key=lambda name: parts[name])


def _parts(time: Seconds, **beside: float) -> dict[str, float]:
    parts = {**time._asdict(), **beside}
    del parts["total"]
    return {name: value * 1e3 for name, value in parts.items()}


def _share(amount: float, time: float, rate: float | None) -> float | None:
    return None if rate is None or not time else amount / time / rate


def _links(model: Graphed | Decoding, target: Target, devices: int) -> tuple[str, ...]:
    """Figures of the links that count: of a call its copies, of a decoder those between devices."""
    if isinstance(model, Graphed):
        return ("pcie_gbs",)
    return link_of(target, devices).figures if devices > 1 else ()


def _unverified(target: Target, number: Precision, links: Sequence[str]) -> list[str]:
    """The figures of the target that the row rests on and nobody read in a source."""
    names = ("bandwidth_gbs", "memory_gb", "l2_mb", "sm_count", "boost_mhz", "tdp_w", *links)
    used: dict[str, Fact | None] = {name: target.facts.get(name) for name in names}
    for dtype in {number.carrier, layers.multiplies_in(number)}:
        used[f"peak {dtype}"] = target.peaks.get(dtype)
    return sorted(name for name, fact in used.items() if fact is None or not fact.verified)


def _training(model: Graphed | Decoding, target: Target, method: memory.Method) -> dict[str, Any]:
    """Itemised, for one sample (one prompt of a decoder), activations kept and recomputed. Of a
    graph every node's output is kept; what recomputing leaves is known of layers alone."""
    capacity = float(target.memory_bytes or 0)
    tokens = model.prompt if isinstance(model, Decoding) else None
    made: dict[str, Any] = {"method": method, "tokens": tokens, "evidence": "predicted"}
    for recompute in get_args(memory.Recompute):
        activations: float | None = None
        if isinstance(model, Decoding):
            ends: list[tuple[float, float]] = memory.decoder_products(model.shape)
            activations = memory.decoder_activations(model.shape, model.prompt, 1, recompute)
        else:
            costs = model.at(1).values()
            ends = [
                (c.weight_bytes * 8 / c.bits / c.columns, c.columns)
                for c in costs
                if c.macs and c.weight_bytes and c.columns and c.bits
            ]
            if recompute == "none":
                activations = sum((c.out_bytes or 0) * 16 / (c.bits or 16) for c in costs)
        found = memory.training(
            model.parameters, method, adapters=memory.adapter_parameters(ends),
            activations=activations,
        )  # fmt: skip
        made[f"recompute_{recompute}"] = {
            **found.to_json(),
            "devices": memory.devices_to_train(found, capacity),
        }
    return made
