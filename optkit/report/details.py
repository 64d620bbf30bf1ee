"""What stands behind the comparison: quantiles of latency, the machine that measured them, memory,
cost, provenance; and what a report does not show, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from optkit.report import figures
from optkit.report.layers import Layer

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Timed:
    """One model at one batch size; a quantile that the runs do not support says so."""

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


def timings(report: Json) -> list[Timed]:
    """Baseline and candidate at every batch size, next to each other."""
    result = report["result"]
    baseline = (result["baseline"] or {}).get("precision", "baseline")
    found = [
        _timed(label, one)
        for side, label in (("baseline", baseline), ("engine", result["precision"]))
        for one in report["latencies"][side]
    ]
    return sorted(found, key=lambda one: one.batch)


def _timed(label: str, one: Json) -> Timed:
    runs = one["runs"]

    def quantile(key: str, least: int) -> str:
        if one[key] is None and runs is not None:
            return f"needs {least:,} runs"
        return figures.ms(one[key])

    return Timed(
        label,
        one["batch"],
        figures.ms(one["p50_ms"]),
        figures.span(one["ci95_ms"] or one["band"], figures.ms),
        quantile("p90_ms", 100),
        quantile("p95_ms", 200),
        quantile("p99_ms", 1000),
        figures.rate(one["throughput"]),
        figures.count(runs),
        figures.count(one["outliers"]),
        figures.percent(one["drift"]),
        one["evidence"],
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


def phases(result: Json) -> list[Phase]:
    """Launched one by one and recorded as a CUDA graph; empty unless a device told."""
    base = result["baseline"] or {"precision": "", "latency": None}
    sides = ((base["precision"], base["latency"]), (result["precision"], result["latency"]))
    return [
        Phase(
            label, how, figures.ms(one["upload_ms"]), figures.ms(one["compute_ms"]),
            figures.ms(one["download_ms"]), figures.ms(one["enqueue_ms"]),
            figures.count(one["runs"]),
        )
        for label, latency in sides
        for how, one in ((latency or {}).get("phases") or {}).items()
    ]  # fmt: skip


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


def machine(conditions: Json) -> list[tuple[str, str]]:
    """The host while latency was measured; what its system does not tell is left out."""
    found = []
    for key, value in flat(conditions).items():
        label, show = _CONDITIONS.get(key, (key.replace("_", " "), figures.shown))
        found.append((label, show(value)))
    return found


@dataclass(frozen=True)
class Held:
    """One kind of memory, baseline beside candidate."""

    label: str
    baseline: str
    candidate: str
    known: str


def memory(report: Json, ours: Sequence[Layer], theirs: Sequence[Layer]) -> list[Held]:
    """What the model holds: weights, the most that one layer reads and writes, the workspace that
    the compiler may use; and the peak of a run, where a gate had it measured."""
    result = report["result"]
    compiled = (result["engine"] or {}).get("evidence", "")
    specs = report["provenance"]["build_spec"]

    def workspace(role: str) -> str:
        return figures.size((specs.get(role) or {}).get("workspace_bytes"))

    rows = [
        Held("Weights in the engine", _weights(theirs), _weights(ours), compiled),
        Held("Most that one layer reads and writes", _most(theirs), _most(ours), compiled),
        Held(
            "Workspace the compiler may use",
            workspace("baseline_engine"),
            workspace("engine"),
            compiled,
        ),
    ]
    for gate in report["gates"]:
        if gate["gate"] == "max_memory_bytes" and gate["value"] is not None:
            peak = figures.size(gate["value"])
            rows.append(Held("Peak of a run", figures.NONE, peak, gate["evidence"]))
    return [row for row in rows if {row.baseline, row.candidate} != {figures.NONE}]


def _weights(rows: Sequence[Layer]) -> str:
    known = [layer.weights for layer in rows if layer.weights is not None]
    return figures.size(sum(known)) if known else figures.NONE


def _most(rows: Sequence[Layer]) -> str:
    return figures.size(max((layer.moved for layer in rows if layer.moved), default=None))


def price(one: Json) -> str:
    """Where a price comes from, and of when it is."""
    sure = "" if one["verified"] else " (unverified)"
    return f"{one['usd_per_hour']:g} US dollars per hour, {one['provider']}, {one['as_of']}{sure}"


def dollars(value: float | None) -> str:
    return figures.NONE if value is None else f"${value:.3g}"


def flat(facts: Json, prefix: str = "") -> dict[str, Any]:
    """Nested keys joined with dots; what is null or empty is left out."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            found[f"{prefix}{key}"] = value
    return found


def absent(report: Json) -> Iterator[tuple[str, str]]:
    """What this report cannot show, and why."""
    result, latency = report["result"], report["result"]["latency"]
    if result["error"] is not None:
        yield "Everything else", "the build came to no artifact"
        return
    if latency is None:
        yield "Latency", "there is no engine yet"
    elif latency["evidence"] != "measured":
        yield "Latency distribution", f"nothing was timed; the latency is {latency['evidence']}"
    elif latency["phases"] is None:
        yield "Compute, transfer and enqueue times", "only an engine on a GPU tells them"
    if result["accuracy"] is None:
        yield "Accuracy", "no evaluation task was given"
    if not report["landing"]:
        yield "Landing", "no engine was compiled" if not result["engine"] else "nothing was planned"
    fidelity = report["layer_fidelity"]
    if fidelity is None:
        yield "Fidelity layer by layer", "nothing was quantized"
    elif not fidelity["rows"]:
        yield "Fidelity layer by layer", fidelity["reason"] or "no layer could be compared"
    if not any(row["gate"] == "max_memory_bytes" for row in report["gates"]):
        yield "Peak memory of a run", "it is measured where a gate asks: gates.max_memory_bytes"
    if report["cost"] is None:
        why = f"no price of {result['target']} is known" if latency else "no latency is known"
        yield "Cost", why
    yield "Other targets and precisions", "built together, they get a report side by side"
