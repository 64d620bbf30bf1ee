"""The details behind the comparison: quantiles of latency, the machine of the measurement, memory,
cost, provenance; and what a report does not show, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from optkit.facts.device_facts import Price
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Latency
from optkit.show.report import figures
from optkit.show.report.titles import baseline_label


@dataclass(frozen=True)
class LatencyRow:
    """One model at one batch size. A quantile for which there are too few runs says so."""

    label: str
    batch: int
    median: str
    spread: str
    p90: str
    p95: str
    p99: str
    throughput: str
    runs: str
    outliers: str
    drift: str
    known: str


def timings(report: Report) -> list[LatencyRow]:
    """Baseline and candidate at every batch size, next to each other."""
    result, latencies = report.result, report.latencies
    baseline = baseline_label(result) or "baseline"
    sides = ((baseline, latencies.baseline), (str(result.precision), latencies.engine))
    rows = [_timed(label, one) for label, side in sides for one in side]
    return sorted(rows, key=lambda row: row.batch)


def _timed(label: str, latency: Latency) -> LatencyRow:
    def quantile(value: float | None, least: int) -> str:
        if value is None and latency.runs is not None:
            return f"needs {least:,} runs"
        return figures.ms(value)

    return LatencyRow(
        label,
        latency.batch,
        figures.ms(latency.p50_ms),
        figures.span(latency.ci95_ms or latency.band, figures.ms),
        quantile(latency.p90_ms, 100),
        quantile(latency.p95_ms, 200),
        quantile(latency.p99_ms, 1000),
        figures.rate(latency.throughput),
        figures.count(latency.runs),
        figures.count(latency.outliers),
        figures.percent(latency.drift),
        latency.evidence,
    )


@dataclass(frozen=True)
class Phase:
    """Where the time of a call on a device goes: medians in milliseconds."""

    label: str
    how: str
    upload: str
    compute: str
    download: str
    enqueue: str
    runs: str


def phases(result: Result) -> list[Phase]:
    """The phases of a call, launched one by one and recorded as a CUDA graph; empty unless a device
    measured them."""
    return [
        Phase(
            str(side.precision),
            how,
            figures.ms(times.upload_ms),
            figures.ms(times.compute_ms),
            figures.ms(times.download_ms),
            figures.ms(times.enqueue_ms),
            figures.count(times.runs),
        )
        for side in (result.baseline, result)
        if side and side.latency and (phases := side.latency.phases)
        for how, times in (("launched", phases.launched), ("recorded", phases.recorded))
    ]


def _ends(values: Sequence[float]) -> str:
    return " to ".join(f"{value:,.0f}" for value in dict.fromkeys(values))


_CONDITIONS: Mapping[str, tuple[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "cores": ("cores that may be used", lambda ends: f"{ends[0]} of {ends[1]}"),
        "governor": ("frequency governor", str),
        "load_average": ("load, before and after", lambda ends: f"{ends[0]:g}, {ends[1]:g}"),
        "frequency_mhz": ("clock, MHz", _ends),
        "other_cpu_share": ("taken by other processes", figures.percent),
        "neighbour_cpu_share": ("the other cores were busy", figures.percent),
        "steal_share": ("taken by other guests of the host", figures.percent),
        "quota_share": ("held back by a CPU quota", figures.percent),
        "throttles": ("thermal throttles", figures.count),
    }
)


def machine(conditions: Mapping[str, object]) -> list[tuple[str, str]]:
    """The host during the measurement of latency, without values that its system does not
    report."""
    found = []
    for key, value in flat(conditions).items():
        label, show = _CONDITIONS.get(key, (key.replace("_", " "), figures.shown))
        found.append((label, show(value)))
    return found


def price(dated: Price) -> str:
    """The source and the date of a price."""
    sure = "" if dated.verified else " (unverified)"
    return f"{dated.usd_per_hour:g} US dollars per hour, {dated.provider}, {dated.as_of}{sure}"


def flat(facts: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested keys joined with dots, without null or empty values."""
    found: dict[str, object] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            found[f"{prefix}{key}"] = value
    return found


def absent(report: Report) -> Iterator[tuple[str, str]]:
    """What this report cannot show, and why."""
    result, latency = report.result, report.result.latency
    if result.error is not None:
        yield "Everything else", "the build came to no artifact"
        return
    if latency is None:
        yield "Latency", "there is no engine yet"
    elif latency.evidence is not Evidence.MEASURED:
        yield "Latency distribution", f"nothing was timed; the latency is {latency.evidence}"
    elif latency.phases is None:
        yield "Compute, transfer and enqueue times", "only an engine on a GPU tells them"
    if result.accuracy is None:
        yield "Accuracy", "no evaluation task was given"
    if not report.landing:
        yield "Landing", "nothing was planned" if result.engine else "no engine was compiled"
    yield from _absent_of_layers(report)
    if not any(row.gate == "max_memory_bytes" for row in report.gates):
        yield "Peak memory of a run", "it is measured where a gate asks: gates.max_memory_bytes"
    if report.cost is None:
        why = f"no price of {result.target} is known" if latency else "no latency is known"
        yield "Cost", why
    yield "Other targets and precisions", "built together, they get a report side by side"


def _absent_of_layers(report: Report) -> Iterator[tuple[str, str]]:
    fidelity = report.layer_fidelity
    if fidelity is None:
        yield "Fidelity layer by layer", "nothing was quantized"
    elif not fidelity.rows:
        yield "Fidelity layer by layer", fidelity.reason or "no layer could be compared"
    if report.layer_times is None:
        why = "no sizes of its layers are known, or a profile needs more memory than was allowed"
        yield "Time of each layer", why if report.layers.engine else "no engine was compiled"
