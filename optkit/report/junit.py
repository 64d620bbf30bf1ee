"""The gates as JUnit XML, which CI systems read: a suite per result, a case per gate.

    pass → passed    fail → failure    inconclusive → skipped, under --strict failure
    a build that came to no artifact → the case "build" with an error

There is no standard; this keeps to the schema of Jenkins' xUnit plugin (junit-10.xsd), a subset of
which all readers take. Characters that XML 1.0 has no way to write become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

Json = Mapping[str, Any]

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(results: Sequence[tuple[Json, Sequence[Json]]], *, strict: bool = False) -> bytes:
    """`results`: each result object (of a part, where the model has parts), or what `optkit eval`
    found, with the rows of its gates as a report has them."""
    root = Element("testsuites", name="optkit")
    for result, gates in results:
        _suite(root, result, gates, strict)
    _count(root, root.iter("testcase"))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(root: Element, result: Json, gates: Sequence[Json], strict: bool) -> None:
    named = [str(result[key]) for key in ("model", "target", "precision") if result[key]]
    suite = SubElement(root, "testsuite", name=_text(" ".join(named) or "optkit"))
    _properties(suite, result)
    classname = _text(".".join(named) or "optkit")
    if (error := result.get("error")) is not None:
        case = SubElement(suite, "testcase", classname=classname, name="build", time="0")
        told = [error["where"], error["message"], error["hint"]]
        outcome = SubElement(case, "error", type=error["code"], message=_text(error["message"]))
        outcome.text = _text("\n".join(filter(None, told)))
    for row in gates:
        case = SubElement(suite, "testcase", classname=classname, name=_text(row["gate"]), time="0")
        if row["outcome"] == "pass":
            SubElement(case, "system-out").text = _text(row["reason"])
            continue
        kind = "failure" if row["outcome"] == "fail" or strict else "skipped"
        outcome = SubElement(case, kind, type=row["outcome"], message=_text(row["reason"]))
        outcome.text = _text(f"{row['reason']} ({row['evidence'] or 'nothing was seen'})")
    suite.set("time", f"{result.get('seconds', {}).get('total', 0.0):.3f}")
    _count(suite, suite.iter("testcase"))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))


def _properties(suite: Element, result: Json) -> None:
    told = {name: result.get(name) for name in ("artifact", "status")}
    told |= {
        f"{name} evidence": result[name]["evidence"]
        for name in ("engine", "latency", "accuracy")
        if result.get(name)
    }
    properties = SubElement(suite, "properties")
    for name, value in told.items():
        if value is not None:
            SubElement(properties, "property", name=name, value=_text(value))


def _count(element: Element, cases: Any) -> None:
    kinds = [child.tag for case in cases for child in (case[:1] or [case])]
    element.set("tests", str(len(kinds)))
    element.set("failures", str(kinds.count("failure")))
    element.set("errors", str(kinds.count("error")))


def _text(value: object) -> str:
    return _FORBIDDEN.sub("\ufffd", str(value))
