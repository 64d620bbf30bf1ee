"""Several targets and precisions of one model: what each came to, side by side.

`optkit.fleet/v1` (documents/fleet.py), the file fleet.json of a fleet's folder:

    model, digest   of the whole fleet: the digests of its artifacts
    results         one result object per pair, in the order asked for
    artifacts       "target precision" → {"path", "digest"} of what was built
    targets         name → {"title", "price"}: US dollars per hour, with provider and date
    steps           every step of every pair, in order: {"pair", "step", "label", "key", "hit",
                    "seconds"}; a key that was made for one pair is a hit for the next
    versions        of all tools
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from optkit.documents.prices import DatedPrice
from optkit.prediction.cost import per_million
from optkit.report import details, figures, view
from optkit.report.drawing.scatter import Point, Scatter, scatter
from optkit.report.html import render
from optkit.report.markdown import table, text
from optkit.report.result import plain
from optkit.store import digest_json

FLEET = "optkit.fleet/v1"

Json = Mapping[str, Any]


def compose(
    model: str,
    results: Sequence[Json],
    *,
    artifacts: Mapping[str, Json],
    targets: Mapping[str, Json],
    steps: Sequence[Json],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Build the document. Raises ValueError for a figure that is not finite."""
    return plain(
        {
            "schema": FLEET,
            "model": model,
            "digest": digest_json({name: one["digest"] for name, one in artifacts.items()}),
            "results": [dict(one) for one in results],
            "artifacts": dict(artifacts),
            "targets": dict(targets),
            "steps": list(steps),
            "versions": dict(versions),
        }
    )


@dataclass(frozen=True)
class Entry:
    """A figure of the table: its text, its interval as text, and the number to sort by."""

    text: str
    spread: str = ""
    value: float | None = None


_ABSENT = Entry(figures.NONE)


@dataclass(frozen=True)
class Row:
    """One pair of target and precision, as a reader wants it; a part of a model has one of its
    own. `known`: how its figures are known."""

    target: str
    precision: str
    headline: view.Headline
    latency: Entry
    speedup: Entry
    accuracy: Entry
    drop: Entry
    size: Entry
    landed: Entry
    cost: Entry
    known: tuple[str, ...]
    report: str | None  # of its artifact, beside the fleet's folder

    @property
    def figures(self) -> tuple[Entry, ...]:
        return (self.latency, self.speedup, self.accuracy, self.drop, self.size, self.landed,
                self.cost)  # fmt: skip


def rows(fleet: Json) -> list[Row]:
    """One row per result, or per part of it."""
    found = []
    for result in fleet["results"]:
        for part, one in (result["parts"] or {"": result}).items():
            found.append(_row(fleet, result, one, part))
    return found


def summary(fleet: Json) -> str:
    """How many pairs are built, pending, impossible or failed."""
    words = {"ok": "built", "gate_failed": "built, gate failed", "error": "failed"}
    states = [words.get(one["status"], one["status"]) for one in fleet["results"]]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def headline(fleet: Json) -> view.Headline:
    """The worst of all verdicts, with how many have which."""
    found = [row.headline for row in rows(fleet)]
    titles = [one.title for one in found]
    counts = {title: titles.count(title) for title in titles}
    worst = min(found, key=lambda one: _WORST.index(one.word))
    told = ", ".join(f"{count} × {title}" for title, count in counts.items())
    return view.Headline(worst.word, worst.title if len(counts) == 1 else told, summary(fleet))


_WORST = ("fail", "inconclusive", "pending", "pass")


def work(fleet: Json) -> str:
    """How often a step was run, and how often its result was there already."""
    hits = sum(step["hit"] for step in fleet["steps"])
    seconds = sum(step["seconds"] for step in fleet["steps"] if not step["hit"])
    return f"{len(fleet['steps']) - hits} steps run in {seconds:.0f} s, {hits} found in the store"


def prices(fleet: Json) -> list[tuple[str, str]]:
    """Target, and where its price comes from."""
    return [
        (name, details.price(target["price"]))
        for name, target in fleet["targets"].items()
        if target["price"] is not None
    ]


def points(fleet: Json) -> list[Point]:
    """Every build, and every baseline once, of which latency and score are known."""
    found: dict[tuple[str, str], Point] = {}
    for result in fleet["results"]:
        for part, one in (result["parts"] or {"": result}).items():
            group = " ".join([result["target"] or "", part]).strip()
            for side in filter(None, (one["baseline"], one)):
                latency, score, engine = side["latency"], side["accuracy"], side["engine"]
                key = (group, side["precision"])
                if latency is not None and score is not None and key not in found:
                    found[key] = Point(
                        len(found) + 1, " ".join(key), group, latency["p50_ms"], score["value"],
                        engine and engine["bytes"], latency["evidence"],
                    )  # fmt: skip
    return list(found.values())


