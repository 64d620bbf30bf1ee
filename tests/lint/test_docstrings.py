"""The tables of modules in docstrings of packages name modules that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ENTRY = re.compile(r"(?:^| {4,})([a-z_][a-z0-9_]*) {2,}(?=\S)", re.MULTILINE)
"""A name at the start of a line, or behind a wide gap, and a gap between it and its text."""


@pytest.mark.parametrize(
    "package",
    sorted((ROOT / "optkit").rglob("__init__.py")),
    ids=lambda path: path.parent.relative_to(ROOT).as_posix(),
)
def test_a_package_lists_modules_that_it_has(package: Path) -> None:
    text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
    here = {path.stem for path in package.parent.iterdir()}
    assert set(_ENTRY.findall(text)) <= here
