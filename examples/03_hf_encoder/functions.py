"""Functions of Python's standard library without their names, and what each name says they do.

A function's text is its source with its own name replaced by [MASK], wherever it stands: a body
that calls itself or its parent's method tells nothing. Its class is the verb that its name begins
with (VERBS). A module is a file or a package at the top of the standard library; every fifth in
alphabetical order is held out, whole, and a text that stands in several counts once. Another
version of Python has other functions: compare figures of one.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERBS = {
    "create": ("__init__",),
    "get": ("get",),
    "set": ("set",),
    "check": ("is", "has"),
    "show": ("__repr__", "__str__"),
}
LEFT_OUT = frozenset({
    "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
    "pydoc_data", "site-packages", "test", "tests", "turtledemo",
})  # fmt: skip
LONGEST = 600  # characters: more than the model sees
_CLASSES = {word: verb for verb, words in VERBS.items() for word in words}


@dataclass(frozen=True)
class Function:
    """One function: the module at the top that it is in, its masked text, and its verb."""

    module: str
    text: str
    verb: str


def split() -> tuple[list[Function], list[Function]]:
    """The functions to train on, and those of the held-out modules."""
    found = list({function.text: function for function in _functions()}.values())
    held_out = sorted({function.module for function in found})[4::5]
    return (
        [function for function in found if function.module not in held_out],
        [function for function in found if function.module in held_out],
    )


def verb(name: str) -> str | None:
    """The class of a name: check for `is_open`, `_isOpen` and `has_key`; None where it has none."""
    if name.startswith("__"):
        return _CLASSES.get(name)
    first = re.match(r"_*([A-Za-z][a-z]*)", name)
    return _CLASSES.get(first[1]) if first else None


def _functions() -> Iterator[Function]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        if not LEFT_OUT.isdisjoint(parts):
            continue
        source = file.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if found := verb(node.name):
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                masked = re.sub(rf"\b{node.name}\b", "[MASK]", text)[:LONGEST]
                yield Function(parts[0], masked, found)