def plot(fleet: Json) -> Scatter | None:
    """Latency against score; None where less than two builds have both, of one metric."""
    scores = [
        one["accuracy"]
        for result in fleet["results"]
        for one in (result["parts"] or {"": result}).values()
        if one["accuracy"] is not None
    ]
    if len({score["metric"] for score in scores}) != 1:
        return None
    show = figures.percent if scores[0]["proportion"] else figures.number
    return scatter(points(fleet), scores[0]["metric"], show,
                   lower_is_better=scores[0]["lower_is_better"])  # fmt: skip


def to_html(fleet: Json) -> str:
    """One HTML file like that of a build; reports of the artifacts are linked beside it."""
    return render(
        "fleet.html", fleet=fleet, rows=rows(fleet), summary=summary(fleet), work=work(fleet),
        prices=prices(fleet), plot=plot(fleet), points=points(fleet), headline=headline(fleet),
    )  # fmt: skip


def to_markdown(fleet: Json) -> str:
    """GitHub-flavoured Markdown, short enough for a pull request."""
    head = ("target", "precision", "verdict", "latency", "speedup", "accuracy", "drop", "size",
            "landed", "$ per million", "evidence")  # fmt: skip
    cells = [
        (r.target, r.precision, r.headline.title, *(one.text for one in r.figures),
         ", ".join(r.known))
        for r in rows(fleet)
    ]  # fmt: skip
    reasons = [
        f"- {text(f'{r.target} {r.precision}')}: {text(r.headline.sentence)}"
        for r in rows(fleet)
        if r.headline.word != "pass"
    ]
    parts = (
        f"## {text(fleet['model'])}: {summary(fleet)}",
        table(head, cells),
        "\n".join(reasons),
        text(work(fleet)) + ".",
        "\n".join(f"- {text(f'{name}: {told}')}" for name, told in prices(fleet)),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(fleet: Json, result: Json, one: Json, part: str) -> Row:
    target = fleet["targets"].get(result["target"]) or {"price": None}
    price = target["price"]
    landing = one["engine"] and one["engine"]["landing"]
    evidence = [one[name]["evidence"] for name in ("engine", "latency", "accuracy") if one[name]]
    size = one["size"] and one["size"]["bytes"]
    return Row(
        target=" ".join([result["target"] or figures.NONE, part]).strip(),
        precision=result["precision"] or figures.NONE,
        headline=view.headline(one),
        latency=_latency(one["latency"]),
        speedup=_difference(one["speedup"], figures.times),
        accuracy=_accuracy(one["accuracy"]),
        drop=_difference(one["drop"], view.unit(one)),
        size=_ABSENT if size is None else Entry(figures.size(size), value=size),
        landed=_landed(landing) if landing else _ABSENT,
        cost=_cost(price, one["latency"]),
        known=tuple(dict.fromkeys(evidence)),
        report=_report(result["artifact"], one["artifact"]),
    )


def _latency(latency: Json | None) -> Entry:
    if latency is None:
        return _ABSENT
    text = f"{figures.ms(latency['p50_ms'])}, batch {latency['batch']}"
    spread = figures.span(latency["ci95_ms"] or latency["band"], figures.ms)
    return Entry(text, f"band {spread}" if latency["band"] else spread, latency["p50_ms"])


def _difference(found: Json | None, show: Any) -> Entry:
    if found is None:
        return _ABSENT
    kind = "band " if found["evidence"] == "predicted" else ""
    spread = figures.span(found["ci95"], show)
    return Entry(show(found["value"]), kind + spread if spread else "", found["value"])


def _accuracy(score: Json | None) -> Entry:
    if score is None:
        return _ABSENT
    show = figures.percent if score["proportion"] else figures.number
    text = f"{score['metric']} {show(score['value'])}"
    return Entry(text, figures.span(score["ci95"], show), score["value"])


def _landed(landing: Json) -> Entry:
    share = landing["landed"] / max(landing["planned"], 1)
    return Entry(figures.landed(landing), value=share)


def _cost(price: Json | None, latency: Json | None) -> Entry:
    if price is None or latency is None:
        return _ABSENT
    cost = per_million(DatedPrice(**price), latency["throughput"])
    return Entry(f"{cost:.3g}", value=cost)


def _report(whole: str | None, part: str | None) -> str | None:
    if whole is None or part is None:
        return None
    return f"../{PurePath(part).relative_to(PurePath(whole).parent).as_posix()}/report.html"
