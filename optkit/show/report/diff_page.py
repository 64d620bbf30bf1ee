"""The page of a comparison, and the words that it shares with the text of `optkit diff`.

The page shows an object of optkit.diff/v1 (documents/diff.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optkit.facts.documents.diff import (
    ChangedNode,
    ChangedWeight,
    ComparedSide,
    Diff,
    FigureDiff,
    GraphDiff,
    KeyDiff,
    KnownFigure,
    MovedScale,
)
from optkit.show.report import figures
from optkit.show.report.build_facts import described
from optkit.show.report.html import render
from optkit.show.report.view import Figure, Headline

_MORE_IS_WORSE = {"latency": True, "drop": True, "speedup": False, "SQNR": False}
_VERDICTS = {"fail": 0, "inconclusive": 1, "pass": 2}
_ORDER = ("verdict", "drop", "latency", "speedup", "SQNR")  # of the figures in the head
_MOST = 3  # figures in the head


def value(figure: KnownFigure, unit: str | None) -> str:
    """A figure of one side with its unit; four digits, since two of them are compared."""
    if figure.value is None:
        return "-"
    if isinstance(figure.value, str):
        return figures.name(figure.value)
    return _number(figure.value, unit)


def _number(number: float, unit: str | None) -> str:
    if unit == "bytes":
        return figures.size(number)
    if isinstance(number, int):
        return figures.count(number)
    return f"{number:.4g}" + (f" {unit}" if unit else "")


def evidence(row: FigureDiff) -> tuple[str, ...]:
    """The evidence of both sides, once if they agree."""
    return tuple(dict.fromkeys(side.evidence for side in (row.a, row.b) if side.evidence))


def change(row: FigureDiff) -> Figure:
    """b over a, or b minus a, with its interval; empty if they were not compared."""
    if row.change is None:
        return Figure()
    show = figures.times if row.change.kind == "ratio" else _signed
    low, high = row.change.interval
    kind = "band" if "predicted" in evidence(row) else "95 % interval"
    return Figure(show(row.change.value), f"{kind} {show(low)} to {show(high)}")


def _signed(number: float) -> str:
    return f"{number:+.3g}"


def seen(row: FigureDiff) -> str:
    return {"none": "no difference seen", "unknown": "not compared"}.get(row.seen, row.seen)


def was(before: object, after: object) -> str:
    return f"{figures.shown(before)} -> {figures.shown(after)}"


def node_change(row: ChangedNode) -> str:
    """The operators of a node and the attributes that differ."""
    before, after = row.op
    parts = [f"{before} -> {after}"] if before != after else [before]
    return ", ".join((*parts, *row.attributes))


def weight_change(row: ChangedWeight) -> str:
    forms = [f"{side.dtype} {'x'.join(map(str, side.shape))}" for side in (row.a, row.b)]
    return "other numbers" if forms[0] == forms[1] else " -> ".join(forms)


def scale_change(row: MovedScale) -> str:
    if row.factor is None:
        return f"{' -> '.join(map(str, row.count))} scales"
    low, high = (f"{end:.4g}" for end in row.factor)
    return f"x {low if low == high else f'{low} to {high}'}"


def interface(graph: GraphDiff) -> list[tuple[str, str]]:
    """Opset, inputs and outputs, if they differ."""
    pairs = (("opset", graph.opset), ("inputs", graph.inputs), ("outputs", graph.outputs))
    return [(word, was(*pair)) for word, pair in pairs if pair[0] != pair[1]]


@dataclass(frozen=True)
class DiffRow:
    """A figure of both sides as text; `tone`: the CSS class of what was seen."""

    figure: str
    a: Figure
    b: Figure
    change: Figure
    seen: str
    tone: str
    known: tuple[str, ...]
    note: str


def _row(row: FigureDiff) -> DiffRow:
    a, b = (_with_interval(figure, row.unit) for figure in (row.a, row.b))
    worse = _worse(row)
    tone = "pending" if worse is None else "fail" if worse else "pass"
    return DiffRow(row.figure, a, b, change(row), seen(row), tone, evidence(row), row.note or "")


def _with_interval(figure: KnownFigure, unit: str | None) -> Figure:
    if figure.value is None:
        return Figure(figures.NONE)
    spread = figures.span(figure.interval, lambda end: _number(end, unit))
    return Figure(value(figure, unit), spread)


def _worse(row: FigureDiff) -> bool | None:
    """Whether B is worse in this figure; None if it does not differ, or neither is better."""
    if row.figure == "verdict":
        a, b = (_VERDICTS.get(str(side.value)) for side in (row.a, row.b))
        return None if a is None or b is None or a == b else b < a
    more_is_worse = _MORE_IS_WORSE.get(_kind(row))
    if more_is_worse is None or row.seen not in ("higher", "lower"):
        return None
    return (row.seen == "higher") == more_is_worse


def _kind(row: FigureDiff) -> str:
    """`latency` of "latency, batch 8"."""
    return row.figure.partition(",")[0]


def headline(diff: Diff) -> Headline:
    """Whether B is better or worse, by which figures, and which figures cannot be compared."""
    differ = sorted(
        (row for row in diff.figures if row.seen in ("higher", "lower", "other")), key=_importance
    )
    worse = [row.figure for row in differ if _worse(row)]
    better = [row.figure for row in differ if _worse(row) is False]
    parts = [
        f"{word} in {', '.join(rows)}"
        for word, rows in (("worse", worse), ("better", better))
        if rows
    ]
    if diff.same:
        word, title = "pass", "No difference seen" if diff.figures else "No difference"
    elif parts:
        word, title = "fail" if worse else "pass", f"B is {' and '.join(parts)}"
    else:
        word, title = "pending", "B differs"
    sentence = "; ".join(_claim(row) for row in differ[:_MOST]) or _elsewhere(diff)
    return Headline(word, title, f"{sentence}.", _uncompared(diff.figures))


def _importance(row: FigureDiff) -> int:
    return _ORDER.index(_kind(row)) if _kind(row) in _ORDER else len(_ORDER)


def _claim(row: FigureDiff) -> str:
    a, b = (value(figure, row.unit) for figure in (row.a, row.b))
    facts = [change(row).text, *evidence(row)]
    known = ", ".join(filter(None, facts))
    return f"{row.figure}: {a} in A, {b} in B" + (f" ({known})" if known else "")


def _elsewhere(diff: Diff) -> str:
    """The differences outside the figures, counted."""
    graph = diff.graph
    changed = 0 if graph is None or graph.same else _nodes(graph)
    counts = (
        ("nodes of the graph", changed),
        ("weights", _weights(graph) if graph else 0),
        ("scales", len(graph.scales.moved) if graph else 0),
        ("layers in another precision", len(diff.layers)),
        ("settings", len(diff.recipe)),
        ("digests of data", len(diff.data)),
        ("versions", len(diff.versions)),
    )
    differ = [f"{count:,} {what}" for what, count in counts if count]
    figure = "No figure differs by more than chance" if diff.figures else "No figures were compared"
    if not differ:
        return figure if diff.figures else "The graphs have the same nodes, weights and scales"
    return f"{figure}; what differs: {', '.join(differ)}"


def _nodes(graph: GraphDiff) -> int:
    nodes = graph.nodes
    return len(nodes.added) + len(nodes.removed) + len(nodes.changed) + nodes.rewired


def _weights(graph: GraphDiff) -> int:
    weights = graph.weights
    return len(weights.added) + len(weights.removed) + len(weights.changed)


def _uncompared(rows: Sequence[FigureDiff]) -> tuple[str, ...]:
    """The figures that cannot be compared: one sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.seen == "unknown":
            reasons.setdefault(row.note or "", []).append(row.figure)
    return tuple(f"not compared ({why}): {', '.join(names)}" for why, names in reasons.items())


