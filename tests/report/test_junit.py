"""The JUnit file: its structure by an independent schema, its counts by an independent reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.errors import Impossible
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import GateRow, Outcome
from optkit.show.report.build_result import failed
from optkit.show.report.junit import Suite, to_junit

SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))
HOSTILE = "a]]><failure/>&amp;\"'\x00\x1b[31m\ud800￾\n<!--"


def row(outcome: Outcome, reason: str = "1.20 points breaks it", gate: str = "max_drop") -> GateRow:
    return GateRow(gate, 0.01, None, None, Evidence.MEASURED, outcome, reason)


def read(text: bytes) -> Any:
    SCHEMA.validate(text.decode())
    return minidom.parseString(text).documentElement


def suite(*gates: GateRow, **changed: Any) -> Suite:
    error = Impossible("no FP8 on SM86", where="rtx3090", hint="choose int8")
    found = failed(error, model="net", target="l4", precision="int8")
    built = {"error": None, "status": "ok", "seconds": {"total": 12.5}, **changed}
    return Suite.of(found.model_copy(update=built), gates)


@pytest.mark.parametrize("strict", [False, True])
def test_there_is_one_case_per_gate(strict: bool) -> None:
    rows = [row("pass"), row("fail", gate="min_value"), row("inconclusive", gate="max_bytes")]
    root = read(to_junit([suite(*rows), suite(rows[0], target="h100")], strict=strict))
    cases = root.getElementsByTagName("testcase")
    assert [case.getAttribute("name") for case in cases] == [
        "max_drop", "min_value", "max_bytes", "max_drop",
    ]  # fmt: skip
    assert [case.getAttribute("classname") for case in cases][2:] == [
        "net.l4.int8",
        "net.h100.int8",
    ]
    kinds = [[child.tagName for child in case.childNodes if child.nodeType == 1] for case in cases]
    undecided = "failure" if strict else "skipped"
    assert kinds == [["system-out"], ["failure"], [undecided], ["system-out"]]
    first = root.getElementsByTagName("testsuite")[0]
    counts = {name: int(first.getAttribute(name)) for name in ("tests", "failures", "skipped")}
    assert counts == {"tests": 3, "failures": 1 + strict, "skipped": 1 - strict}
    assert root.getAttribute("tests") == "4"


def test_a_build_without_an_artifact_is_an_error() -> None:
    error = Impossible("no FP8 on SM86", where="rtx3090", hint="choose int8")
    never = failed(error, model=None, target="rtx3090", precision="fp8")
    root = read(to_junit([Suite.of(never, [])]))
    (case,) = root.getElementsByTagName("testcase")
    (told,) = case.getElementsByTagName("error")
    assert (case.getAttribute("name"), told.getAttribute("type")) == ("build", "impossible")
    assert told.firstChild.data == "rtx3090\nno FP8 on SM86\nchoose int8"
    assert root.getAttribute("errors") == "1"


@given(st.one_of(st.just(HOSTILE), st.text()))
def test_names_of_strangers_stay_text(name: str) -> None:
    root = read(to_junit([suite(row("fail", name, name), model=name or "m", artifact=name)]))
    assert len(root.getElementsByTagName("failure")) == 1
    (case,) = root.getElementsByTagName("testcase")
    readable = "".join(
        c if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "￾￿")
        else "�" for c in name
    )  # fmt: skip
    assert case.getAttribute("name") == readable
