"""A plan of serving as a page, or its drawing alone, and the words that the terminal shows too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optkit.facts.documents.serving_plan import (
    ServingPlan,
    ServingRow,
    ServingSetup,
    TimePercentiles,
)
from optkit.show.report import figures
from optkit.show.report.details import price
from optkit.show.report.drawing.load_curve import load_curve
from optkit.show.report.html import render, render_alone
from optkit.show.report.serving_advice import chosen, devices_in_words, limits_in_words
from optkit.show.report.view import Headline

COLUMNS = (
    "GPUs",
    "number",
    "copies",
    "tp",
    "pp",
    "$/hour",
    "$/1M",
    "tokens/s",
    "batch",
    "cache",
    "preempted",
    "bound",
)


def asked(plan: ServingPlan) -> str:
    """The model and the load."""
    traffic, model = plan.traffic, plan.model
    shared = f", {traffic.shared:.0%} of each prompt shared" if traffic.shared else ""
    return (
        f"{figures.name(model.name)}: {model.parameters / 1e9:.3g} G parameters, "
        f"{figures.number(traffic.requests_per_s)} requests per second ({traffic.source}), "
        f"prompts: {traffic.prompt} tokens; answers: {traffic.output} tokens{shared}"
        f"{limits_in_words(plan.limits)}; all figures predicted"
    )


def served_by(setup: ServingSetup) -> str:
    """How each copy serves."""
    parts = [f"{setup.batching} batching of up to {setup.max_batch} sequences"]
    if setup.delay_ms is not None:
        parts.append(f"after {figures.ms(setup.delay_ms)} at the latest")
    if setup.batching == "continuous":
        parts.append(
            "whole prompts first"
            if setup.chunk_tokens is None
            else f"chunks of prompts in passes of {setup.chunk_tokens:,} tokens"
        )
    parts.append(f"cache in blocks of {setup.block_tokens} tokens")
    if setup.split:
        parts.append("prompts on GPUs of their own")
    if setup.draft_length is not None:
        parts.append(
            f"{setup.draft_length} tokens drafted per pass, {setup.acceptance:.0%} accepted, each "
            f"{setup.draft_cost:.0%} of a pass"
        )
    return "; ".join(parts)


def cells(row: ServingRow) -> tuple[str, ...]:
    """Of the columns."""
    copies = figures.count(row.copies)
    return (
        f"{row.target} {row.precision}",
        f"{row.devices} ({_band(row.devices_band)})",
        f"{row.readers} + {copies}" if row.readers else copies,
        figures.count(row.tensor),
        figures.count(row.pipeline),
        figures.NONE if row.usd_per_hour is None else figures.plain(row.usd_per_hour),
        figures.NONE if row.usd_per_million is None else figures.plain(row.usd_per_million),
        figures.number(row.tokens_per_s),
        figures.number(row.mean_batch),
        f"{row.cache_max or 0:.0%}",
        figures.count(row.preemptions),
        row.bound or figures.NONE,
    )


def between(ends: Sequence[float | None]) -> str:
    low, high = ends
    return f"{figures.number(low)}..{'unstable' if high is None else figures.number(high)}"


def _band(ends: Sequence[int | None] | None) -> str:
    low, high = ends or (None, None)
    return f"{low}..{'none' if high is None else high}"


def remarks(plan: ServingPlan) -> Iterator[str]:
    """How far the simulation reaches, and all notes."""
    rows = [row for row in plan.results if row.simulated is not None]
    for row in rows:
        one = row.simulated
        if one is not None:
            yield (
                f"{row.target} {row.precision}: simulated {one.requests:,} requests on "
                f"{one.copies} of {(row.copies or 0) + (row.readers or 0)} copies; "
                f"{one.counted:,} in {one.seconds:,.3g} s count, without the first fifth and the "
                "last tenth"
            )
    for row in rows:
        yield from (f"{row.target} {row.precision}: {note}" for note in row.notes)
        if row.unverified:
            yield f"{row.target}: unverified figures of the device: {', '.join(row.unverified)}"
    yield from plan.notes


def headline(plan: ServingPlan) -> Headline:
    """What to choose."""
    advice = plan.recommendation
    assert advice is not None
    best = chosen(plan.results)
    if not best:
        return Headline("fail", "No devices hold the load", advice.sentence, advice.conditions)
    sure = advice.likely and not advice.conditions
    title = devices_in_words(best[0])
    return Headline("likely" if sure else "inconclusive", title, advice.sentence, advice.conditions)


def _times(plan: ServingPlan) -> list[tuple[str, ...]]:
    return [
        (f"{row.target} {row.precision}", name, *_percentiles(one))
        for row in plan.results
        for name, one in (
            ("first token", row.ttft_ms),
            ("per token", row.tpot_ms),
            ("whole answer", row.e2e_ms),
        )
        if one is not None
    ]


def _percentiles(one: TimePercentiles) -> tuple[str, ...]:
    low, high = one.band
    return (
        figures.ms(one.p50),
        figures.ms(one.p95),
        figures.ms(one.p99),
        figures.span(one.interval, figures.ms),
        f"{figures.ms(low)} to unstable" if high is None else figures.span((low, high), figures.ms),
    )


def to_html(plan: ServingPlan) -> str:
    able = [row for row in plan.results if row.status == "ok"]
    return render(
        "serving.html",
        plan=plan,
        headline=headline(plan),
        asked=asked(plan),
        served_by=served_by(plan.setup),
        curve=load_curve(plan),
        columns=COLUMNS,
        rows=[cells(row) for row in able],
        times=_times(plan),
        prices=list(
            dict.fromkeys((row.target, price(row.price)) for row in able if row.price is not None)
        ),
        remarks=list(dict.fromkeys(remarks(plan))),
    )


def to_svg(plan: ServingPlan) -> str:
    """The drawing of the page."""
    return render_alone(
        "scatter", load_curve(plan), width=1240, height=322, absent="No load can be drawn."
    )
