"""The first part of a report, independent of HTML or Markdown: headline, highlights, comparison.

Pure functions from the report to rows of text. Both writers show the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from optkit.craft.benchmarking.doubts import not_finite
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.report import AskedOfCompiler, Report
from optkit.facts.documents.result import EngineFacts, Result
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.engines import BuildSpec
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency, Score
from optkit.show.report import figures, recommendation_rules, titles, worth
from optkit.show.report.build_facts import described, facts
from optkit.show.report.layers import LayerRow
from optkit.show.report.titles import baseline_label, device_of, is_given, spelled, to_ship_instead

EVIDENCE: Mapping[str, str] = MappingProxyType(
    {
        "measured": "ran on the target",
        "compiled": "read from an engine compiled for the target; it did not run",
        "simulated": "the same graph, run by ONNX Runtime on a CPU",
        "predicted": "a performance model's value; its interval holds nine of ten measurements",
        "pending": "needs a host that has the target",
    }
)

Show = Callable[[float | None], str]
_Evidenced = Latency | Score | EngineFacts


@dataclass(frozen=True)
class Headline:
    """The verdict in one word (also a CSS class) and one sentence; what speaks against it."""

    word: str
    title: str
    sentence: str
    conditions: tuple[str, ...] = ()


def headline(result: Result) -> Headline:
    if (error := result.error) is not None:
        where = f"{error.where}: " if error.where else ""
        hint = f"; {error.hint}" if error.hint else ""
        title = "Impossible" if result.status == "impossible" else "Error"
        return Headline("fail", title, f"{where}{error.message}{hint}")
    advice = result.recommendation or recommendation_rules.of_result(result)
    if advice is None and result.pending:
        finish = "; ".join(row.finish for row in result.pending)
        return Headline("pending", "Pending", f"No engine yet. Finish with: {finish}")
    if advice is None:
        return Headline("pending", "Not judged", "No gate was judged.")
    return advised(advice, result)


def advised(advice: Recommendation, result: Result) -> Headline:
    """Green only where the candidate is measured to be worth shipping, and nothing speaks against
    its figures."""
    ours = spelled(result.precision)
    failed = result.gate is not None and result.gate.verdict == "fail"
    if failed or advice.ship == "none":
        neither = recommendation_rules.ship_neither(result)
        word, title = "fail", "Ship neither" if neither else f"Do not ship {ours}"
    elif advice.ship == "baseline":
        word, title = "inconclusive", f"Ship {to_ship_instead(result)}"
    elif advice.likely:
        word, title = "inconclusive" if advice.conditions else "likely", f"Try {ours}"
    elif advice.ship != "candidate":
        pending = result.status == "pending" or (result.latency is None and not result.parts)
        word, title = "pending" if pending else "inconclusive", f"Not yet: {ours}"
    else:
        word, title = "inconclusive" if advice.conditions else "pass", f"Ship {ours}"
    return Headline(word, title, advice.sentence, advice.conditions)


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
class ComparisonRow:
    """One line of the comparison; `known` lists how its figures are known, baseline's first."""

    label: str
    baseline: Figure
    candidate: Figure
    change: Figure
    known: tuple[str, ...]


def marks(result: Result) -> list[str]:
    """Why the measured latencies are not reliable, each reason once."""
    return worth.marks(result)


def suspicions(result: Result) -> list[str]:
    """Why the calibration data is in doubt, one sentence each; empty if it is not."""
    return list(map(str, result.calibration.findings if result.calibration else ()))


def losses(sizes: DeclaredSizes | None) -> list[str]:
    """What is lost at the declared sizes, one sentence each; empty if nothing is."""
    return [f"{one.what}; {one.hint}" for one in (sizes.findings if sizes else ())]


def about(report: Report) -> list[str]:
    """What the figures are of: the device, the sizes, the data, and when it was measured."""
    result = report.result
    return [
        device_of(result),
        *(["quantized by another tool"] if is_given(result) else []),
        *described(facts(result, report.provenance.recipe)),
    ]


def comparison(result: Result) -> list[ComparisonRow]:
    """Candidate and baseline, figure by figure, without lines that have no figure."""
    base = result.baseline
    rows = (
        *_latency_rows(result, base.latency if base else None, result.latency),
        *_accuracy_rows(result, base.accuracy if base else None, result.accuracy),
        *_fidelity_rows(result.fidelity),
        *_engine_rows(base.engine if base else None, result.engine),
    )
    return [row for row in rows if (row.baseline, row.candidate) != (_ABSENT, _ABSENT)]


