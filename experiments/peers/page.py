"""docs/studies/benchmarks.md, from the results of run.py: ratios, and how each is known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from configurations import CONFIGURATIONS, WORKLOADS, Configuration, Workload
from feeds import TEST

Row = dict[str, Any]
_GROUPS = {"int8": "INT8", "fp8": "FP8", "int4": "INT4, blocks of 32"}

_HEAD = Path(__file__).with_suffix(".md")


def write(found: Row) -> str:
    """The whole page."""
    parts = [_head(found)]
    for name, result in found["workloads"].items():
        parts.append(f"## {WORKLOADS[name].title} ({name.upper()})\n")
        parts += _tables(name, result)
    if rows := found.get("calibration"):
        parts += ["## Calibration alone, on W3\n", _calibration(rows)]
    if failures := found.get("failures"):
        parts.append("## Environments that could not be built\n")
        parts.append("\n".join(f"- {name}: {reason}" for name, reason in failures.items()) + "\n")
    parts.append(_repeat())
    return "\n".join(parts)


def _head(found: Row) -> str:
    machine = dict(found["machine"])
    machine["features"] = ", ".join(machine["features"]) or "no VNNI"
    peers = [
        f"{name} ({', '.join(f'{key} {value}' for key, value in versions.items())})"
        for name, versions in found["versions"].items()
    ]
    asked = sorted(
        {
            f"{key}={value}"
            for result in found["workloads"].values()
            for row in result["rows"].values()
            for key, value in row.get("session", {}).items()
        }
    )
    return _HEAD.read_text().format(
        date=found["date"],
        versions="; ".join(peers),
        samples=", ".join(f"{name.upper()} {count}" for name, count in TEST.items()),
        asked="`, `".join(asked) or "none",
        **machine,
    )


def _tables(name: str, result: Row) -> Iterable[str]:
    workload, rows = WORKLOADS[name], result["rows"]
    ours = [one for one in CONFIGURATIONS if one.workload == name and one.key in rows]
    on_cpu = [one for one in ours if one.runs or "score" in rows[one.key]]
    for group, title in _GROUPS.items():
        if members := [one for one in on_cpu if one.group == group]:
            yield f"### {title}\n\n{_table(workload, members, result)}"
    if summary := _against(workload, ours, result):
        yield summary
    if members := [one for one in ours if one.lands]:
        yield f"### TensorRT-RTX, compute capability 8.9\n\n{_landing(members, result)}"


def _table(workload: Workload, members: list[Configuration], result: Row) -> str:
    base = result["fp32"]
    head = ["tool", "quantize s", "process s", "peak MB", "size", workload.metric, "agree %",
            "SQNR dB", *(f"× FP32, batch {n}" for n in workload.batches)]  # fmt: skip
    milliseconds = [_milliseconds(result["latency"].get(str(n), {})) for n in workload.batches]
    lines = [["fp32", "", "", "", f"{base['bytes'] / 1e6:.1f} MB",
              _metric(workload, base["score"]), "", "", *milliseconds]]  # fmt: skip
    for one in members:
        row = result["rows"][one.key]
        mark = "¹" if row.get("session") else ""
        lines.append([f"{one.peer} {one.name}{mark}", *_cells(workload, one, row, result)])
    steps = {one.name: result["rows"][one.key].get("steps") for one in members}
    told = [f"{name} {_steps(found)}" for name, found in steps.items() if found]
    return _grid(head, lines) + (f"\nSeconds of optkit: {'; '.join(told)}.\n" if told else "")


def _steps(seconds: dict[str, float]) -> str:
    """The longest steps, by the first word of what they are called, and the rest."""
    largest = sorted(seconds, key=lambda name: -seconds[name])[:4]
    rest = sum(value for name, value in seconds.items() if name not in largest)
    parts = [f"{name.split()[0]} {seconds[name]:.1f}" for name in seconds if name in largest]
    return " + ".join([*parts, f"others {rest:.1f}"])


def _cells(workload: Workload, one: Configuration, row: Row, result: Row) -> list[str]:
    if "failure" in row:
        return [f"failed: {_plain(row['failure'])}", *[""] * (6 + len(workload.batches))]
    score = row.get("score", {})
    failed = score.get("failure")
    return [
        f"{row['seconds']:.1f}",
        f"{row['process_seconds']:.1f}",
        f"{row['peak_bytes'] / 1e6:.0f}",
        f"{row['bytes'] / result['fp32']['bytes']:.2f}×",
        f"does not run: {_plain(failed)}" if failed else _metric(workload, score),
        f"{score['agreement']:.1f}" if "agreement" in score else "",
        f"{score['sqnr_db']:.1f}" if "sqnr_db" in score else "",
        *(_ratio(result["latency"].get(str(n), {}).get(one.key)) for n in workload.batches),
    ]


def _metric(workload: Workload, score: Row) -> str:
    if workload.metric not in score:
        return ""
    value = score[workload.metric]
    return f"{value:.3f}" if workload.metric == "perplexity" else f"{value:.2f} %"


def _milliseconds(times: Row) -> str:
    return f"1 ({times['fp32']['min_ms']:.2f} ms)" if "fp32" in times else ""


def _ratio(times: Row | None) -> str:
    return f"{times['ratio']:.2f} ({times['median_ratio']:.2f})" if times else ""


def _plain(reason: str) -> str:
    return " ".join(reason.replace("|", "/").split())[:160]


def _grid(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _against(workload: Workload, ours: list[Configuration], result: Row) -> str:
    """optkit's INT8 and INT4 rows against the best usable peer's of this run, axis by axis."""
    lines = []
    for group in ("int8", "int4"):
        scored = [one for one in ours if one.group == group and one.runs
                  and "sqnr_db" in result["rows"][one.key].get("score", {})]  # fmt: skip
        peers = [one for one in scored if one.peer != "optkit" and _usable(workload, one, result)]
        for one in scored if peers else []:
            if one.peer == "optkit":
                lines.append([f"{one.name}", *_differences(workload, one, peers, result)])
    if not lines:
        return ""
    head = ["optkit", "SQNR, dB above the best", *(f"speed, batch {n}" for n in workload.batches),
            "quantize s", "peak memory", "size"]  # fmt: skip
    note = "Other tools count here only if their metric is at most 1 % worse than that of FP32.\n"
    return f"### optkit against the best other tool on each axis\n\n{_grid(head, lines)}\n{note}"


def _usable(workload: Workload, one: Configuration, result: Row) -> bool:
    """Whether its metric is within 1 % of FP32's: what is fast and wrong sets no mark."""
    base = result["fp32"]["score"][workload.metric]
    value = result["rows"][one.key]["score"][workload.metric]
    if workload.metric == "perplexity":
        return bool(value <= 1.01 * base)
    return bool(value >= base - 1)