Listed = tuple[str, str]  # a name, and what differs


def _lists(graph: GraphDiff) -> list[tuple[str, list[Listed]]]:
    """The parts of two graphs that differ, with a title each; without empty ones."""
    nodes, weights = graph.nodes, graph.weights
    lists = (
        (
            "Products that multiply in other dtypes",
            [(row.node, f"{row.a} -> {row.b}") for row in graph.precision],
        ),
        ("Operators", [(row.op, f"{row.a:,} -> {row.b:,} nodes") for row in graph.operators]),
        (
            "Nodes",
            [
                *((row.name, f"only in A, {row.op}") for row in nodes.removed),
                *((row.name, f"only in B, {row.op}") for row in nodes.added),
                *((row.name, node_change(row)) for row in nodes.changed),
            ],
        ),
        (
            "Weights",
            [
                *((name, "only in A") for name in weights.removed),
                *((name, "only in B") for name in weights.added),
                *((row.name, weight_change(row)) for row in weights.changed),
            ],
        ),
        ("Scales", [(row.tensor, scale_change(row)) for row in graph.scales.moved]),
    )
    return [(title, rows) for title, rows in lists if rows]


def _size(graph: GraphDiff) -> list[tuple[str, str]]:
    """The two graphs in numbers."""
    nodes, scales = graph.nodes, graph.scales
    return [
        ("nodes", f"{nodes.a:,} -> {nodes.b:,}"),
        ("weights", " -> ".join(map(figures.size, graph.weights.bytes))),
        ("scales", f"{scales.a:,} -> {scales.b:,}"),
        ("nodes that only read other values", f"{nodes.rewired:,}"),
        *interface(graph),
    ]


def _side(side: ComparedSide) -> list[tuple[str, str]]:
    """What one side is; without values that are not known."""
    facts = (
        ("path", side.path),
        ("kind", side.kind),
        ("model", side.model),
        ("target", side.target),
        ("precision", side.precision),
        ("digest", side.digest),
    )
    return [(word, fact) for word, fact in facts if fact]


def _about(side: ComparedSide) -> list[str]:
    """The head's line about one side."""
    named = " ".join(filter(None, (side.model, side.target, side.precision)))
    return [named or side.kind, *described(side.build)]


def _keys(rows: Sequence[KeyDiff]) -> list[tuple[str, str, str]]:
    return [(row.key, figures.shown(row.a), figures.shown(row.b)) for row in rows]


def to_html(diff: Diff) -> str:
    keys = (("Recipe", diff.recipe), ("Data", diff.data), ("Versions", diff.versions))
    return render(
        "diff.html",
        diff=diff,
        about=[("A", _about(diff.a)), ("B", _about(diff.b))],
        headline=headline(diff),
        rows=[_row(row) for row in diff.figures],
        sides=[("A", _side(diff.a)), ("B", _side(diff.b))],
        size=_size(diff.graph) if diff.graph else [],
        lists=_lists(diff.graph) if diff.graph else [],
        keys=[(title, _keys(rows)) for title, rows in keys if rows],
    )
