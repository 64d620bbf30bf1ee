"""Results as text for a terminal: short tables in which every figure has its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeVar

from optkit.facts.documents.against import Against
from optkit.facts.documents.model_figures import BenchFigures, EvalFigures
from optkit.facts.documents.result import CalibrationCheck, EngineFacts, Result
from optkit.facts.documents.rewrites import Rewrite
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency, PhaseTimes, Score
from optkit.show.explanation.words import several
from optkit.show.report import coverage, figures, worth
from optkit.show.report.figures import measured, name, unvaried
from optkit.show.report.titles import baseline_label
from optkit.show.report.view import losses
from optkit.verbs.cli import command_output

T = TypeVar("T")

_COLUMNS = ["figure", "of", "value", "how known"]

# rules that only simplify the graph
_REMOVED = {"remove_dead": "node", "remove_unused": "constant"}


def table(results: Iterable[Result]) -> str:
    """One row per build, then the path of each artifact and its pending parts."""
    shown = [
        (" ".join([str(one.target), name]).strip(), part)
        for one in results
        for name, part in (one.parts or {"": one}).items()
    ]
    batch = _common(part.latency.batch for _, part in shown if part.latency)
    metric = _common(part.accuracy.metric for _, part in shown if part.accuracy)
    rows = [
        [
            f"{target} {one.precision}",
            verdict(one),
            _latency(one.latency, batch=batch is None),
            _ratio(one.speedup, interval=False),
            _score(one.accuracy, metric=metric is None),
            _points(one.drop),
        ]
        for target, one in shown
    ]
    latency = "latency" if batch is None else f"latency b{batch}"
    columns = ["build", "gate", latency, "speedup", name(metric or "accuracy"), "drop"]
    return "\n".join(
        [command_output.folded(columns, rows), *(line for _, one in shown for line in _place(one))]
    )


def _common(values: Iterable[T]) -> T | None:
    """The value that all have in common; None if they differ."""
    known = set(values)
    return known.pop() if len(known) == 1 else None


def _place(one: Result) -> list[str]:
    """Lines about an artifact: its folder and content, the evidence of its figures, and what is
    pending."""
    near = (_fidelity(one.fidelity), _at_sizes(one.sizes))
    shares = (
        f"{of}{coverage.share(part.quantized, part.precision)}"
        for of, part in _named(one)
        if part.quantized is not None
    )
    held = ", ".join(filter(None, (_size(one), *shares, _landing(one.engine), *near)))
    return [
        f"{one.artifact}: {held}" if held else str(one.artifact),
        f"  {_evidence(one)}",
        f"  report: {one.artifact}/report.html",
        *(f"  pending: {row.backend}, finish with `{row.finish}`" for row in one.pending),
    ]


def remarks(result: Result) -> list[str]:
    """Notes below the table: undecided gates and unreliable figures."""
    parts = _parts(result)
    lines = list(result.gate.reasons if result.gate else ())
    lines += _left_in_float(result)
    if any(one.untrained is not None for one in parts):
        lines.append("the model is not trained, so gates say nothing about a trained one")
    lines += dict.fromkeys(filter(None, map(_doubt, parts)))
    if any(is_suspect(one.calibration) for one in parts):
        lines.append("calibration data is suspect, see above and in the report")
    lines += (f"suspect: {loss}" for one in parts for loss in losses(one.sizes))
    lines += stored(one.latency for one in parts)
    if reasons := marks(result):
        lines.append(f"latency measured under bad conditions: {'; '.join(reasons)}")
    return lines


def _left_in_float(result: Result) -> Iterator[str]:
    """Why products of a part are not quantized, if others are; if none is, the recommendation says
    why."""
    for part, one in _named(result):
        if one.quantized and one.quantized.quantized and (why := coverage.reasons(one.quantized)):
            yield f"{part}{why}"


def _doubt(part: Result) -> str | None:
    return None if part.fidelity is None else unvaried(part.fidelity)


def _named(result: Result) -> list[tuple[str, Result]]:
    """The parts of a result, with words before a note about one of them."""
    parts = result.parts or {"": result}
    return [(f"{name}: " if name else "", one) for name, one in parts.items()]


def _parts(result: Result) -> list[Result]:
    return [one for _, one in _named(result)]


def nothing_quantized(result: Result) -> bool:
    """Whether no product of a part, of which a quantized precision was asked, has it."""
    return any(coverage.nothing(one) for one in _parts(result))


def suspect(result: Result) -> bool:
    """Whether the calibration data of a result, or of one of its parts, or its fidelity at other
    sizes, is suspect."""
    return any(is_suspect(one.calibration) or is_suspect(one.sizes) for one in _parts(result))


def is_suspect(check: CalibrationCheck | DeclaredSizes | None) -> bool:
    return check is not None and check.verdict == "suspect"


def marks(result: Result) -> list[str]:
    """The reasons why the latencies of a result and its parts are not reliable, each reason
    once."""
    sides = [side.latency for one in _parts(result) for side in (one, one.baseline) if side]
    return list(dict.fromkeys(mark for one in sides if one for mark in one.marks))


def stored(latencies: Iterable[Latency | None]) -> list[str]:
    """Notes on latencies from the store: when and where they were measured, each once, and the
    command that measures again."""
    told = [measured(one) for one in latencies if one and one.from_store]
    return [
        f"latency {one}; `optkit cache clear --step bench` makes the next run measure again"
        for one in dict.fromkeys(told)
    ]


def race(against: Against) -> str:
    """The latencies of two artifacts, one line per batch size."""
    rows = [
        [
            str(row.batch),
            _median(row.latency),
            _median(row.against_latency),
            _slowdown(row.slowdown),
            row.outcome or "-",
        ]
        for row in against.rows
    ]
    lines = [command_output.table(["batch", "latency", "against", "slower by", "outcome"], rows)]
    lines += [f"batch {row.batch}: {row.reason}" for row in against.rows if row.reason]
    return "\n".join(lines)


def _median(latency: Latency) -> str:
    low, high = latency.ci95_ms or (latency.p50_ms, latency.p50_ms)
    return f"{latency.p50_ms:.4g} ms [{low:.4g}, {high:.4g}]"


def _slowdown(slower: Difference) -> str:
    low, high = (100 * end for end in slower.ci95 or (slower.value, slower.value))
    return f"{100 * slower.value:+.2f}% [{low:+.2f}, {high:+.2f}]"


def verdict(result: Result) -> str:
    if result.status in ("impossible", "error") or result.gate is None:
        return result.status
    return result.gate.verdict


def timings(found: BenchFigures) -> str:
    """The figures of `bench`, one per line."""
    rows = []
    for role, latencies in (
        ("latency", found.latency),
        ("baseline latency", found.baseline_latency),
    ):
        for one in latencies:
            rows.append([role, f"batch {one.batch}", _timing(one), one.evidence])
            rows += _phases(role, one)
    for ratio in found.speedup:
        rows.append(["speedup", f"batch {ratio.batch}", _ratio(ratio), ratio.evidence])
    return command_output.table(_COLUMNS, [*rows, *_sweep(found)])


def scores(found: EvalFigures) -> str:
    """The figures of `eval`, one per line."""
    rows = [
        [role, one.metric, _score(one), one.evidence]
        for role, one in (
            ("accuracy", found.accuracy),
            ("baseline accuracy", found.baseline_accuracy),
        )
        if one is not None
    ]
    if (drop := found.drop) is not None:
        rows.append(["drop", "", _points(drop), drop.evidence])
    near = found.fidelity
    sqnr = ", ".join(filter(None, (figures.sqnr(near), figures.at_worst(near))))
    rows.append(["fidelity", f"to {near.reference}", sqnr, near.evidence])
    rows += (
        ["fidelity", f"at {_spelled(end.sizes)}", figures.sqnr(end.fidelity), end.fidelity.evidence]
        for end in ((*found.sizes.ends, *found.sizes.between) if found.sizes else ())
        if end.fidelity is not None
    )
    for row in found.gate.rows:
        rows.append(["gate", row.gate, row.outcome, row.evidence or "-"])
    return command_output.table(_COLUMNS, rows)


def _phases(role: str, latency: Latency) -> list[list[str]]:
    """The phases of a run on a device: upload, compute, download, and enqueueing by the host."""
    if latency.phases is None:
        return []
    ways = {"launched": latency.phases.launched, "recorded": latency.phases.recorded}
    return [
        [
            f"{role}, {how}",
            f"batch {latency.batch}",
            f"{_together(one)}, enqueued {one.enqueue_ms:.3g} ms",
            latency.evidence,
        ]
        for how, one in ways.items()
    ]


def _together(one: PhaseTimes) -> str:
    return f"{one.upload_ms:.3g} + {one.compute_ms:.3g} + {one.download_ms:.3g}"


def _timing(one: Latency) -> str:
    """The median with its interval, and the p99 if there are enough runs."""
    interval, p99 = one.ci95_ms, one.p99_ms
    span = "" if interval is None else f" [{interval[0]:.3g}, {interval[1]:.3g}]"
    return _latency(one, batch=False) + span + ("" if p99 is None else f", p99 {p99:.3g} ms")


def _sweep(found: BenchFigures) -> list[list[str]]:
    """The batch size that a sweep chooses, and its throughput."""
    sweep, known = found.sweep, {one.batch: one for one in found.latency}
    rows = []
    if sweep.knee is not None:
        rows.append(["knee", "all batches", *_chosen(known[sweep.knee])])
    if sweep.limit_ms is not None:
        best = sweep.best_under_limit
        shown = ["none", found.latency[0].evidence] if best is None else _chosen(known[best])
        rows.append(["best batch", f"within {sweep.limit_ms:g} ms", *shown])
    return rows


def _chosen(one: Latency) -> list[str]:
    return [f"batch {one.batch}, {one.throughput:,.0f}/s", one.evidence]


def rewrites(entries: Sequence[Rewrite]) -> list[str]:
    """The rewrites of a stage, one line per rule, and the declined ones, one line per reason."""
    applied = Counter(entry.rule for entry in entries if entry.outcome == "applied")
    removed = [several(applied.pop(rule), what) for rule, what in _REMOVED.items() if applied[rule]]
    declined: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if entry.outcome == "declined":
            declined.setdefault((entry.rule, entry.reason), []).append(entry.node)
    return [
        *(f"{rule}: {count} applied" for rule, count in applied.items()),
        *([f"removed {' and '.join(removed)} without readers"] if removed else []),
        *(
            f"{rule}: declined at {nodes[0] if len(nodes) == 1 else f'{len(nodes)} nodes'}, {why}"
            for (rule, why), nodes in declined.items()
        ),
    ]


def _latency(one: Latency | None, *, batch: bool = True) -> str:
    if one is None:
        return "-"
    about = "~" if one.evidence is Evidence.PREDICTED else ""
    return f"{about}{one.p50_ms:.3g} ms" + (f" b{one.batch}" if batch else "")


def _ratio(one: Difference | None, *, interval: bool = True) -> str:
    if one is None:
        return "-"
    span = f" [{one.ci95[0]:.2f}, {one.ci95[1]:.2f}]" if interval and one.ci95 else ""
    return f"{one.value:.2f}x{span}"


def _score(one: Score | None, *, metric: bool = True) -> str:
    if one is None:
        return "-"
    return f"{one.metric} {one.value:.4f}" if metric else f"{one.value:.4f}"


def _points(one: Difference | None) -> str:
    if one is None:
        return "-"
    span = f" [{100 * one.ci95[0]:.2f}, {100 * one.ci95[1]:.2f}]" if one.ci95 else ""
    return f"{one.value:.2%}{span}"


def _size(result: Result) -> str:
    size, baseline = result.size, result.baseline
    if size is None:
        return ""
    share = size.baseline_bytes and size.bytes / size.baseline_bytes
    beside = f" ({share:.0%} of {baseline_label(result)})" if share and baseline else ""
    return f"{size.bytes / 2**20:.2f} MiB{beside}"


def _landing(engine: EngineFacts | None) -> str:
    landing = engine.landing if engine else None
    if landing is None or not landing.planned:
        return ""
    counts = f"{landing.landed}/{landing.planned} landed"
    return f"{counts}, {landing.unknown} unknown" if landing.unknown else counts


def _fidelity(near: Fidelity | None) -> str:
    if near is None:
        return ""
    if near.all_zero:
        return f"all outputs are zero, as those of {near.reference}"
    sqnr = "" if near.worst.sqnr_db is None else "SQNR "
    worst = f" ({worst})" if (worst := figures.at_worst(near)) else ""
    return f"{sqnr}{figures.sqnr(near)} to {near.reference}{worst}"


def _at_sizes(sizes: DeclaredSizes | None) -> str:
    """The fidelity where it is lowest among the declared sizes that were tried."""
    tried = () if sizes is None else (*sizes.ends, *sizes.between)
    found = {_spelled(one.sizes): one.fidelity for one in tried if one.fidelity is not None}
    decibels = {at: inf if (db := one.worst.sqnr_db) is None else db for at, one in found.items()}
    if not decibels:
        return ""
    at = min(decibels, key=decibels.__getitem__)
    among = "" if len(found) == 1 else f", the lowest of {len(found)} sizes"
    return f"{figures.sqnr(found[at])} at {at}{among}"


def _spelled(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size:,}" for axis, size in sizes.items())


def _evidence(one: Result) -> str:
    """The evidence of each group of figures, e.g. "engine compiled, latency predicted"."""
    groups = (
        ("engine", one.engine, worth.compiled_by(one)),
        ("latency", one.latency, worth.serving(one)),
        ("accuracy", one.accuracy, ""),
        ("fidelity", one.fidelity, ""),
    )
    return ", ".join(f"{name} {group.evidence}{of}" for name, group, of in groups if group)
