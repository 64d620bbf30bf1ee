"""A plan as text of at most 80 columns: tables per target, advice, the front of all targets, and
what to do as the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from optkit.facts.device_facts import Price
from optkit.facts.documents.plan import FrontPoint, Plan, PlannedDecoder, PlannedGraph, PlanRow
from optkit.show.report import plan_page as words
from optkit.show.report.figures import name as visible
from optkit.show.report.figures import plain
from optkit.verbs.cli.command_output import table

_WIDTH = 80


def lines(plan: Plan, batches: Sequence[int]) -> Iterator[str]:
    """The text of a plan with figures: model, latency per target and precision at these batches,
    memory, the cheapest choice, advice."""
    assert plan.model is not None
    yield from _wrapped(_model(plan.model))
    if plan.model.assumed:
        yield from _wrapped(f"assumed: {'; '.join(plan.model.assumed)}")
    decodes = plan.model.kind == "decoder"
    for target in dict.fromkeys(row.target for row in plan.results):
        rows = [row for row in plan.results if row.target == target and row.latency]
        if rows:
            yield ""
            yield f"{target}{_price(rows[0].price)}"
            yield from _tables(rows, batches, decodes)
    for row in plan.results:
        if not row.latency:
            yield from _wrapped(f"{row.target} {row.precision}: {row.status}: {row.reason}")
    for line in dict.fromkeys(_training(plan.model, plan.results)):
        yield from _wrapped(line)
    yield ""
    for line in (*_cheapest(plan), *words.merged((*plan.advice, *_notes(plan.results)))):
        yield from _wrapped(f"- {line}")
    yield from _choice(plan, decodes)


def _tables(rows: Sequence[PlanRow], batches: Sequence[int], decodes: bool) -> Iterator[str]:
    """Of one target."""
    yield table(*_latency(rows, batches, decodes))
    yield table(*_memory(rows, batches, decodes))
    if any(call.load or call.spot_usd_per_million for row in rows for call in row.latency):
        yield table(*_cost(rows, batches))
    for line in (*words.feeds(rows, batches), *words.purchases(rows)):
        yield from _wrapped(f"- {line}")


def _choice(plan: Plan, decodes: bool) -> Iterator[str]:
    """The front of all targets, and what to do."""
    if plan.front:
        yield ""
        yield "cost over latency of all targets: no other call is faster and costs less"
        yield table(*_front(plan.front, decodes))
    if plan.recommendation is not None:
        yield ""
        for doubt in plan.recommendation.conditions:
            yield from _wrapped(f"- {doubt}")
        yield from _wrapped(plan.recommendation.sentence)


def _model(model: PlannedGraph | PlannedDecoder) -> str:
    size = f"{visible(model.name)}: {_si(model.parameters).strip()} parameters"
    if isinstance(model, PlannedDecoder):
        crossed = model.shape.get("crossed")
        encoded = f" and for {crossed:,} tokens of the encoder" if crossed else ""
        return (
            f"{size}, {model.kv_bytes_per_token_fp16:,} bytes of cache per token at FP16{encoded}, "
            f"{model.prompt_tokens:,} tokens read and {model.new_tokens:,} written; "
            "all figures predicted"
        )
    axes = "".join(f", {visible(name)} {size}" for name, size in model.axes.items())
    return f"{size}, {_si(2 * model.macs)}FLOP per sample{axes}; all figures predicted"


def _price(price: Price | None) -> str:
    if price is None:
        return ", price unknown"
    known = "" if price.verified else ", unverified"
    return f", ${price.usd_per_hour:g} per hour ({price.provider}, {price.as_of}{known})"


def _latency(
    rows: Sequence[PlanRow], batches: Sequence[int], decodes: bool
) -> tuple[list[str], list[list[str]]]:
    head = [
        "precision",
        "batch",
        "ms/token" if decodes else "ms",
        "interval",
        "tokens/s" if decodes else "per s",
        "bound",
        "$/1M",
    ]
    cells = []
    for row in rows:
        for at, one in enumerate(words.shown(row, batches)):
            low, high = one.band
            cells.append(
                [
                    _marked(row) if at == 0 else "",
                    str(one.batch),
                    _short(one.p50_ms),
                    f"{_short(low)}..{_short(high)}",
                    _short(one.throughput),
                    list(one.bounds.values())[-1],
                    _short(one.usd_per_million, 2),
                ]
            )
    return head, cells


def _cost(rows: Sequence[PlanRow], batches: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Devices for the load, the share of time in which they compute, and what they cost."""
    head = ["at the load", "batch", "GPUs", "use", "$/hour", "$/1M", "interval", "spot $/1M"]
    cells = []
    for row in rows:
        for at, one in enumerate(words.shown(row, batches)):
            load, spot = one.load, _short(one.spot_usd_per_million)
            served = ["-"] * 5
            if load is not None:
                served = [
                    str(load.devices),
                    f"{load.utilisation:.0%}",
                    _short(load.usd_per_hour),
                    _short(load.usd_per_million),
                    _band(load.usd_band),
                ]
            cells.append([row.precision if at == 0 else "", str(one.batch), *served, spot])
    return head, cells


