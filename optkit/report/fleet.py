"""Several targets and precisions of one model: what each came to, side by side.

Schema `optkit.fleet/v1` (schemas/fleet.json), the file fleet.json of a fleet's folder:

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

from optkit.prediction.cost import Price, per_million
from optkit.report import figures, view
from optkit.report.html import environment
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
class Row:
    """One pair of target and precision, as a reader wants it; a part of a model has one of its
    own. `known`: how its figures are known."""

    target: str
    precision: str
    headline: view.Headline
    latency: str
    speedup: str
    accuracy: str
    drop: str
    size: str
    landed: str
    cost: str
    known: tuple[str, ...]
    report: str | None  # of its artifact, beside the fleet's folder


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


def work(fleet: Json) -> str:
    """How often a step was run, and how often its result was there already."""
    hits = sum(step["hit"] for step in fleet["steps"])
    seconds = sum(step["seconds"] for step in fleet["steps"] if not step["hit"])
    return f"{len(fleet['steps']) - hits} steps run in {seconds:.0f} s, {hits} found in the store"


def prices(fleet: Json) -> list[str]:
    """Where each price comes from, and of when it is."""
    return [
        f"{name}: {price['usd_per_hour']:g} US dollars per hour, {price['provider']}, "
        f"{price['as_of']}" + ("" if price["verified"] else " (unverified)")
        for name, target in fleet["targets"].items()
        if (price := target["price"]) is not None
    ]


def to_html(fleet: Json) -> str:
    """One HTML file like that of a build; reports of the artifacts are linked beside it."""
    template = environment().get_template("fleet.html")
    page = template.render(
        fleet=fleet, rows=rows(fleet), summary=summary(fleet), work=work(fleet),
        prices=prices(fleet), meaning=view.EVIDENCE,
    )  # fmt: skip
    return page.strip() + "\n"


def to_markdown(fleet: Json) -> str:
    """GitHub-flavoured Markdown, short enough for a pull request."""
    head = ("target", "precision", "verdict", "latency", "speedup", "accuracy", "drop", "size",
            "landed", "$ per million", "evidence")  # fmt: skip
    cells = [
        (r.target, r.precision, r.headline.title, r.latency, r.speedup, r.accuracy, r.drop, r.size,
         r.landed, r.cost, ", ".join(r.known))
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
        "\n".join(f"- {text(line)}" for line in prices(fleet)),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(fleet: Json, result: Json, one: Json, part: str) -> Row:
    target = fleet["targets"].get(result["target"]) or {"price": None}
    latency, price, cost = one["latency"], target["price"], None
    if latency is not None and price is not None:
        cost = per_million(Price(**price), latency["throughput"])
    landing = one["engine"] and one["engine"]["landing"]
    show = view.unit(one)
    evidence = [one[name]["evidence"] for name in ("engine", "latency", "accuracy") if one[name]]
    accuracy = one["accuracy"]
    value = figures.percent if accuracy and accuracy["proportion"] else figures.number
    return Row(
        target=" ".join([result["target"] or figures.NONE, part]).strip(),
        precision=result["precision"] or figures.NONE,
        headline=view.headline(one),
        latency=f"{figures.ms(one['latency']['p50_ms'])}, batch {one['latency']['batch']}"
        if one["latency"]
        else figures.NONE,
        speedup=figures.times(one["speedup"]["value"]) if one["speedup"] else figures.NONE,
        accuracy=f"{accuracy['metric']} {value(accuracy['value'])}" if accuracy else figures.NONE,
        drop=show(one["drop"]["value"]) if one["drop"] else figures.NONE,
        size=figures.size(one["size"] and one["size"]["bytes"]),
        landed=f"{landing['landed']} of {landing['planned']}" if landing else figures.NONE,
        cost=figures.NONE if cost is None else f"{cost:.3g}",
        known=tuple(dict.fromkeys(evidence)),
        report=_report(result["artifact"], one["artifact"]),
    )


def _report(whole: str | None, part: str | None) -> str | None:
    if whole is None or part is None:
        return None
    return f"../{PurePath(part).relative_to(PurePath(whole).parent).as_posix()}/report.html"
