"""Compares two artifacts, graphs or reports: real differences, and differences within the noise.

side            the kind of a path: an artifact, a .onnx file, a report.json or a result object
graph_changes   nodes, precision, weights and scales of two graphs
figure_changes  latency, accuracy, sizes: a difference is reported if the intervals support it
diff_text       the comparison as text of 80 columns
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit.facts.documents.diff import DIFF, Diff, GraphDiff, KeyDiff, LayerChange
from optkit.facts.documents.report import Report
from optkit.facts.errors import UsageError
from optkit.ground.execute.runner import Runner
from optkit.satellites.difference import figure_changes, graph_changes
from optkit.satellites.difference.diff_text import to_text
from optkit.satellites.difference.side import Side, opened

__all__ = ["diff", "to_text"]


def diff(a: Path, b: Path, runner: Runner) -> Diff:
    """The object `optkit.diff/v1`.

    Artifacts are verified, graphs are read in a worker, weights are compared by digest. Raises
    UsageError (a graph and a report), InputRefused, IntegrityError, and what staging raises.
    """
    before, after = (opened(path, runner) for path in (a, b))
    both_graphs = before.outline is not None and after.outline is not None
    both_figures = before.result is not None and after.result is not None
    if not both_graphs and not both_figures:
        raise UsageError(
            f"{before.kind} and {after.kind} cannot be compared",
            where=f"{a}, {b}",
            hint="give two artifacts, two .onnx files or two reports; an artifact fits both",
        )
    whole = Diff(
        schema=DIFF,
        a=before.described(),
        b=after.described(),
        same=True,
        graph=_graph(before, after),
        layers=_layers(before.report, after.report),
        figures=figure_changes.compare(before, after) if both_figures else (),
        recipe=_records(before.recipe, after.recipe),
        data=_records(before.data, after.data),
        versions=_records(before.versions, after.versions),
    )
    return whole.model_copy(update={"same": _same(whole)})


def _graph(a: Side, b: Side) -> GraphDiff | None:
    if a.outline is None or b.outline is None:
        return None
    return graph_changes.compare(a.outline, b.outline)


def _same(whole: Diff) -> bool:
    if whole.graph is not None and not whole.graph.same:
        return False
    if any(row.seen in ("higher", "lower", "other") for row in whole.figures):
        return False
    return not (whole.layers or whole.recipe or whole.data or whole.versions)


def _layers(a: Report | None, b: Report | None) -> tuple[LayerChange, ...]:
    """Nodes whose planned precision differs, or that run in another precision."""
    if a is None or b is None:
        return ()
    before, after = _planned(a), _planned(b)
    absent = (None, None)
    return tuple(
        LayerChange(node=node, precision=precision, runs=runs)
        for node in dict.fromkeys((*before, *after))
        if before.get(node) != after.get(node)
        for precision, runs in [zip(before.get(node, absent), after.get(node, absent), strict=True)]
    )


def _planned(report: Report) -> dict[str, tuple[str | None, str | None]]:
    """Node → the planned precision, and the type in which it runs."""
    planned: dict[str, str] = {row.node: row.precision for row in report.quantization}
    runs = {row.node: row.dtype for row in report.landing}
    planned = {**{row.node: row.planned for row in report.landing}, **planned}
    order = dict.fromkeys((*(row.node for row in report.quantization), *runs))
    return {node: (planned[node], runs.get(node)) for node in order}


def _records(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[KeyDiff, ...]:
    """The differences of records that both sides have. A report, for example, has no record of
    data."""
    return tuple(_keys(a, b)) if a and b else ()


def _keys(a: object, b: object, path: str = "") -> list[KeyDiff]:
    """The keys of two nested mappings that differ, each with both values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [
            row
            for key in dict.fromkeys((*a, *b))
            for row in _keys(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if a == b else [KeyDiff.model_validate({"key": path, "a": a, "b": b})]