def _front(front: Sequence[FrontPoint], decodes: bool) -> tuple[list[str], list[list[str]]]:
    head = ["target", "batch", "ms/token" if decodes else "ms", "$/1M", "interval"]
    cells = []
    for one in front:
        name = words.several(one.devices, one.target)
        cells.append(
            [
                f"{name} {one.precision}",
                str(one.batch),
                _short(one.p50_ms),
                _short(one.usd_per_million),
                _band(one.usd_band),
            ]
        )
    return head, cells


def _memory(
    rows: Sequence[PlanRow], batches: Sequence[int], decodes: bool
) -> tuple[list[str], list[list[str]]]:
    """Decimal gigabytes at the smallest batch, as memory is sold; the largest batch that fits; and
    for decoders the time to the first token, and the shares of the peaks at the largest batch
    shown."""
    head = ["GB", "GPUs", "model", "cache", "rest", "batch<="]
    head += ["context<=", "ttft ms", "MFU", "MBU"] if decodes else []
    cells = []
    for row in rows:
        held = row.memory
        assert held is not None  # a row with figures
        rest = held.activations + held.workspace + held.runtime
        sizes = [_short(size / 1e9, 2) for size in (held.weights, held.cache, rest)]
        most = "-" if row.largest_batch is None else f"{row.largest_batch:,}"
        cells.append([row.precision, str(row.devices), *sizes, most])
        if decodes:
            last = words.shown(row, batches)[-1]
            cells[-1] += [
                f"{row.largest_context}",
                _short(last.first_token_ms),
                f"{last.mfu or 0:.0%}",
                f"{last.mbu or 0:.0%}",
            ]
    return head, cells


def _training(model: PlannedGraph | PlannedDecoder, rows: Sequence[PlanRow]) -> Iterator[str]:
    if model.quick_training is not None:
        total = _short(model.quick_training.total / 1e9)
        yield f"training, quick rule: {total} GB (FP16 weights × 7)"
    for row in rows:
        for training in row.training:
            for kept, held in (
                ("kept", training.recompute_none),
                ("recomputed", training.recompute_full),
            ):
                if held.activations is None:
                    continue
                items = {
                    "weights": held.weights,
                    "gradients": held.gradients,
                    "optimizer": held.optimizer,
                    "activations": held.activations,
                }
                if held.temporary:
                    items["the logits' gradient"] = held.temporary
                told = ", ".join(f"{name} {_short((n or 0) / 1e9)}" for name, n in items.items())
                most = held.devices or "none: the activations of a sample do not fit on one"
                yield (
                    f"{training.method} training on {row.target}, activations {kept}: "
                    f"{_short(held.total / 1e9)} GB ({told}); GPUs, fully sharded: {most}"
                )


def _cheapest(plan: Plan) -> Iterator[str]:
    best, asked = plan.cheapest, plan.asked
    if best is None:
        if asked and (asked.latency_ms is not None or asked.throughput is not None):
            yield "no device with a price meets the limits."
        return
    price = ""
    if best.price is not None:
        known = "" if best.price.verified else ", unverified"
        price = f" Price: {best.price.provider}, {best.price.as_of}{known}."
    sure = "" if best.certain else f"; its interval ends at {_short(best.band[1])} ms"
    usd = best.usd_per_million if best.load is None else best.load.usd_per_million
    yield (
        f"cheapest: {best.devices} × {best.target} {best.precision} at batch {best.batch}, "
        f"${_short(usd)} per million, {_short(best.kwh_per_million)} kWh per million when busy, "
        f"${best.usd_per_hour:.2f} per hour, "
        f"{_short(best.p50_ms)} ms{sure}.{price}"
    )


def _notes(rows: Sequence[PlanRow]) -> Iterator[str]:
    noted: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in row.notes:
            noted.setdefault((row.target, note), []).append(row.precision)
    for (target, note), precisions in noted.items():
        yield f"{target} {', '.join(precisions)}: {visible(note)}."
    guessed: dict[str, set[str]] = {}
    for row in rows:
        guessed.setdefault(row.target, set()).update(row.unverified)
    for target, names in guessed.items():
        if names:
            unsure = ", ".join(sorted(names))
            yield f"{target}: unverified figures of the device, marked ?: {unsure}."
    for target in dict.fromkeys(row.target for row in rows if row.measured_generation is False):
        yield f"{target}: the fit has no measurements of devices of its generation."


def _marked(row: PlanRow) -> str:
    return f"{row.precision}{'?' if row.unverified else ''}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ") or [""]


def _band(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{_short(ends[0], 2)}..{_short(ends[1], 2)}"


def _short(value: float | None, digits: int = 3) -> str:
    """A number with so many digits, or with all digits before the point: 0.0123, 4.56, 789,
    12,345."""
    if value is None:
        return "-"
    return plain(value, digits)


def _si(value: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} "
