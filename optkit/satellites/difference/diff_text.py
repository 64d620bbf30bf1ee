"""A comparison for people, in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from optkit.facts.documents.diff import (
    ComparedSide,
    Diff,
    FigureDiff,
    GraphDiff,
    KeyDiff,
    LayerChange,
    NamedNode,
)
from optkit.satellites.difference.graph_changes import QDQ
from optkit.show.report import diff_page as view
from optkit.show.report import figures

_WIDTH = 80
_MOST = 20  # rows of a list; --json has all


def to_text(diff: Diff) -> str:
    """Write a comparison as text. Control characters in foreign names are replaced."""
    lines = [*_side("a", diff.a), *_side("b", diff.b)]
    if diff.same:
        lines.append("no difference seen" if diff.figures else "no difference")
    lines += _figures(diff.figures)
    lines += _graph(diff.graph) if diff.graph else []
    lines += _layers(diff.layers)
    lines += _keys("recipe", diff.recipe)
    lines += _keys("data", diff.data)
    lines += _keys("versions", diff.versions)
    return "\n".join(line[:_WIDTH].rstrip() for line in lines)


def _side(key: str, side: ComparedSide) -> Iterator[str]:
    named = [name for name in (side.model, side.target, side.precision) if name]
    digest = f", {side.digest[:12]}" if side.digest else ""
    yield f"{key}  {figures.name(side.path)}"
    yield f"   {side.kind}{digest}" + (f": {figures.name(' '.join(named))}" if named else "")


def _figures(rows: Sequence[FigureDiff]) -> list[str]:
    if not rows:
        return []
    lines = ["figures"]
    for row in rows:
        a, b = (view.value(figure, row.unit) for figure in (row.a, row.b))
        lines.append(f"  {figures.name(row.figure)}: {a} -> {b}{_evidence(row)}")
        if row.change is not None:
            change = view.change(row)
            lines.append(f"    {view.seen(row)}: {change.value}, {change.spread}")
        elif row.seen == "unknown":
            lines.append(f"    not compared: {row.note}")
    return lines


def _evidence(row: FigureDiff) -> str:
    known = view.evidence(row)
    return f" ({', '.join(known)})" if known else ""


def _graph(graph: GraphDiff) -> list[str]:
    nodes, weights = graph.nodes, graph.weights
    if graph.same:
        return ["graph: the same nodes, weights and scales"]
    size = " -> ".join(map(figures.size, weights.bytes))
    lines = [f"graph: {nodes.a} -> {nodes.b} nodes, weights {size}"]
    lines += [f"  {word}: {changed}" for word, changed in view.interface(graph)]
    counts = [f"{row.op} {row.a} -> {row.b}" for row in graph.operators]
    lines += _listed("  operators", counts)
    lines += _listed("  nodes removed", _nodes("-", nodes.removed))
    lines += _listed("  nodes added", _nodes("+", nodes.added))
    lines += _listed(
        "  nodes changed", [f"{row.name}: {view.node_change(row)}" for row in nodes.changed]
    )
    if nodes.rewired:
        lines.append(f"  {nodes.rewired} nodes read other values, and are the same otherwise")
    products = [f"{row.node}: {row.a} -> {row.b}" for row in graph.precision]
    lines += _listed("  products", products)
    lines += _listed(
        "  weights",
        [
            *(f"- {name}" for name in weights.removed),
            *(f"+ {name}" for name in weights.added),
            *(f"{row.name}: {view.weight_change(row)}" for row in weights.changed),
        ],
    )
    lines += _listed(
        "  scales that moved",
        [f"{row.tensor}: {view.scale_change(row)}" for row in graph.scales.moved],
    )
    return lines


def _nodes(sign: str, rows: Sequence[NamedNode]) -> list[str]:
    others = [f"{sign} {row.op} {row.name}" for row in rows if row.op not in QDQ]
    pairs = len(rows) - len(others)
    return [*others, *([f"{sign} {pairs} {' and '.join(QDQ)}"] if pairs else [])]


def _layers(rows: Sequence[LayerChange]) -> list[str]:
    lines = []
    for row in rows:
        pairs = (("planned", row.precision), ("runs as", row.runs))
        changed = [f"{word} {view.was(*pair)}" for word, pair in pairs if pair[0] != pair[1]]
        lines.append(f"{row.node}: {', '.join(changed)}")
    return _listed("layers", lines)


def _keys(title: str, rows: Sequence[KeyDiff]) -> list[str]:
    return _listed(title, [f"{row.key}: {view.was(row.a, row.b)}" for row in rows])


def _listed(title: str, rows: Iterable[str]) -> list[str]:
    rows = list(rows)
    if not rows:
        return []
    indent = " " * (len(title) - len(title.lstrip()) + 2)
    more = (
        [f"{indent}... and {len(rows) - _MOST} more: --json has all"] if len(rows) > _MOST else []
    )
    return [f"{title}:", *(indent + figures.name(row) for row in rows[:_MOST]), *more]
