"""The report as Markdown, short enough for a pull request.

Names come from strangers: every character that Markdown or HTML reads as more than text is escaped,
and links, mentions and issue numbers are broken with a zero-width space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from optkit.facts.documents.report import Report, ServingCost
from optkit.facts.documents.result import PendingEngine, Result
from optkit.facts.engines import LandingRow
from optkit.facts.measurement import GateRow
from optkit.show.report import coverage, details, figures, layers, output_table, view
from optkit.show.report.titles import baseline_label

_MOST_ROWS = 20
_MOST_SENSITIVE = 5

# A backslash keeps the source readable where it is enough; in a table it does not tame a pipe.
_ESCAPES = str.maketrans({c: f"\\{c}" for c in "*_[]~"} | {c: f"&#{ord(c)};" for c in "\\`<>#|&$"})
_TRAPS = re.compile(r"://|@|www\.|#(?=\d)", re.IGNORECASE)  # links, mentions, issue numbers
_BREAK = "\u200b"


def to_markdown(report: Report) -> str:
    """A report as GitHub-flavoured Markdown."""
    result = report.result
    head = view.headline(result)
    title = " · ".join(map(text, (result.model, result.target, result.precision)))
    parts = (
        f"## {title}: {head.title}",
        f"**{head.title}.** {text(head.sentence)}",
        _suspicions(result),
        comparison(result),
        _outputs(result),
        measured(result),
        _marks(result),
        _gates(report.gates),
        _coverage(result),
        _landing(result, report.landing),
        _sensitive(report),
        _cost(report.cost),
        _pending(result.pending),
        _asked(view.asked(report), result.precision),
        legend(result),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def comparison(result: Result) -> str:
    """A table of the figures of baseline and candidate, with their evidence; empty if none."""
    rows = view.comparison(result)
    if not rows:
        return ""
    baseline = baseline_label(result) or "baseline"
    cells = [
        (r.label, r.baseline.text, r.candidate.text, r.change.text, ", ".join(r.known))
        for r in rows
    ]
    return table(("", baseline, result.precision, "change", "evidence"), cells)


def _outputs(result: Result) -> str:
    """A table of the outputs and their parts; empty for a single one, which `comparison` shows."""
    rows = output_table.outputs(result.fidelity)
    if len(rows) < 2:
        return ""
    shown = [
        (one.name, one.sqnr.text, one.interval, one.cosine, one.largest, one.channels, one.told)
        for one in rows[:_MOST_ROWS]
    ]
    more = len(rows) - len(shown)
    return table(output_table.HEAD, shown) + (f"\n\n… and {more} more." if more else "")


def _suspicions(result: Result) -> str:
    groups = {
        "Calibration data is suspect.": view.suspicions(result),
        "The fidelity is suspect at declared sizes.": view.losses(result.sizes),
    }
    parts = (
        "\n".join([f"**{title}**\n", *(f"- {text(one)}" for one in found)])
        for title, found in groups.items()
        if found
    )
    return "\n\n".join(parts)


def measured(result: Result) -> str:
    """When and where the latency was measured; empty if it was not."""
    found = figures.measured(result.latency)
    return f"Latency {text(found)}." if found else ""


def _marks(result: Result) -> str:
    found = view.marks(result)
    return f"**Measured under bad conditions:** {text('; '.join(found))}." if found else ""


def _gates(rows: Sequence[GateRow]) -> str:
    if not rows:
        return ""
    cells = [(row.gate, row.outcome, row.reason) for row in rows]
    return table(("gate", "outcome", "why"), cells)


def _coverage(result: Result) -> str:
    found = coverage.told(result)
    return f"**Quantized:** {text(found)}." if found else ""


def _landing(result: Result, rows: Sequence[LandingRow]) -> str:
    landing = result.engine.landing if result.engine else None
    if landing is None or not landing.planned:
        return ""
    told = f"**Landing:** {landing.landed} of {landing.planned} planned nodes run as planned."
    if landing.unknown:
        told += f" The compiler does not tell the type of {landing.unknown}."
    missed = [row for row in rows if row.landed is False]
    if not missed:
        return told
    cells = [(row.node, row.op, row.planned, row.dtype) for row in missed[:_MOST_ROWS]]
    more = len(missed) - len(cells)
    listed = table(("did not land", "op", "planned", "runs as"), cells)
    return f"{told}\n\n{listed}" + (f"\n\n… and {more} more." if more else "")


def _sensitive(report: Report) -> str:
    """The few nodes whose quantization costs most."""
    fidelity = report.layer_fidelity
    known = [row for row in layers.nodes(report, [], []) if row.alone.value is not None]
    if fidelity is None or not known:
        return ""
    cells = [
        (row.name, row.planned, row.gain.text, row.alone.text, row.together.text)
        for row in sorted(known, key=lambda row: (-(row.gain.value or 0.0), row.alone.value))
    ]
    head = ("costs most", "precision", "gain in FP32, dB", "alone, dB", "with all, dB")
    told = (
        f"**Layer by layer** ({fidelity.evidence}, {fidelity.samples} samples): SQNR beside "
        f"{text(fidelity.reference)}."
    )
    return f"{told}\n\n{table(head, cells[:_MOST_SENSITIVE])}"


def _cost(cost: ServingCost | None) -> str:
    if cost is None:
        return ""
    usd = cost.usd_per_million
    ours, base = figures.dollars(usd.engine), figures.dollars(usd.baseline)
    return (
        f"**Cost** ({cost.evidence}): {text(ours)} per million samples, baseline {text(base)}; "
        f"{text(details.price(cost.price))}."
    )


def _pending(rows: Sequence[PendingEngine]) -> str:
    if not rows:
        return ""
    lines = [f"- {text(row.backend)}: {text(row.finish)}" for row in rows]
    return "\n".join(("**Pending** (on a host with the target):", "", *lines))


def _asked(specs: Sequence[view.CompilerRequest], precision: str | None) -> str:
    """Folded: what each compiler is asked for the candidate, and why."""
    told = [spec for spec in specs if spec.precision == precision]
    return "\n\n".join(
        f"<details><summary>Build options of {text(spec.backend)}</summary>\n\n"
        f"{table(('option', 'value', 'why'), spec.rows)}\n\n</details>"
        for spec in told
    )


def legend(result: Result) -> str:
    """The meaning of each kind of evidence in the comparison."""
    used = dict.fromkeys(known for row in view.comparison(result) for known in row.known)
    told = [f"*{known}*: {view.EVIDENCE[known]}" for known in used if known in view.EVIDENCE]
    return "; ".join(told)


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table, every cell escaped."""
    head = tuple(head)
    lines = (head, *rows)
    cells = ["| " + " | ".join(text(cell) for cell in line) + " |" for line in lines]
    return "\n".join((cells[0], "|" + " --- |" * len(head), *cells[1:]))


def text(value: object) -> str:
    """Text that stays text wherever Markdown is read."""
    shown = figures.NONE if value is None else figures.name(value)
    return _TRAPS.sub(lambda found: found[0][0] + _BREAK + found[0][1:], shown).translate(_ESCAPES)
