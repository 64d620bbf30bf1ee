"""docs/reference/findings.md: every finding of `optkit explain`, from its table of rules."""

from __future__ import annotations

from collections.abc import Iterator

from look_up import markdown
from optkit.show.explanation import RULES
from optkit.show.explanation.fixed import REMEDIES
from optkit.show.explanation.quantization_gains import LEAST


def page() -> str:
    return markdown.page(
        "# Findings of explain and of the report",
        "`optkit explain ARTIFACT`, the page of a report and `findings` in `report.json` name what "
        "costs time or accuracy. [Explain](explain.md) shows how to read a finding. "
        + markdown.made_from("the rules"),
        f"A finding whose cost is below {LEAST:.0%} is not listed. A cost is an estimate of what "
        "one change alone would gain: only a build of the changed recipe shows the result.",
        markdown.table(["finding", "when", "what to do", "cost", "evidence of the cost"], _rows()),
        "What the check of calibration samples finds is in [data](data.md).",
        "## What helps for a slow operator",
        markdown.table(["operators", "why it takes its time", "what to do"], _remedies()),
    )


def _rows() -> Iterator[tuple[str, ...]]:
    for rule in RULES:
        yield markdown.code(rule.name), rule.raised, rule.change, rule.cost, rule.evidence


def _remedies() -> Iterator[tuple[str, str, str]]:
    for remedy in dict.fromkeys(REMEDIES.values()):
        names = [name for name, found in REMEDIES.items() if found == remedy]
        yield markdown.words(names), remedy.why, remedy.change
