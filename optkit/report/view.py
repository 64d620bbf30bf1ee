"""What a report says first, before it is HTML or Markdown: headline, highlights, comparison.

Pure functions from the report document to rows of text. Both writers show the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from optkit.report import figures

EVIDENCE: Mapping[str, str] = MappingProxyType(
    {
        "measured": "ran on the target",
        "compiled": "read from an engine compiled for the target; it did not run",
        "simulated": "the same graph, run by ONNX Runtime on a CPU",
        "predicted": "a model's value; the truth may lie anywhere in its band",
        "pending": "needs a host that has the target",
    }
)

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """The verdict in one word (also a CSS class) and one sentence."""

    word: str
    title: str
    sentence: str


def headline(result: Json) -> Headline:
    if result["error"] is not None:
        error = result["error"]
        where = f"{error['where']}: " if error["where"] else ""
        hint = f"; {error['hint']}" if error["hint"] else ""
        title = "Impossible" if result["status"] == "impossible" else "Error"
        return Headline("fail", title, f"{where}{error['message']}{hint}")
    verdict = (result["gate"] or {}).get("verdict")
    reasons = "; ".join((result["gate"] or {}).get("reasons", ()))
    if verdict == "fail":
        return Headline("fail", "Gate failed", reasons)
    if result["status"] == "pending":
        finish = "; ".join(row["finish"] for row in result["pending"])
        return Headline("pending", "Pending", f"No engine yet. Finish with: {finish}")
    if verdict == "pass":
        return Headline("pass", "Pass", "Every gate holds.")
    if verdict == "inconclusive":
        return Headline("inconclusive", "Inconclusive", reasons)
    return Headline("pending", "Not judged", "No gate was judged.")


@dataclass(frozen=True)
class Figure:
    """A value and, where there is one, its interval: both as text."""

    value: str = ""
    spread: str = ""

    @property
    def text(self) -> str:
        return f"{self.value} ({self.spread})" if self.spread else self.value


_ABSENT = Figure(figures.NONE)


@dataclass(frozen=True)
class Row:
    """One line of the comparison; `known` lists how its figures are known, baseline's first."""

    label: str
    baseline: Figure
    candidate: Figure
    change: Figure
    known: tuple[str, ...]


def marks(result: Json) -> list[str]:
    """Why the measured latencies are no good ones, each reason once."""
    base = result["baseline"] or {"latency": None}
    sides = (result["latency"], base["latency"])
    return list(dict.fromkeys(reason for one in sides if one for reason in one["marks"]))


def suspicions(result: Json) -> list[str]:
    """Why the calibration data is in doubt, a sentence each; none where it is not."""
    found = (result.get("calibration") or {}).get("findings", ())
    return [
        ("" if one["input"] is None else f"input {one['input']!r}: ")
        + f"{one['what']}; {one['hint']}"
        for one in found
    ]


def comparison(result: Json) -> list[Row]:
    """Candidate beside baseline, figure by figure; lines without any figure are left out."""
    base = result["baseline"] or {"engine": None, "latency": None, "accuracy": None}
    rows = (
        *_latency_rows(result, base["latency"], result["latency"]),
        *_accuracy_rows(result, base["accuracy"], result["accuracy"]),
        *_fidelity_rows(result["fidelity"]),
        *_engine_rows(base["engine"], result["engine"]),
    )
    return [row for row in rows if (row.baseline, row.candidate) != (_ABSENT, _ABSENT)]


def _latency_rows(result: Json, base: Json | None, ours: Json | None) -> list[Row]:
    batch = (ours or base or {}).get("batch")
    known = _known(base, ours)

    def line(label: str, key: str, show: Any) -> Row:
        return Row(label, _value(base, key, show), _value(ours, key, show), Figure(), known)

    label = f"Latency, batch {batch}"
    return [
        Row(label, _latency(base), _latency(ours), _speedup(result["speedup"]), known),
        Row("Slowest 1 % of runs (p99)", _p99(base), _p99(ours), Figure(), known),
        line("Samples per second", "throughput", figures.rate),
    ]


def _latency(latency: Json | None) -> Figure:
    if latency is None:
        return _ABSENT
    kind = "band " if latency["band"] else ""
    spread = figures.span(latency["ci95_ms"] or latency["band"], figures.ms)
    return Figure(figures.ms(latency["p50_ms"]), kind + spread if spread else "")


def _p99(latency: Json | None) -> Figure:
    if latency is None or (latency["p99_ms"] is None and latency["runs"] is None):
        return _ABSENT
    if latency["p99_ms"] is None:
        return Figure(f"unknown, of {figures.count(latency['runs'])} runs")
    return Figure(figures.ms(latency["p99_ms"]))


def _speedup(speedup: Json | None) -> Figure:
    if speedup is None:
        return Figure()
    kind = "band " if speedup["evidence"] == "predicted" else ""
    spread = figures.span(speedup["ci95"], figures.times)
    return Figure(f"{figures.times(speedup['value'])} as fast", kind + spread if spread else "")


