"""The pages that compare tools are those of docs/reference/compared.yaml, and what optkit claims
there has a test that uses it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from tests.scripts import ROOT, script

compared = script("site/compared.py")
FOUND = compared.load()
OWN = {one.sentence: one.own for one in FOUND.features()}
TESTS = sorted({own.test for own in OWN.values() if own.test})


@pytest.mark.parametrize("name", compared.PAGES)
def test_the_pages_are_written_from_the_table(name: str) -> None:
    written = (compared.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert written == compared.page(name, FOUND), "python site/compared.py"


@pytest.mark.parametrize("sentence", OWN)
def test_what_optkit_does_has_a_test_and_a_part_says_what_is_missing(sentence: str) -> None:
    own = OWN[sentence]
    assert own.answer in {"yes", "partly", "no"}
    assert (own.test is None) == (own.answer == "no")
    assert (own.missing is not None) == (own.answer == "partly")


@pytest.mark.parametrize("test", TESTS)
def test_the_tests_exist(test: str) -> None:
    """Where pytest collects them: functions of a module `test_*.py`."""
    file, name = test.split("::")
    assert re.fullmatch(r"tests/(?:\w+/)*test_\w+\.py", file) and name.startswith("test_")
    assert name in functions(ROOT / file)


@cache
def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_the_tests_are_collected() -> None:
    options = ("--collect-only", "-n", "0", "-m", "slow or not slow")
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for test in TESTS:
        assert test in done.stdout


@pytest.mark.parametrize("name", FOUND.tools)
def test_a_tool_has_a_date_and_uses_each_of_its_sources(name: str) -> None:
    """That a cell names one of them, `load` checks."""
    tool = FOUND.tools[name]
    assert date.fromisoformat(tool.read) and tool.page in compared.PAGES
    used = {one.answers[name].source for one in FOUND.features()} - {None}
    assert used == tool.sources.keys()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("yes @a", "yes"),
        ("partly: GPTQ @a", "partly, GPTQ"),
        ("no: ONNX, PyTorch @a", "no, ONNX, PyTorch"),
        ("no", None),
        ("perhaps @a", None),
        ("yes @b", None),
    ],
)
def test_a_cell_without_an_answer_or_a_source_is_an_error(text: str, shown: str | None) -> None:
    tools = {"x": compared.Tool("X", "compared", "", "2026-11-30", {"a": "README"})}
    row = {"feature": "does it", "optkit": {"answer": "no"}, "x": text}
    if shown is None:
        with pytest.raises(ValueError, match="does it"):
            compared._feature(row, tools)
    else:
        assert compared._feature(row, tools).answers["x"].shown() == shown


@pytest.mark.parametrize("row", [{}, {"not found": ["x"], "unknown": ["x", "y"]}])
def test_each_tool_has_an_answer(row: dict[str, list[str]]) -> None:
    tools = {"x": compared.Tool("X", "compared", "", "2026-11-30", {})}
    with pytest.raises(ValueError, match="does it"):
        compared._feature({"feature": "does it", "optkit": {"answer": "no"}, **row}, tools)
