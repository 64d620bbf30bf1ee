"""A plan of serving as text of at most 80 columns: the question, the devices of each kind, times,
notes, and what to do as the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from optkit.facts.documents.serving_plan import ServingPlan, ServingRow, TimePercentiles
from optkit.show.report import figures
from optkit.show.report import serving_page as words
from optkit.verbs.cli.command_output import folded

_WIDTH = 80


def lines(plan: ServingPlan) -> Iterator[str]:
    """The text of the plan."""
    yield from _wrapped(words.asked(plan))
    yield from _wrapped(words.served_by(plan.setup))
    if plan.model.assumed:
        yield from _wrapped(f"assumed: {'; '.join(plan.model.assumed)}")
    rows = [row for row in plan.results if row.status == "ok"]
    if rows:
        yield ""
        yield folded(list(words.COLUMNS), [list(words.cells(row)) for row in rows])
        yield ""
        yield folded(
            ["ms", "p50", "p95", "p99", "simulation", "prediction"],
            [cells for row in rows for cells in _times(row)],
        )
        yield ""
    for row in plan.results:
        if row.status != "ok":
            yield from _wrapped(f"{row.target} {row.precision}: {row.reason}")
    for line in dict.fromkeys(words.remarks(plan)):
        yield from _wrapped(f"- {line}")
    if plan.recommendation is not None:
        yield ""
        for doubt in plan.recommendation.conditions:
            yield from _wrapped(f"- {doubt}")
        yield from _wrapped(plan.recommendation.sentence)


def _times(row: ServingRow) -> Iterator[list[str]]:
    for name, one in (("ttft", row.ttft_ms), ("tpot", row.tpot_ms), ("e2e", row.e2e_ms)):
        if one is not None:
            yield [f"{row.target} {row.precision} {name}", *_percentiles(one)]


def _percentiles(one: TimePercentiles) -> Sequence[str]:
    return [
        *map(figures.number, (one.p50, one.p95, one.p99)),
        words.between(one.interval),
        words.between(one.band),
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ") or [""]
