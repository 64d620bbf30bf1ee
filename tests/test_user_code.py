"""Running users' files: modules, factories, the functions of a task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optkit.facts.errors import InputRefused
from optkit.ground import user_code


def test_a_module_runs_under_a_name_of_its_own(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(
            "from dataclasses import dataclass\n"
            f"@dataclass\nclass Size:\n    value: int = {value}\n"
            "def create():\n    return Size().value\n"
        )
    known = sys.modules.get("model")  # of another test in this process
    first, second = (user_code.load_module(tmp_path / f / "model.py") for f in "ab")
    assert first.__name__ != second.__name__
    assert (first.create(), second.create()) == (1, 2)
    assert sys.modules.get("model") is known


def test_a_file_can_import_its_neighbours_also_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "optkit_neighbour.py").write_text("value = 7\n")
    (tmp_path / "model.py").write_text(
        "def create():\n    import optkit_neighbour\n    return optkit_neighbour.value\n"
    )
    assert user_code.load_factory(f"{tmp_path / 'model.py'}:create")() == 7
    del sys.modules["optkit_neighbour"]


def test_a_factory_of_an_installed_module() -> None:
    from json import dumps

    assert user_code.load_factory("json:dumps") is dumps


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f(:\n", 1, "SyntaxError"),
        ("x = 1\nimport optkit_no_such_module\n", 2, "No module named 'optkit_no_such_module'"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
    ],
)
def test_a_failing_file_is_reported_with_its_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(InputRefused) as caught:
        user_code.load_module(path)
    assert caught.value.where == f"{path}:{line}"
    assert says in caught.value.message
    assert not [name for name in sys.modules if name.startswith("optkit_file_broken")]


def test_what_a_source_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text("def samples(count):\n    yield count\n    raise KeyError('x')\n")
    module = user_code.load_module(path)
    feeds = user_code.guarded(user_code.member(module, "samples", path), {"count": 3}, path)
    assert next(feeds) == 3
    with pytest.raises(InputRefused, match="KeyError: 'x'") as caught:
        next(feeds)
    assert caught.value.where == f"{path}:3"
    with pytest.raises(InputRefused, match="unexpected keyword argument"):
        next(user_code.guarded(module.samples, {"cuont": 3}, path))


def test_missing_members_tell_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("def samples():\n    yield 1\n")
    module = user_code.load_module(path)
    with pytest.raises(InputRefused) as caught:
        user_code.member(module, "sample", path)
    assert caught.value.where == str(path) and "samples" in (caught.value.hint or "")
    with pytest.raises(InputRefused, match="METRIC"):
        user_code.metric(module, path, {})


def test_a_metric_that_fails_tells_its_line(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("def metric(k=1):\n    return f'top{k:d}'\n")
    with pytest.raises(InputRefused, match="ValueError: Unknown format code 'd'") as caught:
        user_code.metric(user_code.load_module(path), path, {"k": "five"})
    assert caught.value.where == f"{path}:2"


TASK = """
METRIC = "m"

def metric(k=1):
    return f"m{k}"

def score(outputs, labels, k=1):
    return k

def aggregate(scores, **rest):
    return rest
"""


def test_a_tasks_functions_get_those_of_its_args_that_they_name(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    module, args = user_code.load_module(path), {"k": 5, "labels": ["a"], "path": "x"}
    assert user_code.metric(module, path, args) == "m5"
    score, aggregate = (user_code.hook(module, name, args) for name in ("score", "aggregate"))
    assert score is not None and aggregate is not None
    assert score(None, None) == 5 and aggregate(None) == args
    assert user_code.hook(module, "combine", args) is None
    path.write_text('METRIC = "top1"\n')
    assert user_code.metric(user_code.load_module(path), path, args) == "top1"
    with pytest.raises(InputRefused, match="cannot import optkit_no_such_module"):
        user_code.load_factory("optkit_no_such_module.net:create")