def _latency_rows(
    result: Result, base: Latency | None, ours: Latency | None
) -> list[ComparisonRow]:
    shown, known = ours or base, _known(base, ours)
    label = f"Latency{worth.serving(result)}, batch {shown.batch if shown else None}"
    before, after = (_rate(side) for side in (base, ours))
    return [
        ComparisonRow(label, _latency(base), _latency(ours), _speedup(result.speedup), known),
        ComparisonRow("At least, at peak rates", _least(base), _least(ours), Figure(), known),
        ComparisonRow("Slowest 1 % of runs (p99)", _p99(base), _p99(ours), Figure(), known),
        ComparisonRow("Samples per second", before, after, Figure(), known),
    ]


def _least(latency: Latency | None) -> Figure:
    return _value(latency.at_least_ms if latency else None, figures.ms)


def _rate(latency: Latency | None) -> Figure:
    return _value(latency.throughput if latency else None, figures.rate)


def _latency(latency: Latency | None) -> Figure:
    if latency is None:
        return _ABSENT
    kind = "band " if latency.band else ""
    spread = figures.span(latency.ci95_ms or latency.band, figures.ms)
    return Figure(figures.ms(latency.p50_ms), kind + spread if spread else "")


def _p99(latency: Latency | None) -> Figure:
    if latency is None or (latency.p99_ms is None and latency.runs is None):
        return _ABSENT
    if latency.p99_ms is None:
        return Figure(f"unknown, of {figures.count(latency.runs)} runs")
    return Figure(figures.ms(latency.p99_ms))


def _speedup(speedup: Difference | None) -> Figure:
    if speedup is None:
        return Figure()
    kind = "band " if speedup.evidence is Evidence.PREDICTED else ""
    spread = figures.span(speedup.ci95, figures.times)
    return Figure(f"{figures.times(speedup.value)} as fast", kind + spread if spread else "")


def _accuracy_rows(result: Result, base: Score | None, ours: Score | None) -> list[ComparisonRow]:
    known = ours or base
    if known is None:
        return []
    show = figures.percent if known.proportion else figures.number
    better = ", lower is better" if known.lower_is_better else ""
    beside = f", baseline: {given}" if base and (given := titles.scored_beside(result)) else ""
    label = f"{known.metric}, {figures.count(known.samples)} samples{better}{beside}"
    return [
        ComparisonRow(
            label, _score(base, show), _score(ours, show), _drop(result), _known(base, ours)
        )
    ]


def _score(score: Score | None, show: Show) -> Figure:
    if score is None:
        return _ABSENT
    return Figure(show(score.value), figures.span(score.ci95, show))


def _drop(result: Result) -> Figure:
    drop = result.drop
    if drop is None:
        return Figure()
    show, word = unit(result), "drop" if drop.value >= 0 else "gain"
    return Figure(f"{word} {show(abs(drop.value))}", _drop_span(drop, show))


def _drop_span(drop: Difference, show: Show) -> str:
    """The interval of a drop; of a gain with the ends turned."""
    if drop.ci95 is None or drop.value >= 0:
        return figures.span(drop.ci95, show)
    return figures.span((-drop.ci95[1], -drop.ci95[0]), show)


def unit(result: Result) -> Show:
    """How a drop is shown: points of a proportion, else percent of the baseline."""
    proportion = result.accuracy is not None and result.accuracy.proportion
    return figures.points if proportion else figures.percent


def _fidelity_rows(fidelity: Fidelity | None) -> list[ComparisonRow]:
    if fidelity is None:
        return []
    worst = fidelity.worst
    cosine = "" if worst.cosine is None else f"cosine {worst.cosine:.6f}"
    over = (
        figures.span(worst.ci95, figures.decibels),
        cosine,
        f"{fidelity.samples:,} samples",
        figures.at_worst(fidelity),
        not_finite(fidelity),
        figures.unvaried(fidelity),
    )
    figure = Figure(figures.sqnr(fidelity), ", ".join(filter(None, over)))
    label = f"Fidelity to {fidelity.reference} (SQNR)"
    return [ComparisonRow(label, _ABSENT, figure, Figure(), (fidelity.evidence,))]


def _engine_rows(base: EngineFacts | None, ours: EngineFacts | None) -> list[ComparisonRow]:
    shown, known = ours or base, _known(base, ours)
    if shown is None:
        return []

    def line(label: str, of: Callable[[EngineFacts], int | None], show: Show) -> ComparisonRow:
        before, after = (of(side) if side else None for side in (base, ours))
        change = Figure(_change(before, after))
        return ComparisonRow(label, _value(before, show), _value(after, show), change, known)

    before, after = (side.latency if side else None for side in (base, ours))
    own = f"Latency, compiled by {titles.compiler(shown.backend)}"
    moved = "Bytes between fused layers" + (f", batch {shown.batch}" if shown.batch else "")
    return [
        line("Engine size", lambda engine: engine.bytes, figures.size),
        line("Fused layers", lambda engine: engine.layers, figures.count),
        line(moved, lambda engine: engine.bytes_moved, figures.size),
        ComparisonRow(own, _latency(before), _latency(after), Figure(), _known(before, after)),
    ]


