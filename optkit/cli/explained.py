"""What `optkit explain` found, as a terminal of 80 columns reads it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from optkit.cli import terminal
from optkit.documents.explanation import ComparedLayers, Explained, ExplainFinding
from optkit.documents.measured import FidelityFigures
from optkit.explanation.words import several
from optkit.report import figures

_WIDTH = 80
_LINES = 4  # of a recipe, for one finding
_KINDS = {"product": "products", "convert": "Q/DQ and casts", "layout": "only moving",
          "other": "all else"}  # fmt: skip
_WHOLES = {"latency": "the latency", "layers": "the layers' time", "noise": "the noise"}


def text(found: Explained) -> str:
    """An explanation in words."""
    lines = [_title(found), *_speed(found), *_accuracy(found)]
    for name, part in (found.parts or {}).items():
        lines += ["", f"{name}:", *_speed(part), *_accuracy(part), *_findings(part)]
    if not found.parts:
        lines += _findings(found)
    if found.left is not None:
        lines += ["", *_applied(found)]
    return "\n".join(lines)


def _title(found: Explained) -> str:
    artifact = figures.name(found.artifact)
    beside = f" beside {found.baseline}" if found.baseline else ""  # of parts: theirs
    return f"{artifact}: {found.precision}{beside} on {found.target}"


def _speed(found: Explained) -> Iterator[str]:
    ours, theirs, speedup = found.latency, found.baseline_latency, found.speedup
    if ours and theirs and speedup:
        yield (
            f"  {figures.times(speedup.value)} as fast: {figures.ms(ours.p50_ms)} against "
            f"{figures.ms(theirs.p50_ms)} at batch {ours.batch} ({speedup.evidence})"
        )
    time = found.time
    if time is None:
        if found.untimed:
            yield from _wrapped(f"the time of layers is not known: {found.untimed}", "  ")
        return
    yield from _wrapped(f"time of layers ({time.evidence}): {time.note}", "  ")
    candidate, baseline = time.candidate.to_json(), time.baseline.to_json()
    rows = [
        [
            f"  {label}",
            figures.ms(round(candidate[kind], 6)),
            figures.ms(round(baseline[kind], 6)),
        ]
        for kind, label in _KINDS.items()
    ]
    total = [sum(side.values()) for side in (candidate, baseline)]
    rows.append(["  together", *map(figures.ms, total)])
    columns = ["", found.precision, str(found.baseline)]
    yield from terminal.table(columns, rows).splitlines()


def _accuracy(found: Explained) -> Iterator[str]:
    score, drop, layers = found.accuracy, found.drop, found.layers_compared
    if (outputs := found.fidelity) is not None:
        yield (
            f"  outputs {_near(outputs)} {figures.name(outputs.reference.upper())} over "
            f"{several(outputs.samples, 'sample')} ({outputs.evidence})"
        )
    if score and drop:
        yield (
            f"  {figures.name(score.metric)} {figures.number(score.value)}, drop "
            f"{_dropped(found, drop.value)} ({drop.evidence})"
        )
    if layers and layers.reason:
        yield from _wrapped(f"the layers were not compared with FP32: {layers.reason}", "  ")
    elif layers:
        told = f"layers compared on {several(layers.samples, 'sample')}, whose outputs are "
        yield from _wrapped(f"{told}{_near(layers)} FP32 ({layers.evidence})", "  ")


def _near(fidelity: FidelityFigures | ComparedLayers) -> str:
    return "equal to" if fidelity.sqnr_db is None else f"{fidelity.sqnr_db:.1f} dB from"


def _dropped(found: Explained, value: float) -> str:
    """A drop, or a part of it, as it is of this metric: in points, or in proportion."""
    assert found.accuracy is not None
    return (figures.points if found.accuracy.proportion else figures.percent)(value)


def _findings(found: Explained) -> Iterator[str]:
    yield ""
    if not found.findings:
        sought = "layer, pair or range" if found.time else "range or weight"
        yield f"nothing found: no {sought} costs what a change would win back"
    for number, one in enumerate(found.findings, start=1):
        yield f"{number}. {_cost(found, one)}"
        yield from _wrapped(one.what, "   ")
        yield from _wrapped(f"why: {one.why}", "   ")
        yield from _wrapped(f"mend: {one.change.text}", "   ")
        lines = one.change.recipe
        yield from (f"     {figures.name(line)}" for line in lines[:_LINES])
        if len(lines) > _LINES:
            yield f"     and {len(lines) - _LINES} more (--json, --apply)"


def _cost(found: Explained, one: ExplainFinding) -> str:
    cost = one.cost
    parts = []
    if cost.ms:
        parts.append(f"{figures.ms(cost.ms)} a call")
    if cost.points is not None:
        parts.append(_dropped(found, cost.points))
    if cost.db is not None:
        parts.append(figures.decibels(cost.db))
    parts = parts or ["unknown"]
    share = f"{cost.share:.0%} of {_WHOLES[cost.of]}"
    return f"{', '.join(parts)} ({share}, {cost.evidence}): {one.rule}"


def _applied(found: Explained) -> Iterator[str]:
    """What --apply wrote, and what it cannot change."""
    written = found.recipe
    if written is None:
        yield "no recipe was written: no finding is mended by a setting"
    else:
        yield f"recipe: {written.path}"
    for one in found.left or ():
        yield from _wrapped(f"{one.rule} stays, no setting mends it: {one.text}", "  ")
    for given in written.missing if written else ():
        yield f"  give again on the command line: --set {figures.name(given)}"


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        figures.name(words), _WIDTH, initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
