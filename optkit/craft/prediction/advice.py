"""Advice from the figures of a plan, in sentences that name these figures."""

from __future__ import annotations

from collections.abc import Sequence

from optkit.craft.prediction.economics import SAME
from optkit.facts.documents.plan import PlannedLatency, PlanRow

# What to do about each bound, where something can be done.
_REMEDY = {
    "compute": "a precision with a higher peak helps; a larger batch does not help",
    "memory": "fewer bytes help: smaller weights, a smaller cache, or a larger batch",
    "unpack": "unpacking the weights costs more than reading them saves: use FP8 or INT8 here",
    "launch": "kernels are too short: use a larger batch or CUDA graphs; a precision hardly helps",
    "link": "the devices wait for each other: fewer of them, or a faster link",
    "host": "the host takes longest between two tokens: fewer sequences per process",
    "pcie": "the host's link is the limit: send smaller inputs, or decode them on the device",
}

_STAGES = {"call": "a call", "encode": "the encoder", "prefill": "prefill", "decode": "decode"}


def advise(
    results: Sequence[PlanRow], *, limit_ms: float | None = None, baseline: str = "fp16"
) -> list[str]:
    """Sentences about results of `plan` that have figures, target by target."""
    found: list[str] = []
    for target in dict.fromkeys(row.target for row in results):
        rows = [row for row in results if row.target == target and row.latency]
        if rows:
            found += [_bounds(rows), *_precisions(rows, baseline), *_crossovers(rows)]
            if limit_ms is not None:
                found.append(_batching(rows, limit_ms))
    return found


def _bounds(rows: Sequence[PlanRow]) -> str:
    """What bounds each stage of the first precision, at its smallest and largest batch."""
    row = rows[0]
    first, last = row.latency[0], row.latency[-1]
    told = []
    for stage, bound in first.bounds.items():
        after = last.bounds[stage]
        change = f", at batch {last.batch} by {after}" if after != bound else ""
        told.append(f"{_STAGES[stage]} is bound by {bound} at batch {first.batch}{change}")
    remedy = _REMEDY[list(first.bounds.values())[-1]]
    return f"{row.target} {row.precision}: {'; '.join(told)}: {remedy}."


def _precisions(rows: Sequence[PlanRow], baseline: str) -> list[str]:
    """Which precision is fastest per device, at the smallest and the largest shared batch."""
    shared = set.intersection(*({one.batch for one in row.latency} for row in rows))
    if len(rows) < 2 or not shared:
        return []
    told = []
    for batch in sorted({min(shared), max(shared)}):
        at = {row.precision: _at(row, batch).throughput / (row.devices or 1) for row in rows}
        best = max(at, key=at.__getitem__)
        gain = ""
        if baseline in at and at[best] < at[baseline] * SAME:
            best = baseline
        if baseline in at and best != baseline:
            gain = f", {at[best] / at[baseline]:.2f}x {baseline}"
        told.append(f"{best} at batch {batch}{gain}")
    each = " per GPU" if len({row.devices for row in rows}) > 1 else ""
    return [f"{rows[0].target}: fastest{each} is {'; '.join(told)}."]


def _crossovers(rows: Sequence[PlanRow]) -> list[str]:
    """From which batch decode multiplies longer than it reads, and where a format stops paying."""
    decoding = [(row, row.decode) for row in rows if row.decode is not None]
    turns = [
        f"{decode.compute_bound_from_batch} ({row.precision})"
        for row, decode in decoding
        if decode.compute_bound_from_batch is not None
    ]
    found = []
    if turns:
        found.append(
            f"{rows[0].target}: decode's products turn compute-bound at batch {', '.join(turns)}."
        )
    for row, decode in decoding:
        at, base = decode.stops_paying_at_batch, decode.baseline
        named = f"{row.target} {row.precision}"
        if at == 1:
            found.append(f"{named}: it decodes no faster than {base} at any batch.")
        elif at is not None:
            found.append(
                f"{named}: stops paying against {base} at batch {at}, where unpacking weights "
                "outweighs the bytes they save."
            )
    return found


def _batching(rows: Sequence[PlanRow], limit_ms: float) -> str:
    """The batch of most throughput under the limit. A request may arrive behind a running batch,
    waits for the queue, then runs: two runs and the delay must fit. Sequences of a decoder join a
    running batch instead: one step must fit."""
    runs = 1 if rows[0].decode is not None else 2
    options = [
        (one.throughput, one, row)
        for row in rows
        for one in row.latency
        if runs * one.p50_ms <= limit_ms
    ]
    target = rows[0].target
    if not options:
        fastest = min((one.p50_ms, row.precision) for row in rows for one in row.latency)
        return (
            f"{target}: no batch is possible within {limit_ms:g} ms; the shortest takes "
            f"{fastest[0]:.3g} ms ({fastest[1]})."
        )
    _, one, row = max(options, key=lambda option: option[0])
    if runs == 1:
        return (
            f"{target} {row.precision}: under {limit_ms:g} ms per token keep at most "
            f"{one.batch} sequences in flight ({one.p50_ms:.3g} ms, "
            f"{one.throughput:,.0f} tokens/s)."
        )
    delay = limit_ms - 2 * one.p50_ms
    return (
        f"{target} {row.precision}: under {limit_ms:g} ms set dynamic batches of up to "
        f"{one.batch} and a queue delay of at most {delay:.3g} ms: a request may wait for the "
        f"batch before it ({one.p50_ms:.3g} ms) and then runs as long."
    )


def _at(row: PlanRow, batch: int) -> PlannedLatency:
    return next(one for one in row.latency if one.batch == batch)