def _change(base: float | None, ours: float | None) -> str:
    if not base or not ours:
        return ""
    change = ours / base - 1
    return "equal" if abs(change) < 5e-3 else f"{100 * change:+.0f} %".replace("-", "−")


def _value(value: float | None, show: Show) -> Figure:
    return _ABSENT if value is None else Figure(show(value))


def _known(base: _Evidenced | None, ours: _Evidenced | None) -> tuple[str, ...]:
    """Evidence of both sides, once where they agree."""
    return tuple(dict.fromkeys(side.evidence for side in (base, ours) if side is not None))


@dataclass(frozen=True)
class Highlight:
    """One of the few figures that a reader looks for first."""

    value: str
    label: str
    evidence: str


def highlights(result: Result) -> list[Highlight]:
    """Speedup, drop, size and landing, if they are known."""
    engine, size = result.engine, result.size
    baseline = baseline_label(result)
    rows = []
    if speedup := result.speedup:
        value = figures.times(speedup.value)
        rows.append(Highlight(value, f"as fast as {baseline}", speedup.evidence))
    if drop := result.drop:
        word = "drop" if drop.value >= 0 else "gain"
        label = f"{word} in {result.accuracy.metric}" if result.accuracy else word
        rows.append(Highlight(unit(result)(abs(drop.value)), label, drop.evidence))
    if size:
        change = _change(size.baseline_bytes, size.bytes)
        label = f"engine, {change} beside {baseline}" if change else "engine"
        rows.append(Highlight(figures.size(size.bytes), label, size.evidence))
    if engine and engine.landing and engine.landing.planned:
        value = figures.landed(engine.landing)
        rows.append(Highlight(value, "nodes run as planned", engine.evidence))
    return rows


@dataclass(frozen=True)
class CompilerRequest:
    """The request to a compiler for one precision: rows of (what, value, why)."""

    precision: str
    backend: str
    rows: list[tuple[str, str, str]]


def asked(report: Report) -> list[CompilerRequest]:
    """Each build spec once: where the candidate is the baseline there is one for both."""
    specs = report.provenance.build_spec.values()
    once = {(spec.precision, spec.backend): spec for spec in specs}
    return [CompilerRequest(*key, asked_rows(spec)) for key, spec in once.items()]


def asked_rows(spec: AskedOfCompiler | BuildSpec) -> list[tuple[str, str, str]]:
    """(what, value, why) of a build spec: the shapes, the workspace and every option."""

    def why(option: str) -> str:
        return str(spec.reasons.get(option, ""))

    rows = [
        (name, ", ".join("×".join(map(str, shape)) for shape in ends), why("profile"))
        for name, ends in spec.profile.items()
    ]
    if spec.workspace_bytes is not None:
        rows.append(("workspace", figures.size(spec.workspace_bytes), why("workspace_bytes")))
    for name, value in spec.options.items():
        if name.endswith("_bytes") and isinstance(value, int | float):
            value = figures.size(value)
        rows.append((name, figures.shown(value), why(name)))
    return rows


def memory(
    report: Report, ours: Sequence[LayerRow], theirs: Sequence[LayerRow]
) -> list[ComparisonRow]:
    """The memory of a model: weights, the largest reads and writes of one layer, the workspace of
    the compiler; and the measured peak of a run, if a gate needs it."""
    engine = report.result.engine
    compiled = engine.evidence if engine else ""
    specs = report.provenance.build_spec

    def workspace(role: str) -> str:
        return figures.size(specs[role].workspace_bytes if role in specs else None)

    rows = [
        ("Weights in the engine", _weights(theirs), _weights(ours), compiled),
        ("Most that one layer reads and writes", _most(theirs), _most(ours), compiled),
        (
            "Workspace the compiler may use",
            workspace("baseline_engine"),
            workspace("engine"),
            compiled,
        ),
    ]
    for gate in report.gates:
        if gate.gate == "max_memory_bytes" and gate.value is not None:
            peak = figures.size(gate.value)
            rows.append(("Peak of a run", figures.NONE, peak, gate.evidence or ""))
    return [
        ComparisonRow(
            label, Figure(baseline), Figure(candidate), Figure(), (known,) if known else ()
        )
        for label, baseline, candidate, known in rows
        if {baseline, candidate} != {figures.NONE}
    ]


def _weights(rows: Sequence[LayerRow]) -> str:
    known = [layer.weights for layer in rows if layer.weights is not None]
    return figures.size(sum(known)) if known else figures.NONE


def _most(rows: Sequence[LayerRow]) -> str:
    return figures.size(max((layer.moved for layer in rows if layer.moved), default=None))
