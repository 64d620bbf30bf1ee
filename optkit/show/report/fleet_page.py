"""Several targets and precisions of one model: their results side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from optkit.craft.prediction.cost import per_million
from optkit.facts.device_facts import Price
from optkit.facts.documents.fleet import Fleet
from optkit.facts.documents.result import LandingCounts, PrecisionFigures, Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Latency, Score
from optkit.show.report import details, figures, view
from optkit.show.report.drawing.scatter import Scatter, ScatterPoint, scatter
from optkit.show.report.html import render
from optkit.show.report.markdown import table, text


@dataclass(frozen=True)
class FleetCell:
    """A figure of the table: its text, its interval as text, and the number to sort by."""

    text: str
    spread: str = ""
    value: float | None = None


_ABSENT = FleetCell(figures.NONE)


@dataclass(frozen=True)
class FleetTableRow:
    """One pair of target and precision; each part of a model has its own row. `known`: the evidence
    of its figures."""

    target: str
    precision: str
    headline: view.Headline
    latency: FleetCell
    speedup: FleetCell
    accuracy: FleetCell
    drop: FleetCell
    size: FleetCell
    landed: FleetCell
    cost: FleetCell
    known: tuple[str, ...]
    report: str | None  # of its artifact, beside the fleet's folder

    @property
    def figures(self) -> tuple[FleetCell, ...]:
        """In the order of `COLUMNS`."""
        return (
            self.latency,
            self.speedup,
            self.accuracy,
            self.drop,
            self.size,
            self.landed,
            self.cost,
        )


COLUMNS = ("latency", "speedup", "accuracy", "drop", "engine", "landed", "$ per million")


def _parts(fleet: Fleet) -> Iterator[tuple[Result, str, Result]]:
    """Every result with each of its parts and their names; one of no parts with itself."""
    for result in fleet.results:
        for name, part in (result.parts or {"": result}).items():
            yield result, name, part


def rows(fleet: Fleet) -> list[FleetTableRow]:
    """One row per result, or per part of it."""
    return [_row(fleet, *part) for part in _parts(fleet)]


def summary(fleet: Fleet) -> str:
    """How many pairs are built, pending, impossible or failed."""
    words = {"ok": "built", "gate_failed": "built, gate failed", "error": "failed"}
    states = [words.get(result.status, result.status) for result in fleet.results]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def headline(fleet: Fleet) -> view.Headline:
    """What to ship, of all that was built; green where the sentence names a candidate that is worth
    shipping, and nothing speaks against its figures."""
    advice = fleet.recommendation
    if advice is None:
        words = [row.headline.word for row in rows(fleet)]
        worst = "fail" if "fail" in words else "pending"
        return view.Headline(worst, "Nothing to ship", summary(fleet))
    title = summary(fleet).capitalize()
    word = "fail" if advice.ship == "none" else "inconclusive"
    if advice.decision in ("candidate", "likely") and not advice.conditions:
        word = "likely" if advice.likely else "pass"
    return view.Headline(word, title, advice.sentence, advice.conditions)


def work(fleet: Fleet) -> str:
    """How often a step was run, and how often its result was there already."""
    hits = sum(step.hit for step in fleet.steps)
    seconds = sum(step.seconds for step in fleet.steps if not step.hit)
    return f"{len(fleet.steps) - hits} steps run in {seconds:.0f} s, {hits} found in the store"


def prices(fleet: Fleet) -> list[tuple[str, str]]:
    """Target, and the source of its price."""
    return [
        (name, details.price(target.price))
        for name, target in fleet.targets.items()
        if target.price is not None
    ]


def points(fleet: Fleet) -> list[ScatterPoint]:
    """Every build, and every baseline once, of which latency and score are known."""
    drawn: dict[tuple[str, str], ScatterPoint] = {}
    for result, name, part in _parts(fleet):
        group = " ".join([result.target or "", name]).strip()
        sides: list[PrecisionFigures | Result] = [part.baseline] if part.baseline else []
        for side in [*sides, part]:
            latency, score, engine = side.latency, side.accuracy, side.engine
            key = (group, str(side.precision))
            if latency is not None and score is not None and key not in drawn:
                drawn[key] = ScatterPoint(
                    len(drawn) + 1,
                    " ".join(key),
                    group,
                    latency.p50_ms,
                    score.value,
                    engine.bytes if engine else None,
                    latency.evidence,
                )
    return list(drawn.values())


def plot(fleet: Fleet) -> Scatter | None:
    """Latency against score; None where less than two builds have both, of one metric."""
    scores = [part.accuracy for *_, part in _parts(fleet) if part.accuracy is not None]
    if len({score.metric for score in scores}) != 1:
        return None
    show = figures.percent if scores[0].proportion else figures.number
    return scatter(points(fleet), scores[0].metric, show, lower_is_better=scores[0].lower_is_better)


def to_html(fleet: Fleet) -> str:
    """One HTML file like that of a build, with links to the reports of the artifacts."""
    return render(
        "fleet.html",
        fleet=fleet,
        rows=rows(fleet),
        summary=summary(fleet),
        work=work(fleet),
        prices=prices(fleet),
        plot=plot(fleet),
        points=points(fleet),
        headline=headline(fleet),
        columns=COLUMNS,
    )


def to_markdown(fleet: Fleet) -> str:
    """GitHub-flavoured Markdown, short enough for a pull request."""
    head = ("target", "precision", "verdict", "latency", "speedup", "accuracy", "drop", "size",
            "landed", "$ per million", "evidence")  # fmt: skip
    cells = [
        (
            r.target,
            r.precision,
            r.headline.title,
            *(one.text for one in r.figures),
            ", ".join(r.known),
        )
        for r in rows(fleet)
    ]
    reasons = [
        f"- {text(f'{r.target} {r.precision}')}: {text(r.headline.sentence)}"
        for r in rows(fleet)
        if r.headline.word != "pass"
    ]
    parts = (
        f"## {text(fleet.model)}: {summary(fleet)}",
        table(head, cells),
        "\n".join(reasons),
        text(work(fleet)) + ".",
        "\n".join(f"- {text(f'{name}: {told}')}" for name, told in prices(fleet)),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(fleet: Fleet, result: Result, name: str, part: Result) -> FleetTableRow:
    target = fleet.targets.get(result.target or "")
    landing = part.engine and part.engine.landing
    known = [side.evidence for side in (part.engine, part.latency, part.accuracy) if side]
    return FleetTableRow(
        target=" ".join([result.target or figures.NONE, name]).strip(),
        precision=result.precision or figures.NONE,
        headline=view.headline(part),
        latency=_latency(part.latency),
        speedup=_difference(part.speedup, figures.times),
        accuracy=_accuracy(part.accuracy),
        drop=_difference(part.drop, view.unit(part)),
        size=FleetCell(figures.size(part.size.bytes), value=part.size.bytes)
        if part.size
        else _ABSENT,
        landed=_landed(landing) if landing else _ABSENT,
        cost=_cost(target.price if target else None, part.latency),
        known=tuple(dict.fromkeys(known)),
        report=_report(result.artifact, part.artifact),
    )


def _latency(latency: Latency | None) -> FleetCell:
    if latency is None:
        return _ABSENT
    text = f"{figures.ms(latency.p50_ms)}, batch {latency.batch}"
    spread = figures.span(latency.ci95_ms or latency.band, figures.ms)
    return FleetCell(text, f"band {spread}" if latency.band else spread, latency.p50_ms)


def _difference(difference: Difference | None, show: Callable[[float], str]) -> FleetCell:
    if difference is None:
        return _ABSENT
    kind = "band " if difference.evidence is Evidence.PREDICTED else ""
    spread = figures.span(difference.ci95, show)
    return FleetCell(show(difference.value), kind + spread if spread else "", difference.value)


def _accuracy(score: Score | None) -> FleetCell:
    if score is None:
        return _ABSENT
    show = figures.percent if score.proportion else figures.number
    text = f"{score.metric} {show(score.value)}"
    return FleetCell(text, figures.span(score.ci95, show), score.value)


def _landed(landing: LandingCounts) -> FleetCell:
    share = landing.landed / max(landing.planned, 1)
    return FleetCell(figures.landed(landing), value=share)


def _cost(price: Price | None, latency: Latency | None) -> FleetCell:
    if price is None or latency is None:
        return _ABSENT
    cost = per_million(price.usd_per_hour, latency.throughput)
    return FleetCell(f"{cost:.3g}", value=cost)


def _report(whole: str | None, part: str | None) -> str | None:
    if whole is None or part is None:
        return None
    return f"../{PurePath(part).relative_to(PurePath(whole).parent).as_posix()}/report.html"
