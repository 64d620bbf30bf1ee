"""A comparison for people, in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from optkit.difference.graphs import QDQ
from optkit.documents.diff import (
    ChangedNode,
    ChangedWeight,
    ComparedSide,
    Diff,
    FigureChange,
    FigureDiff,
    GraphDiff,
    KeyDiff,
    KnownFigure,
    LayerChange,
    MovedScale,
    NamedNode,
)
from optkit.report import figures

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
        a, b = (_value(figure, row.unit) for figure in (row.a, row.b))
        lines.append(f"  {figures.name(row.figure)}: {a} -> {b}{_evidence(row)}")
        if row.change is not None:
            lines.append(f"    {_claim(row, row.change)}")
        elif row.seen == "unknown":
            lines.append(f"    not compared: {row.note}")
    return lines


def _evidence(row: FigureDiff) -> str:
    known = dict.fromkeys(side.evidence for side in (row.a, row.b) if side.evidence)
    return f" ({', '.join(known)})" if known else ""


def _claim(row: FigureDiff, change: FigureChange) -> str:
    show = figures.times if change.kind == "ratio" else _signed
    low, high = change.interval
    kind = "band" if "predicted" in _evidence(row) else "95 % interval"
    interval = f"{show(change.value)}, {kind} {show(low)} to {show(high)}"
    return f"{'no difference seen' if row.seen == 'none' else row.seen}: {interval}"


def _signed(value: float) -> str:
    return f"{value:+.3g}"


def _value(figure: KnownFigure, unit: str | None) -> str:
    value = figure.value
    if value is None:
        return "-"
    if isinstance(value, str):
        return figures.name(value)
    if unit == "bytes":
        return figures.size(value)
    if isinstance(value, int):
        return figures.count(value)
    return f"{value:.4g}" + (f" {unit}" if unit else "")


def _graph(graph: GraphDiff) -> list[str]:
    nodes, weights = graph.nodes, graph.weights
    if graph.same:
        return ["graph: the same nodes, weights and scales"]
    size = " -> ".join(map(figures.size, weights.bytes))
    lines = [f"graph: {nodes.a} -> {nodes.b} nodes, weights {size}"]
    for name, (before, after) in (
        ("opset", graph.opset), ("inputs", graph.inputs), ("outputs", graph.outputs),
    ):  # fmt: skip
        lines += [f"  {name}: {_was(before, after)}"] if before != after else []
    counts = [f"{row.op} {row.a} -> {row.b}" for row in graph.operators]
    lines += _listed("  operators", counts)
    lines += _listed("  nodes removed", _nodes("-", nodes.removed))
    lines += _listed("  nodes added", _nodes("+", nodes.added))
    lines += _listed("  nodes changed", [_changed(row) for row in nodes.changed])
    if nodes.rewired:
        lines.append(f"  {nodes.rewired} nodes read other values, and are the same otherwise")
    products = [f"{row.node}: {row.a} -> {row.b}" for row in graph.precision]
    lines += _listed("  products", products)
    lines += _listed("  weights", [
        *(f"- {name}" for name in weights.removed), *(f"+ {name}" for name in weights.added),
        *(_weight(row) for row in weights.changed),
    ])  # fmt: skip
    lines += _listed("  scales that moved", [_scale(row) for row in graph.scales.moved])
    return lines


def _nodes(sign: str, rows: Sequence[NamedNode]) -> list[str]:
    others = [f"{sign} {row.op} {row.name}" for row in rows if row.op not in QDQ]
    pairs = len(rows) - len(others)
    return [*others, *([f"{sign} {pairs} {' and '.join(QDQ)}"] if pairs else [])]


def _changed(row: ChangedNode) -> str:
    before, after = row.op
    parts = [f"{before} -> {after}"] if before != after else [before]
    return f"{row.name}: {', '.join((*parts, *row.attributes))}"


def _weight(row: ChangedWeight) -> str:
    forms = [f"{side.dtype} {'x'.join(map(str, side.shape))}" for side in (row.a, row.b)]
    return f"{row.name}: {'other numbers' if forms[0] == forms[1] else ' -> '.join(forms)}"


def _scale(row: MovedScale) -> str:
    if row.factor is None:
        return f"{row.tensor}: {' -> '.join(map(str, row.count))} scales"
    low, high = (f"{end:.4g}" for end in row.factor)
    return f"{row.tensor}: x {low if low == high else f'{low} to {high}'}"


def _layers(rows: Sequence[LayerChange]) -> list[str]:
    lines = []
    for row in rows:
        pairs = (("planned", row.precision), ("runs as", row.runs))
        changed = [f"{word} {_was(*pair)}" for word, pair in pairs if pair[0] != pair[1]]
        lines.append(f"{row.node}: {', '.join(changed)}")
    return _listed("layers", lines)


def _keys(title: str, rows: Sequence[KeyDiff]) -> list[str]:
    return _listed(title, [f"{row.key}: {_was(row.a, row.b)}" for row in rows])


def _was(before: object, after: object) -> str:
    return f"{figures.shown(before)} -> {figures.shown(after)}"


def _listed(title: str, rows: Iterable[str]) -> list[str]:
    rows = list(rows)
    if not rows:
        return []
    indent = " " * (len(title) - len(title.lstrip()) + 2)
    more = (
        [f"{indent}... and {len(rows) - _MOST} more: --json has all"] if len(rows) > _MOST else []
    )
    return [f"{title}:", *(indent + figures.name(row) for row in rows[:_MOST]), *more]
