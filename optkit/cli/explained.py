"""The text of `optkit explain`, for a terminal of 80 columns."""

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
_KINDS = ("products", "Q/DQ and casts", "data movement", "other")
_WHOLES = {"latency": "the latency", "layers": "the layers' time", "noise": "the noise"}


def text(found: Explained) -> str:
    """An explanation as text."""
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
    baseline = f" compared with {found.baseline}" if found.baseline else ""  # not for parts
    return f"{artifact}: {found.precision}{baseline} on {found.target}"


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
            yield from _wrapped(f"the times of the layers are not known: {found.untimed}", "  ")
        return
    yield from _wrapped(f"time of layers ({time.evidence}): {time.note}", "  ")
    sides = [(s.product, s.convert, s.layout, s.other) for s in (time.candidate, time.baseline)]
    rows = [
        [f"  {kind}", *(figures.ms(round(value, 6)) for value in values)]
        for kind, *values in zip(_KINDS, *sides, strict=True)
    ]
    rows.append(["  total", *(figures.ms(sum(side)) for side in sides)])
    columns = ["", found.precision, str(found.baseline)]
    yield from terminal.table(columns, rows).splitlines()


def _accuracy(found: Explained) -> Iterator[str]:
    score, drop, layers = found.accuracy, found.drop, found.layers_compared
    if (outputs := found.fidelity) is not None:
        yield (
            f"  outputs: {_near(outputs)} {figures.name(outputs.reference.upper())} over "
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
        samples = several(layers.samples, "sample")
        text = f"layers compared on {samples}; outputs there: {_near(layers)} FP32"
        yield from _wrapped(f"{text} ({layers.evidence})", "  ")


def _near(fidelity: FidelityFigures | ComparedLayers) -> str:
    return "equal to" if fidelity.sqnr_db is None else f"SQNR {fidelity.sqnr_db:.1f} dB to"


def _dropped(found: Explained, value: float) -> str:
    """A drop, or a part of it, in the unit of its metric: points, or a share."""
    assert found.accuracy is not None
    return (figures.points if found.accuracy.proportion else figures.percent)(value)


def _findings(found: Explained) -> Iterator[str]:
    yield ""
    if not found.findings:
        subject = "layers, Q/DQ pairs and ranges" if found.time else "ranges and weights"
        yield f"nothing found: no rule suggests a change to {subject}"
    for number, finding in enumerate(found.findings, start=1):
        yield f"{number}. {_cost(found, finding)}"
        yield from _wrapped(finding.what, "   ")
        yield from _wrapped(f"why: {finding.why}", "   ")
        yield from _wrapped(f"change: {finding.change.text}", "   ")
        lines = finding.change.recipe
        yield from (f"     {figures.name(line)}" for line in lines[:_LINES])
        if len(lines) > _LINES:
            yield f"     and {len(lines) - _LINES} more (--json, --apply)"


def _cost(found: Explained, finding: ExplainFinding) -> str:
    cost = finding.cost
    parts = []
    if cost.ms:
        parts.append(f"{figures.ms(cost.ms)} per call")
    if cost.points is not None:
        parts.append(_dropped(found, cost.points))
    if cost.db is not None:
        parts.append(figures.decibels(cost.db))
    parts = parts or ["unknown"]
    share = f"{cost.share:.0%} of {_WHOLES[cost.of]}"
    return f"{', '.join(parts)} ({share}, {cost.evidence}): {finding.rule}"


def _applied(found: Explained) -> Iterator[str]:
    """Lines about the recipe that --apply wrote, and the findings that no setting changes."""
    written = found.recipe
    if written is None:
        yield "no recipe was written: no finding can be fixed with a setting"
    else:
        yield f"recipe: {written.path}"
    for left in found.left or ():
        yield from _wrapped(f"{left.rule} remains; no setting fixes it: {left.text}", "  ")
    for given in written.missing if written else ():
        yield f"  give again on the command line: --set {figures.name(given)}"


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        figures.name(words), _WIDTH, initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
