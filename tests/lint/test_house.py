"""The counts of lint/house.py, on a package in which each is known."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.scripts import script

HOUSE = script("lint/house.py")

SOURCE = """
class Layer:
    name: str
    op: str
    bytes: int
    flops: int
    _cache: int

class Kept:
    name: str

def outer(row, kind) -> dict[str, object]:
    row["a"] = row["b"][0] if row and kind else None  # fmt: skip
    def inner():
        import optkit.ground.store
    return [one for one in row if one]
"""


def test_each_count_of_a_small_package(tmp_path: Path) -> None:
    for folder in ("ground/graph", "verbs/api"):
        (tmp_path / "optkit" / folder).mkdir(parents=True)
        (tmp_path / "optkit" / folder / "__init__.py").write_text("\n" * 401)
    (tmp_path / "optkit" / "ground" / "graph" / "names.py").write_text(SOURCE)
    (tmp_path / "optkit" / "verbs" / "api" / "names.py").write_text(
        SOURCE.replace("bytes", "seconds: int\n    bytes")
    )
    (tmp_path / "optkit" / "long.py").write_text("def long():\n" + "    pass\n" * 60)
    (tmp_path / "optkit" / "__init__.py").touch()
    public = '"""The public path of names."""\n\nfrom optkit.ground.graph.names import *\n'
    (tmp_path / "optkit" / "names.py").write_text(public)
    found = HOUSE.counts(tmp_path)
    assert {name: len(places) for name, places in found.items()} == {
        "rooms": 3,
        "mirrored classes": 1,  # 4 of 5 fields
        "mirrored classes without a reason": 1,
        "class names twice": 2,
        "classes named by a participle": 2,
        "module names twice": 1,
        "functions over 60 lines": 1,
        "complexity over 15": 0,
        "modules over 400 lines": 2,
        "public functions without a type of their result": 1,
        "fmt: skip": 2,
    }
    assert found["functions over 60 lines"] == ["optkit/long.py:1 long"]
    assert found["mirrored classes"] == [
        "optkit/ground/graph/names.py Layer = optkit/verbs/api/names.py Layer"
    ]


def test_complexity_is_of_one_function_without_those_inside_it() -> None:
    outer, inner = HOUSE.functions(ast.parse(SOURCE))
    # `if … else` as an expression, `and`, `for` and `if` of the list
    assert (HOUSE.complexity(outer), HOUSE.complexity(inner)) == (5, 1)
    (loops,) = HOUSE.functions(
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
    assert HOUSE.complexity(loops) == 7