def _differences(
    workload: Workload, one: Configuration, peers: list[Configuration], result: Row
) -> list[str]:
    rows = result["rows"]
    row = rows[one.key]
    best = max(peers, key=lambda peer: rows[peer.key]["score"]["sqnr_db"])
    gain = row["score"]["sqnr_db"] - rows[best.key]["score"]["sqnr_db"]
    cells = [f"{gain:+.1f} ({best.key})"]
    for batch in workload.batches:
        times = result["latency"].get(str(batch), {})
        timed = [peer for peer in peers if peer.key in times]
        if one.key not in times or not timed:
            cells.append("")
            continue
        fastest = max(timed, key=lambda peer: times[peer.key]["ratio"])
        quotient = times[one.key]["ratio"] / times[fastest.key]["ratio"]
        cells.append(f"{quotient:.2f}× ({fastest.key})")
    for figure in ("seconds", "peak_bytes", "bytes"):
        least = min(peers, key=lambda peer: rows[peer.key][figure])
        cells.append(f"{row[figure] / rows[least.key][figure]:.2f}× ({least.key})")
    return cells


def _landing(members: list[Configuration], result: Row) -> str:
    head = ["graph", "planned", "landed", "layers", "MB moved", "engine MB"]
    lines = [["fp32", *_landed(result["fp32"].get("landing"))]]
    for one in members:
        row = result["rows"][one.key]
        if "landing" in row or "failure" in row:
            lines.append([one.key, *_landed(row.get("landing", row))])
    return _grid(head, lines)


def _landed(found: Row | None) -> list[str]:
    found = found or {}
    for word in ("refused", "failure"):
        if reason := found.get(word):
            return [f"{word}: {_plain(reason)}", "", "", "", ""]
    moved = found.get("bytes_moved")
    return [
        str(found.get("planned", "")),
        str(found.get("landed", "")),
        str(found.get("layers", "")),
        f"{moved / 1e6:.1f}" if moved else "",
        f"{found['engine_bytes'] / 1e6:.2f}" if "engine_bytes" in found else "",
    ]


def _calibration(rows: list[Row]) -> str:
    done = [row for row in rows if "failure" not in row]
    base = next((row for row in done if row["peer"] == "onnxruntime"), None)
    head = ["tool", "samples", "s", "ms per sample", "peak MB", "time per sample", "peak memory"]
    lines = []
    for row in rows:
        name = [f"{row['peer']} {row['name']}", str(row["samples"])]
        if "failure" in row:
            lines.append([*name, f"failed: {_plain(row['failure'])}", "", "", "", ""])
            continue
        each = row["seconds"] / row["samples"]
        ratios = ["", ""]
        if base:
            ratios = [
                f"{each / (base['seconds'] / base['samples']):.2f}×",
                f"{row['peak_bytes'] / base['peak_bytes']:.2f}×",
            ]
        peak = f"{row['peak_bytes'] / 1e6:.0f}"
        lines.append([*name, f"{row['seconds']:.1f}", f"{each * 1e3:.1f}", peak, *ratios])
    note = (
        "Ratios are to ONNX Runtime's min-max. One pass of optkit serves every observer; seconds "
        "and memory (command and worker together) are those of its calibration step.\n"
    )
    return f"{_grid(head, lines)}\n{note}"


def _repeat() -> str:
    return (
        "## To repeat\n\n```text\npython experiments/peers/run.py                 # what changed\n"
        "python experiments/peers/run.py --again latency # the timings alone, on a quiet machine\n"
        "```\n"
    )
