"""The gates as JUnit XML, which CI systems read: a suite per result, a case per gate.

    pass → passed    fail → failure    inconclusive → skipped, under --strict failure
    a build that came to no artifact → the case "build" with an error

There is no standard; this keeps to the schema of Jenkins' xUnit plugin (junit-10.xsd), a subset of
which all readers take. Characters that XML 1.0 has no way to write become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from optkit.facts.documents.model_figures import EvalFigures
from optkit.facts.documents.result import EngineFacts, Failure, Result
from optkit.facts.measurement import GateRow, Latency, Score

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class GateCase:
    """A gate with its outcome."""

    gate: str
    outcome: str
    reason: str
    evidence: str | None


@dataclass(frozen=True)
class Suite:
    """What was built, or compared, and its gates. `names`: model, target and precision, of which
    each may be None."""

    names: tuple[str | None, ...]
    cases: Sequence[GateCase | GateRow]
    properties: Mapping[str, str | None] = field(default_factory=dict)
    error: Failure | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, result: Result, gates: Sequence[GateRow]) -> Self:
        """Of a result, or of a part of it, with the rows of its report."""
        return cls(
            (result.model, result.target, result.precision),
            gates,
            {
                "artifact": result.artifact,
                "status": result.status,
                "engine evidence": _evidence(result.engine),
                "latency evidence": _evidence(result.latency),
                "accuracy evidence": _evidence(result.accuracy),
            },
            result.error,
            result.seconds.get("total", 0.0),
        )

    @classmethod
    def of_scores(cls, found: EvalFigures) -> Self:
        return cls(
            (found.model, found.target, found.precision),
            found.gate.rows,
            {"accuracy evidence": _evidence(found.accuracy)},
        )


def _evidence(figures: EngineFacts | Latency | Score | None) -> str | None:
    return figures.evidence if figures else None


def to_junit(suites: Iterable[Suite], *, strict: bool = False) -> bytes:
    root = Element("testsuites", name="optkit")
    for suite in suites:
        _add(root, suite, strict)
    _count(root, root.iter("testcase"))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add(root: Element, suite: Suite, strict: bool) -> None:
    names = list(filter(None, suite.names))
    element = SubElement(root, "testsuite", name=_text(" ".join(names) or "optkit"))
    properties = SubElement(element, "properties")
    for name, value in suite.properties.items():
        if value is not None:
            SubElement(properties, "property", name=name, value=_text(value))
    classname = _text(".".join(names) or "optkit")
    if (error := suite.error) is not None:
        case = SubElement(element, "testcase", classname=classname, name="build", time="0")
        outcome = SubElement(case, "error", type=error.code, message=_text(error.message))
        outcome.text = _text("\n".join(filter(None, (error.where, error.message, error.hint))))
    for row in suite.cases:
        case = SubElement(element, "testcase", classname=classname, name=_text(row.gate), time="0")
        if row.outcome == "pass":
            SubElement(case, "system-out").text = _text(row.reason)
            continue
        kind = "failure" if row.outcome == "fail" or strict else "skipped"
        outcome = SubElement(case, kind, type=row.outcome, message=_text(row.reason))
        outcome.text = _text(f"{row.reason} ({row.evidence or 'nothing was seen'})")
    element.set("time", f"{suite.seconds:.3f}")
    _count(element, element.iter("testcase"))
    element.set("skipped", str(len(element.findall("testcase/skipped"))))


def _count(element: Element, cases: Iterable[Element]) -> None:
    kinds = [child.tag for case in cases for child in (case[:1] or [case])]
    element.set("tests", str(len(kinds)))
    element.set("failures", str(kinds.count("failure")))
    element.set("errors", str(kinds.count("error")))


def _text(value: object) -> str:
    return _FORBIDDEN.sub("\ufffd", str(value))
