"""The text of `optkit explain`, for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from optkit.facts.documents.explanation import Explained
from optkit.show.explanation.words import several
from optkit.show.report import explanation_page, figures
from optkit.show.report.titles import spelled
from optkit.verbs.cli import command_output

_WIDTH = 80
_LINES = 4  # of a recipe, for one finding


def text(found: Explained) -> str:
    lines = [*_fixed(found), _title(found), *_speed(found), *_accuracy(found)]
    for name, part in (found.parts or {}).items():
        lines += ["", f"{name}:", *_fixed(part), *_speed(part), *_accuracy(part), *_findings(part)]
    if not found.parts:
        lines += _findings(found)
    if found.left is not None:
        lines += ["", *_applied(found)]
    return "\n".join(lines)


def _title(found: Explained) -> str:
    artifact = figures.name(found.artifact)
    baseline = f" compared with {found.baseline}" if found.baseline else ""  # not for parts
    return f"{artifact}: {found.precision}{baseline} on {found.target}"


def _fixed(found: Explained) -> list[str]:
    """What no precision makes faster: the first line."""
    return [] if found.parts else _wrapped(explanation_page.fixed(found), "")


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
    rows = [
        [f"  {kind}", *(figures.ms(round(value, 6)) for value in sides)]
        for kind, *sides in explanation_page.kinds(time)
    ]
    columns = ["", found.precision, str(found.baseline)]
    yield from command_output.table(columns, rows).splitlines()
    if copied := explanation_page.copied(time):
        yield from _wrapped(copied, "  ")


def _accuracy(found: Explained) -> Iterator[str]:
    score, drop, layers = found.accuracy, found.drop, found.layers_compared
    if (outputs := found.fidelity) is not None:
        reference = figures.name(spelled(outputs.reference))
        yield (
            f"  outputs: {explanation_page.likeness(outputs)} {reference} over "
            f"{several(outputs.samples, 'sample')} ({outputs.evidence})"
        )
    if score and drop:
        yield (
            f"  {figures.name(score.metric)} {figures.number(score.value)}, drop "
            f"{explanation_page.dropped(found.accuracy, drop.value)} ({drop.evidence})"
        )
    if layers and layers.reason:
        yield from _wrapped(f"the layers were not compared with FP32: {layers.reason}", "  ")
    elif layers:
        samples = several(layers.samples, "sample")
        text = (
            f"layers compared on {samples}; outputs there: {explanation_page.likeness(layers)} FP32"
        )
        yield from _wrapped(f"{text} ({layers.evidence})", "  ")


def _findings(found: Explained) -> Iterator[str]:
    yield ""
    if not found.findings:
        yield f"nothing found: {explanation_page.nothing(found)}"
    for number, finding in enumerate(found.findings, start=1):
        yield f"{number}. {explanation_page.cost(found.accuracy, finding)}: {finding.rule}"
        yield from _wrapped(finding.what, "   ")
        yield from _wrapped(f"why: {finding.why}", "   ")
        yield from _wrapped(f"change: {finding.change.text}", "   ")
        lines = finding.change.recipe
        yield from (f"     {figures.name(line)}" for line in lines[:_LINES])
        if len(lines) > _LINES:
            yield f"     and {len(lines) - _LINES} more (--json, --apply)"


def _applied(found: Explained) -> Iterator[str]:
    """Lines about the recipe that --apply wrote, and the findings that no setting changes."""
    written = found.recipe
    if written is None:
        yield "no recipe was written: no finding can be fixed with a setting"
    else:
        yield f"recipe: {written.path}"
    for left in found.left or ():
        yield from _wrapped(f"{left.rule} remains; --apply does not change it: {left.text}", "  ")
    for given in written.missing if written else ():
        yield f"  give again on the command line: --set {figures.name(given)}"


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        figures.name(words),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
