"""Results as a terminal reads them: short tables in which every figure names its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from optkit.cli import terminal
from optkit.documents.against import Against
from optkit.documents.measured import DifferenceFigures, LatencyFigures
from optkit.measurement import Difference
from optkit.report.figures import measured, name

Json = dict[str, Any]

_REMOVED = {"remove_dead": "node", "remove_unused": "constant"}  # rules that only tidy up


def table(results: list[Json]) -> str:
    """One row per build, then where each artifact lies and what is pending."""
    shown = [
        {**part, "target": " ".join([one["target"], name]).strip()}
        for one in results
        for name, part in (one["parts"] or {"": one}).items()
    ]
    batch = _common(shown, "latency", "batch")
    metric = _common(shown, "accuracy", "metric")
    rows = [
        [
            f"{one['target']} {one['precision']}",
            verdict(one),
            _latency(one["latency"], batch=batch is None),
            _ratio(one["speedup"], interval=False),
            _score(one["accuracy"], metric=metric is None),
            _points(one["drop"]),
        ]
        for one in shown
    ]
    latency = "latency" if batch is None else f"latency b{batch}"
    columns = ["build", "gate", latency, "speedup", name(metric or "accuracy"), "drop"]
    return "\n".join(
        [terminal.folded(columns, rows), *(line for one in shown for line in _place(one))]
    )


def _common(shown: list[Json], part: str, key: str) -> Any:
    """What all that have it have alike; None where they differ."""
    found = {one[part][key] for one in shown if one[part]}
    return found.pop() if len(found) == 1 else None


def _place(one: Json) -> list[str]:
    """Where an artifact lies, what it holds, how its figures are known, and what is pending."""
    held = ", ".join(filter(None, (_size(one), _landing(one["engine"]), _fidelity(one))))
    return [
        f"{one['artifact']}: {held}" if held else str(one["artifact"]),
        f"  {_evidence(one)}",
        f"  report: {one['artifact']}/report.html",
        *(f"  pending: {row['backend']}, finish with `{row['finish']}`" for row in one["pending"]),
    ]


def remarks(result: Json) -> list[str]:
    """What a reader of the table should be told in words: undecided gates, and no gain."""
    found = list((result["gate"] or {}).get("reasons", []))
    if suspect(result):
        found.append("calibration data is suspect, see above and in the report")
    found += stored(side["latency"] for side in (result.get("parts") or {"": result}).values())
    if reasons := marks(result):
        found.append(f"latency measured under bad conditions: {'; '.join(reasons)}")
    speedup, baseline = result["speedup"], result["baseline"]
    other = speedup and baseline and baseline["precision"] != result["precision"]
    if other and Difference.from_json(speedup).below(1):
        found.append(
            f"not faster than {baseline['precision']}: {speedup['value']:.2f}x "
            f"({speedup['evidence']}); the report lists layers and bytes beside it"
        )
    return found


def suspect(result: Json) -> bool:
    """Whether the calibration data of a result, or of one of its parts, is in doubt."""
    each = (result.get("parts") or {"": result}).values()
    return any((one.get("calibration") or {}).get("verdict") == "suspect" for one in each)


def marks(result: Json) -> list[str]:
    """Why the latencies of a result are no good ones, each reason once; of all its parts."""
    each = list((result["parts"] or {"": result}).values())
    sides = [side["latency"] for one in each for side in (one, one["baseline"]) if side]
    return list(dict.fromkeys(mark for one in sides if one for mark in one.get("marks", ())))


def stored(latencies: Iterable[Json | None]) -> list[str]:
    """When and where those that come from the store were measured, each once, and how to measure
    anew."""
    told = [measured(one) for one in latencies if one and one.get("from_store")]
    return [f"latency {one}; `optkit cache clear --step bench` measures anew"
            for one in dict.fromkeys(told)]  # fmt: skip


def race(against: Against) -> str:
    """Two artifacts side by side, one line per batch size."""
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
    lines = [terminal.table(["batch", "latency", "against", "slower by", "outcome"], rows)]
    lines += [f"batch {row.batch}: {row.reason}" for row in against.rows if row.reason]
    return "\n".join(lines)


def _median(latency: LatencyFigures) -> str:
    low, high = latency.ci95_ms or (latency.p50_ms, latency.p50_ms)
    return f"{latency.p50_ms:.4g} ms [{low:.4g}, {high:.4g}]"


def _slowdown(slower: DifferenceFigures) -> str:
    low, high = (100 * end for end in slower.ci95 or (slower.value, slower.value))
    return f"{100 * slower.value:+.2f}% [{low:+.2f}, {high:+.2f}]"


def verdict(result: Json) -> str:
    if result["status"] in ("impossible", "error"):
        return str(result["status"])
    gate = result["gate"]
    return str(gate["verdict"]) if gate else str(result["status"])


def figures(made: Json) -> str:
    """What `bench` or `eval` found, one figure per line."""
    rows = []
    for role in ("latency", "baseline_latency"):
        for one in made.get(role) or []:
            what = role.replace("_", " ")
            rows.append([what, f"batch {one['batch']}", _timing(one), one["evidence"]])
            rows += _phases(what, one)
    for one in made.get("speedup") or []:
        rows.append(["speedup", f"batch {one['batch']}", _ratio(one), one["evidence"]])
    rows += _sweep(made)
    for role in ("accuracy", "baseline_accuracy"):
        if made.get(role):
            rows.append(
                [
                    role.replace("_", " "),
                    made[role]["metric"],
                    _score(made[role]),
                    made[role]["evidence"],
                ]
            )
    if made.get("drop"):
        rows.append(["drop", "", _points(made["drop"]), made["drop"]["evidence"]])
    if made.get("fidelity"):
        one = made["fidelity"]
        shown = "bit-equal" if one["sqnr_db"] is None else f"{one['sqnr_db']:.1f} dB"
        rows.append(["fidelity", f"to {one['reference']}", shown, one["evidence"]])
    for one in (made.get("gate") or {"rows": []})["rows"]:
        rows.append(["gate", one["gate"], one["outcome"], one["evidence"] or "-"])
    return terminal.table(["figure", "of", "value", "how known"], rows)


def _phases(role: str, one: Json) -> list[list[str]]:
    """Of a run on a device: copied there, worked, copied back, and enqueued by the host."""
    return [
        [f"{role}, {how}", f"batch {one['batch']}",
         "{upload_ms:.3g} + {compute_ms:.3g} + {download_ms:.3g}, enqueued {enqueue_ms:.3g} ms"
         .format_map(phases), one["evidence"]]
        for how, phases in (one.get("phases") or {}).items()
    ]  # fmt: skip


def _timing(one: Json) -> str:
    """The median with its interval, and the p99 where the runs are enough for one."""
    interval, p99 = one.get("ci95_ms"), one.get("p99_ms")
    span = "" if interval is None else f" [{interval[0]:.3g}, {interval[1]:.3g}]"
    return _latency(one, batch=False) + span + ("" if p99 is None else f", p99 {p99:.3g} ms")


def _sweep(made: Json) -> list[list[str]]:
    """The batch that a sweep chooses, and its throughput."""
    found = made.get("sweep") or {"knee": None, "limit_ms": None}
    known = {one["batch"]: one for one in made.get("latency") or []}
    rows = []
    if found["knee"] is not None:
        rows.append(["knee", "all batches", *_chosen(known[found["knee"]])])
    if found["limit_ms"] is not None:
        best = found["best_under_limit"]
        shown = ["none", made["latency"][0]["evidence"]] if best is None else _chosen(known[best])
        rows.append(["best batch", f"within {found['limit_ms']:g} ms", *shown])
    return rows


def _chosen(one: Json) -> list[str]:
    return [f"batch {one['batch']}, {one['throughput']:,.0f}/s", one["evidence"]]


def rewrites(details: Json) -> list[str]:
    """What a stage's rules did, one line per rule, and what they declined, one line per reason."""
    entries = (details.get("log") or {}).get("entries", [])
    applied = Counter(one["rule"] for one in entries if one["outcome"] == "applied")
    removed = [
        _counted(applied.pop(rule), what) for rule, what in _REMOVED.items() if applied[rule]
    ]
    declined: dict[tuple[str, str], list[str]] = {}
    for one in entries:
        if one["outcome"] == "declined":
            declined.setdefault((one["rule"], one["reason"]), []).append(one["node"])
    return [
        *(f"{rule}: {count} applied" for rule, count in applied.items()),
        *([f"removed {' and '.join(removed)} that nothing read"] if removed else []),
        *(
            f"{rule}: declined at {nodes[0] if len(nodes) == 1 else f'{len(nodes)} nodes'}, {why}"
            for (rule, why), nodes in declined.items()
        ),
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def inspection(found: Json) -> str:
    """A graph's summary, after an artifact's verdict where there is one."""
    lines = []
    if found.get("artifact"):
        result = found["artifact"]["result"]
        lines += [
            f"{found['artifact']['name']}: {verdict(result)}",
            f"digest {found['artifact']['digest']}",
            f"{found['artifact']['files']} files verified",
            table([result]),
        ]
    if found["parts"]:
        return "\n".join([*lines, *(f"\n{inspection(one)}" for one in found["parts"].values())])
    graph = found["graph"]
    lines.append(
        f"opset {graph['opset']['']}, {graph['parameters']:,} parameters, "
        f"{graph['weight_bytes'] / 2**20:.2f} MiB of weights"
    )
    macs = graph.get("macs")
    if macs is not None:
        sizes = " and ".join(f"{axis} {size}" for axis, size in graph["axes"].items())
        lines.append(f"{macs:,} multiply-accumulates" + (f" at {sizes}" if sizes else ""))
    rows = [["input", *_tensor(one)] for one in graph["inputs"]]
    rows += [["output", *_tensor(one)] for one in graph["outputs"]]
    lines.append(terminal.table(["", "name", "dtype", "shape"], rows))
    ops = sorted(graph["operators"].items(), key=lambda item: (-item[1], item[0]))
    lines.append("operators: " + ", ".join(f"{count} {name}" for name, count in ops))
    precision = graph["precision"]
    kinds = ", ".join(f"{n} {dtype}" for dtype, n in precision["initializers"].items())
    lines.append(
        f"precision: {precision['quantized_nodes']} of {precision['weighted_nodes']} products "
        f"quantized; initializers: {kinds}"
    )
    return "\n".join(lines)


def _tensor(one: Json) -> list[str]:
    return [one["name"], one["dtype"], "x".join(str(size) for size in one["shape"])]


def _latency(one: Json | None, *, batch: bool = True) -> str:
    """A prediction is a bound: no launch overhead, peak rates."""
    if not one:
        return "-"
    bound = ">= " if one["evidence"] == "predicted" else ""
    return f"{bound}{one['p50_ms']:.3g} ms" + (f" b{one['batch']}" if batch else "")


def _ratio(one: Json | None, *, interval: bool = True) -> str:
    if not one:
        return "-"
    shown = interval and one["ci95"]
    span = f" [{one['ci95'][0]:.2f}, {one['ci95'][1]:.2f}]" if shown else ""
    return f"{one['value']:.2f}x{span}"


def _score(one: Json | None, *, metric: bool = True) -> str:
    if not one:
        return "-"
    return f"{one['metric']} {one['value']:.4f}" if metric else f"{one['value']:.4f}"


def _points(one: Json | None) -> str:
    if not one:
        return "-"
    low, high = (100 * end for end in one["ci95"] or (0, 0))
    span = f" [{low:.2f}, {high:.2f}]" if one["ci95"] else ""
    return f"{one['value']:.2%}{span}"


def _size(result: Json) -> str:
    one, baseline = result["size"], result["baseline"]
    if not one or one["bytes"] is None:
        return ""
    share = one["baseline_bytes"] and one["bytes"] / one["baseline_bytes"]
    beside = f" ({share:.0%} of {baseline['precision']})" if share and baseline else ""
    return f"{one['bytes'] / 2**20:.2f} MiB{beside}"


def _landing(engine: Json | None) -> str:
    landing = engine and engine["landing"]
    if not landing:
        return ""
    told = f"{landing['landed']}/{landing['planned']} landed"
    return f"{told}, {unknown} unknown" if (unknown := landing.get("unknown")) else told


def _fidelity(one: Json) -> str:
    found = one["fidelity"]
    if not found:
        return ""
    shown = "bit-equal" if found["sqnr_db"] is None else f"SQNR {found['sqnr_db']:.1f} dB"
    return f"{shown} to {found['reference']}"


def _evidence(one: Json) -> str:
    """How each group of figures is known, e.g. "engine compiled, latency predicted"."""
    parts = [
        f"{name} {one[name]['evidence']}"
        for name in ("engine", "latency", "accuracy", "fidelity")
        if one[name]
    ]
    return ", ".join(parts)
