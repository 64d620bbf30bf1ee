"""The counts of `experiments/house`, on a package in which each is known."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.scripts import ROOT, script

COUNT = script("experiments/house/count.py")

SOURCE = """
from typing import Any, Literal
import optkit.errors

Rows = list[dict[str, Any]]

def outer(row: dict[str, Any], kind: Literal["a"]) -> Any:
    from optkit import graph
    import numpy
    row["a"] = row["b"][0] if row and kind else None
    def inner():
        import optkit.store
    return [one for one in row if one]
"""


def test_each_count_of_a_small_package(tmp_path: Path) -> None:
    for folder in ("graph", "store"):
        (tmp_path / "optkit" / folder).mkdir(parents=True)
        (tmp_path / "optkit" / folder / "names.py").write_text(SOURCE)
        (tmp_path / "optkit" / folder / "__init__.py").write_text("\n" * 401)
    (tmp_path / "optkit" / "long.py").write_text("def long():\n" + "    pass\n" * 60)
    (tmp_path / "optkit" / "schema.json").write_text('{\n"$schema": "draft"\n}\n')
    (tmp_path / "optkit" / "data.json").write_text("{}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("1\n2\n")
    counts = {one.name: one for one in COUNT.count(tmp_path)}
    assert {name: one.count for name, one in counts.items()} == {
        "dict[str, Any]": 4,
        "the name Any": 6,
        "subscripts with string literals": 4,
        "own imports inside functions": 4,
        "functions over 60 lines": 1,
        "cyclomatic complexity over 15": 0,
        "modules over 400 lines": 2,
        "module names that stand twice": 1,
        "lines of Python in optkit/": 2 * len(SOURCE.splitlines()) + 2 * 401 + 61,
        "lines of hand-written JSON schema": 3,
        "lines of Python in tests/": 2,
    }
    assert counts["functions over 60 lines"].where == ["optkit/long.py:1 long"]
    assert counts["module names that stand twice"].where == ["names"]


def test_complexity_is_of_one_function_without_those_inside_it() -> None:
    outer, inner = COUNT.functions(ast.parse(SOURCE))
    # `if … else` as an expression, `and`, `for` and `if` of the list
    assert (COUNT.complexity(outer), COUNT.complexity(inner)) == (5, 1)
    (loops,) = COUNT.functions(
        ast.parse("""def f(x):
    for a in x:
        while a:
            pass
        else:
            pass
    try:
        assert x
    except ValueError:
        pass
    match x:
        case 1:
            pass
""")
    )
    assert COUNT.complexity(loops) == 7


def test_the_counts_before_and_now_are_of_the_same_things() -> None:
    before, now = (
        json.loads((ROOT / "experiments/house" / f"{name}.json").read_text())
        for name in ("before", "now")
    )
    assert [(one["name"], one["limit"]) for one in before] == [
        (one["name"], one["limit"]) for one in now
    ]
