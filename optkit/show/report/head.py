"""The head of a report for a notebook: the sentence, the figures with their evidence, the gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optkit.facts.documents.fleet import Fleet
from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import Result
from optkit.facts.documents.tune import Tune
from optkit.facts.errors import OptkitError
from optkit.ground.artifact import Artifact
from optkit.show.report import fleet_page as fleets
from optkit.show.report import search_page, view
from optkit.show.report.contract import result_of
from optkit.show.report.html import render
from optkit.show.report.view import Headline


@dataclass(frozen=True)
class HeadRow:
    """A line of the head: its texts, and how its figures are known."""

    cells: tuple[str, ...]
    known: tuple[str, ...]


def of_artifact(artifact: Artifact) -> str | None:
    """The head of the artifact's report; None if the result in its manifest cannot be read."""
    try:
        return of_result(result_of(artifact), str(artifact.path))
    except OptkitError:
        return None


def of_result(result: Result, place: str) -> str:
    subject = f"{result.model} for {result.target} in {result.precision}"
    return _head(subject, view.headline(result), _figures(result), result.gate, place)


def of_fleet(fleet: Fleet, place: str) -> str:
    rows = [
        HeadRow((row.target, row.precision, row.headline.title, row.latency.text, row.speedup.text,
             row.accuracy.text), row.known)
        for row in fleets.rows(fleet)
    ]  # fmt: skip
    subject = f"{fleet.model} for {len(fleet.targets)} targets"
    columns = ("target", "precision", "verdict", "latency", "speedup", "accuracy", "evidence")
    return _head(subject, fleets.headline(fleet), rows, None, place, columns)


def of_search(tune: Tune, result: Result, place: str) -> str:
    subject = f"{tune.model} for {tune.target}: which layers to quantize"
    return _head(subject, search_page.headline(tune, result), _figures(result), result.gate, place)


def _figures(result: Result) -> Iterable[HeadRow]:
    """Latency, then the figures that a reader looks for first; of each part, if there are parts."""
    for name, part in (result.parts or {"": result}).items():
        label = (name,) if name else ()
        if (latency := part.latency) is not None:
            shown = view.comparison(part)[0]
            cells = (*label, shown.candidate.text, shown.label)
            yield HeadRow(cells, (latency.evidence,))
        for one in view.highlights(part):
            yield HeadRow((*label, one.value, one.label), (one.evidence,))


def _head(
    subject: str,
    headline: Headline,
    rows: Iterable[HeadRow],
    gate: GateVerdict | None,
    place: str,
    columns: Sequence[str] = (),
) -> str:
    return render(
        "head.html",
        subject=subject,
        headline=headline,
        columns=columns,
        rows=tuple(rows),
        gate=gate,
        place=place,
    )
