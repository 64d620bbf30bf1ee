"""Results as a terminal reads them: short tables in which every figure names its evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from optkit.cli import terminal

Json = dict[str, Any]

_REMOVED = {"remove_dead": "node", "remove_unused": "constant"}  # rules that only tidy up


def table(results: list[Json]) -> str:
    """One row per build, then where each artifact lies and what is pending."""
    shown = [
        {**part, "target": " ".join([one["target"], name]).strip()}
        for one in results
        for name, part in (one["parts"] or {"": one}).items()
    ]
    rows = [
        [
            one["target"],
            one["precision"],
            verdict(one),
            _latency(one["latency"]),
            _ratio(one["speedup"], interval=False),
            _score(one["accuracy"]),
            _points(one["drop"]),
            _size(one["size"]),
            _landing(one["engine"]),
        ]
        for one in shown
    ]
    columns = [
        "target",
        "precision",
        "gate",
        "latency",
        "speedup",
        "accuracy",
        "drop",
        "size",
        "landed",
    ]
    lines = [terminal.table(columns, rows)]
    for one in shown:
        lines.append(f"{one['artifact']}: {_evidence(one)}")
        lines.append(f"  report: {one['artifact']}/report.html")
        lines += [
            f"  pending: {row['backend']}, finish with `{row['finish']}`" for row in one["pending"]
        ]
    return "\n".join(lines)


def remarks(result: Json) -> list[str]:
    """What a reader of the table should be told in words: undecided gates, and no gain."""
    found = list((result["gate"] or {}).get("reasons", []))
    speedup, baseline = result["speedup"], result["baseline"]
    if speedup and baseline and baseline["precision"] != result["precision"]:
        high = speedup["ci95"][1] if speedup["ci95"] else speedup["value"]
        if high < 1:
            found.append(
                f"not faster than {baseline['precision']}: {speedup['value']:.2f}x "
                f"({speedup['evidence']}); the report lists layers and bytes beside it"
            )
    return found


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
            rows.append(
                [role.replace("_", " "), f"batch {one['batch']}", _latency(one), one["evidence"]]
            )
    for one in made.get("speedup") or []:
        rows.append(["speedup", f"batch {one['batch']}", _ratio(one), one["evidence"]])
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
    return terminal.table(["figure", "of", "value", "how known"], rows)


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


def _latency(one: Json | None) -> str:
    """A prediction is a bound: no launch overhead, peak rates."""
    if not one:
        return "-"
    bound = ">= " if one["evidence"] == "predicted" else ""
    return f"{bound}{one['p50_ms']:.3g} ms b{one['batch']}"


def _ratio(one: Json | None, *, interval: bool = True) -> str:
    if not one:
        return "-"
    shown = interval and one["ci95"]
    span = f" [{one['ci95'][0]:.2f}, {one['ci95'][1]:.2f}]" if shown else ""
    return f"{one['value']:.2f}x{span}"


def _score(one: Json | None) -> str:
    return "-" if not one else f"{one['metric']} {one['value']:.4f}"


def _points(one: Json | None) -> str:
    if not one:
        return "-"
    low, high = (100 * end for end in one["ci95"] or (0, 0))
    span = f" [{low:.2f}, {high:.2f}]" if one["ci95"] else ""
    return f"{one['value']:.2%}{span}"


def _size(one: Json | None) -> str:
    if not one or one["bytes"] is None:
        return "-"
    share = f" ({one['bytes'] / one['baseline_bytes']:.0%})" if one["baseline_bytes"] else ""
    return f"{one['bytes'] / 2**20:.2f} MiB{share}"


def _landing(engine: Json | None) -> str:
    landing = engine and engine["landing"]
    return "-" if not landing else f"{landing['landed']}/{landing['planned']}"


def _evidence(one: Json) -> str:
    """How each group of figures is known, e.g. "engine compiled, latency predicted"."""
    parts = [
        f"{name} {one[name]['evidence']}"
        for name in ("engine", "latency", "accuracy", "fidelity")
        if one[name]
    ]
    return ", ".join(parts)
