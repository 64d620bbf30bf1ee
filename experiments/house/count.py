"""Counts what makes the package hard to read, by syntax tree, beside the limit of each count.

    python experiments/house/count.py [FOLDER] [--json]

FOLDER is a checkout of any commit; the default is the checkout of this file. `before.json` (commit
15a2284) and `now.json` beside this file are outputs of `--json`.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "optkit"
LONG_FUNCTION, COMPLEX, LONG_MODULE = 60, 15, 400


@dataclass(frozen=True)
class Count:
    name: str
    count: int
    limit: int
    where: list[str]
    """The places, where there are few: file and line, or the name."""

    @property
    def within(self) -> bool:
        return self.count <= self.limit


@dataclass(frozen=True)
class Module:
    path: str
    lines: int
    tree: ast.Module


def count(root: Path) -> list[Count]:
    """Every count of the checkout in `root`."""
    modules = [_module(root, path) for path in sorted((root / PACKAGE).rglob("*.py"))]
    names = Counter(Path(one.path).stem for one in modules if not one.path.endswith("__init__.py"))
    twice = sorted(name for name, times in names.items() if times > 1)
    long = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in modules
        for node in functions(module.tree)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION
    ]
    branching = [
        f"{module.path}:{node.lineno} {node.name} {found}"
        for module in modules
        for node in functions(module.tree)
        if (found := complexity(node)) > COMPLEX
    ]
    thick = [f"{module.path} {module.lines}" for module in modules if module.lines > LONG_MODULE]
    schemas = [path for path in (root / PACKAGE).rglob("*.json") if _is_schema(path)]
    return [
        Count("dict[str, Any]", sum(dict_of_any(one.tree) for one in modules), 60, []),
        Count("the name Any", sum(named_any(one.tree) for one in modules), 200, []),
        Count("subscripts with string literals", sum(keys(one.tree) for one in modules), 300, []),
        Count("own imports inside functions", sum(hidden(one.tree) for one in modules), 60, []),
        Count(f"functions over {LONG_FUNCTION} lines", len(long), 0, long),
        Count(f"cyclomatic complexity over {COMPLEX}", len(branching), 8, branching),
        Count(f"modules over {LONG_MODULE} lines", len(thick), 0, thick),
        Count("module names that stand twice", len(twice), 5, twice),
        Count(f"lines of Python in {PACKAGE}/", sum(one.lines for one in modules), 46_000, []),
        Count("lines of hand-written JSON schema", sum(_lines(one) for one in schemas), 0, []),
        Count(
            "lines of Python in tests/",
            sum(_lines(path) for path in (root / "tests").rglob("*.py")), 40_000, [],
        ),
    ]  # fmt: skip


def dict_of_any(tree: ast.AST) -> int:
    """Times that `dict[str, Any]` is written, also within a larger annotation."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dict"
        and ast.unparse(node.slice) == "(str, Any)"
        for node in ast.walk(tree)
    )


def named_any(tree: ast.AST) -> int:
    """Times that `Any` is used; its import is no use."""
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def keys(tree: ast.AST) -> int:
    """Subscripts `value["key"]`, read or written; `Literal["a"]` in an annotation is none."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and not ast.unparse(node.value).endswith("Literal")
        for node in ast.walk(tree)
    )


def hidden(tree: ast.AST) -> int:
    """Statements within functions that import modules of the package."""
    return sum(_own(node) for function in functions(tree) for node in _within(function))


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """McCabe's number of a function as radon counts it: 1, and 1 for each `if`, `for`, `while`,
    their `else` behind a loop, `except`, `assert`, `case`, conditional expression, further operand
    of `and` and `or`, `for` and `if` of a comprehension. (ruff's C901 leaves the expressions out.)
    Functions inside are counted on their own."""
    return 1 + sum(_branches(node) for node in _within(function))


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return 1 + bool(node.orelse)
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    branches = (ast.If, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)
    return int(isinstance(node, branches))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _within(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _within(child)


def _own(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == PACKAGE
    return isinstance(node, ast.Import) and any(
        alias.name.split(".")[0] == PACKAGE for alias in node.names
    )


def _module(root: Path, path: Path) -> Module:
    text = path.read_text()
    return Module(path.relative_to(root).as_posix(), len(text.splitlines()), ast.parse(text))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _is_schema(path: Path) -> bool:
    return "$schema" in json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what makes the package hard to read.")
    here = Path(__file__).resolve().parents[2]
    parser.add_argument("folder", nargs="?", type=Path, default=here)
    parser.add_argument("--json", action="store_true", help="as JSON, with the places")
    wanted = parser.parse_args()
    counts = count(wanted.folder)
    if wanted.json:
        print(json.dumps([asdict(one) for one in counts], indent=1))
        return
    for one in counts:
        print(f"{one.count:>7,}  {'≤' if one.within else '>'} {one.limit:>6,}  {one.name}")


if __name__ == "__main__":
    main()
