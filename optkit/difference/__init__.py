"""Two artifacts, graphs or reports side by side: what differs, and what only seems to.

side      what a path is: an artifact, a .onnx file, a report.json or a result object
graphs    nodes, precision, weights and scales of two graphs
figures   latency, accuracy, sizes: a difference is claimed where the intervals allow it
text      the same for people, 80 columns wide
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optkit.difference import figures, graphs
from optkit.difference.side import Side, opened
from optkit.difference.text import to_text
from optkit.errors import UsageError
from optkit.execute.runner import Runner

__all__ = ["DIFF", "diff", "to_text"]

DIFF = "optkit.diff/v1"

_RECORDS = ("recipe", "data", "versions")


def diff(a: Path, b: Path, runner: Runner) -> dict[str, Any]:
    """The object `optkit.diff/v1` (documents/diff.py).

    Artifacts are verified, graphs are read in a worker, weights are compared by digest. Raises
    UsageError (a graph beside a report), InputRefused, IntegrityError, and what staging raises.
    """
    before, after = (opened(path, runner) for path in (a, b))
    both_graphs = before.outline is not None and after.outline is not None
    both_figures = before.result is not None and after.result is not None
    if not both_graphs and not both_figures:
        raise UsageError(
            f"{before.kind} and {after.kind} have nothing in common",
            where=f"{a}, {b}",
            hint="give two artifacts, two .onnx files or two reports; an artifact goes with either",
        )
    found = {
        "graph": _graph(before, after),
        "layers": _layers(before.report, after.report),
        "figures": figures.compare(before, after) if both_figures else [],
        **{name: _told(getattr(before, name), getattr(after, name)) for name in _RECORDS},
    }
    return {"schema": DIFF, "a": before.to_json(), "b": after.to_json(), "same": _same(found),
            **found}  # fmt: skip


def _graph(a: Side, b: Side) -> dict[str, Any] | None:
    if a.outline is None or b.outline is None:
        return None
    return graphs.compare(a.outline, b.outline)


def _same(found: Mapping[str, Any]) -> bool:
    if found["graph"] is not None and not found["graph"]["same"]:
        return False
    if any(row["seen"] in ("higher", "lower", "other") for row in found["figures"]):
        return False
    return not any(found[name] for name in ("layers", *_RECORDS))


def _layers(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Nodes whose planned precision, or what they really run in, is another one."""
    if a is None or b is None:
        return []
    sides = [_planned(report) for report in (a, b)]
    return [
        {"node": node, **{key: [side.get(node, {}).get(key) for side in sides]
                          for key in ("precision", "runs")}}
        for node in dict.fromkeys((*sides[0], *sides[1]))
        if sides[0].get(node) != sides[1].get(node)
    ]  # fmt: skip


def _planned(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        row["node"]: {"precision": row["precision"], "runs": None} for row in report["quantization"]
    }
    for row in report["landing"]:
        found.setdefault(row["node"], {"precision": row["planned"]})["runs"] = row["dtype"]
    return found


def _told(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs, where both sides tell of it: a report alone knows no data."""
    return _keys(a, b) if a and b else []


def _keys(a: Any, b: Any, path: str = "") -> list[dict[str, Any]]:
    """The keys of two nested mappings that differ, each with both values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [
            row
            for key in dict.fromkeys((*a, *b))
            for row in _keys(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if a == b else [{"key": path, "a": a, "b": b}]