def _accuracy_rows(result: Json, base: Json | None, ours: Json | None) -> list[Row]:
    known = ours or base
    if known is None:
        return []
    show = figures.percent if known["proportion"] else figures.number
    better = ", lower is better" if known["lower_is_better"] else ""
    label = f"{known['metric']}, {figures.count(known['samples'])} samples{better}"
    return [Row(label, _score(base, show), _score(ours, show), _drop(result), _known(base, ours))]


def _score(score: Json | None, show: Any) -> Figure:
    if score is None:
        return _ABSENT
    return Figure(show(score["value"]), figures.span(score["ci95"], show))


def _drop(result: Json) -> Figure:
    drop = result["drop"]
    if drop is None:
        return Figure()
    show = unit(result)
    return Figure(f"drop {show(drop['value'])}", figures.span(drop["ci95"], show))


def unit(result: Json) -> Any:
    """How a drop is shown: points of a proportion, else percent of the baseline."""
    accuracy = result["accuracy"]
    return figures.points if accuracy and accuracy["proportion"] else figures.percent


def _fidelity_rows(fidelity: Json | None) -> list[Row]:
    if fidelity is None:
        return []
    sqnr = "bit-equal" if fidelity["sqnr_db"] is None else figures.decibels(fidelity["sqnr_db"])
    spread = figures.span(fidelity["ci95"], figures.decibels)
    over = (spread, f"cosine {fidelity['cosine']:.6f}", f"{fidelity['samples']:,} samples")
    figure = Figure(sqnr, ", ".join(filter(None, over)))
    label = f"Fidelity to {fidelity['reference']} (SQNR)"
    return [Row(label, _ABSENT, figure, Figure(), (fidelity["evidence"],))]


def _engine_rows(base: Json | None, ours: Json | None) -> list[Row]:
    known = _known(base, ours)

    def line(label: str, key: str, show: Any) -> Row:
        change = _change(base[key] if base else None, ours[key] if ours else None)
        return Row(label, _value(base, key, show), _value(ours, key, show), Figure(change), known)

    batch = (ours or base or {}).get("batch")
    moved = "Bytes between fused layers" + (f", batch {batch}" if batch else "")
    return [
        line("Engine size", "bytes", figures.size),
        line("Fused layers", "layers", figures.count),
        line(moved, "bytes_moved", figures.size),
    ]


def _change(base: float | None, ours: float | None) -> str:
    if not base or not ours:
        return ""
    change = ours / base - 1
    return "equal" if abs(change) < 5e-3 else f"{100 * change:+.0f} %".replace("-", "−")


def _value(record: Json | None, key: str, show: Any) -> Figure:
    return _ABSENT if record is None else Figure(show(record[key]))


def _known(base: Json | None, ours: Json | None) -> tuple[str, ...]:
    """Evidence of both sides, once where they agree."""
    return tuple(dict.fromkeys(side["evidence"] for side in (base, ours) if side is not None))


@dataclass(frozen=True)
class Highlight:
    """One of the few figures that a reader looks for first."""

    value: str
    label: str
    evidence: str


def highlights(result: Json) -> list[Highlight]:
    """Speedup, drop, size and landing, each where it is known."""
    engine, size = result["engine"], result["size"]
    baseline = (result["baseline"] or {}).get("precision")
    found = []
    if speedup := result["speedup"]:
        value = figures.times(speedup["value"])
        found.append(Highlight(value, f"as fast as {baseline}", speedup["evidence"]))
    if drop := result["drop"]:
        label = f"drop in {result['accuracy']['metric']}" if result["accuracy"] else "drop"
        found.append(Highlight(unit(result)(drop["value"]), label, drop["evidence"]))
    if size:
        change = _change(size["baseline_bytes"], size["bytes"])
        label = f"engine, {change} beside {baseline}" if change else "engine"
        found.append(Highlight(figures.size(size["bytes"]), label, size["evidence"]))
    if engine and engine["landing"] and engine["landing"]["planned"]:
        value = figures.landed(engine["landing"])
        found.append(Highlight(value, "nodes run as planned", engine["evidence"]))
    return found


@dataclass(frozen=True)
class Asked:
    """What a compiler was asked for one precision: rows of (what, value, why)."""

    precision: str
    backend: str
    rows: list[tuple[str, str, str]]


def asked(report: Json) -> list[Asked]:
    """Each build spec once: where the candidate is the baseline there is one for both."""
    specs = report["provenance"]["build_spec"].values()
    once = {(spec["precision"], spec["backend"]): spec for spec in specs}
    return [Asked(*key, asked_rows(spec)) for key, spec in once.items()]


def asked_rows(spec: Json) -> list[tuple[str, str, str]]:
    """(what, value, why) of a build spec's JSON: the shapes, the workspace and every option."""
    why = spec["reasons"]
    rows = [
        (name, ", ".join("×".join(map(str, shape)) for shape in ends), why.get("profile", ""))
        for name, ends in spec["profile"].items()
    ]
    if spec["workspace_bytes"] is not None:
        size = figures.size(spec["workspace_bytes"])
        rows.append(("workspace", size, why.get("workspace_bytes", "")))
    for name, value in spec["options"].items():
        told = figures.size(value) if name.endswith("_bytes") else figures.shown(value)
        rows.append((name, told, why.get(name, "")))
    return rows
