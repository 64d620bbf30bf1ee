"""Finding recipes, sources, tasks and the project's default, and running users' files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optkit import content
from optkit.errors import InputRefused, UnknownName, UsageError
from optkit.recipe import Recipe
from optkit.recipe.template import template


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project root with a folder inside."""
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    return tmp_path


def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Content as a wheel lays it out, in place of the checkout's."""
    folder = tmp_path / "content"
    for name in ("recipes/one.yaml", "calibration/one.py", "eval/one.py", "examples/00/model.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(content, "root", lambda: folder.resolve())
    return folder.resolve()


def test_checkout_is_found() -> None:
    assert (content.root() / "recipes").is_dir()
    assert content.find_source("digits", Path()).attribute == "samples"
    assert content.find_task("digits_top1", Path()).attribute is None


def test_names_lead_into_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shipped(tmp_path, monkeypatch)
    assert content.recipe_names() == ["one"]
    assert content.find_recipe("one") == folder / "recipes/one.yaml"
    place = content.find_source("one:other", tmp_path)
    assert (str(place), place.path) == (
        "content:calibration/one.py:other",
        folder / "calibration/one.py",
    )
    assert str(content.locate("../examples/00/model.py:create", folder / "recipes")) == (
        "content:examples/00/model.py:create"
    )


def test_a_wheel_carries_content_beside_the_module(tmp_path: Path) -> None:
    package = tmp_path / "optkit"
    (package / "content" / "recipes").mkdir(parents=True)
    (package / "content" / "recipes" / "shipped.yaml").touch()
    for name in ("errors.py", "content.py"):
        shutil.copy(Path(content.__file__).with_name(name), package / name)
    (package / "__init__.py").touch()
    code = "from optkit import content; print(content.find_recipe('shipped'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(package.resolve() / "content" / "recipes" / "shipped.yaml")


def test_unknown_names_tell_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        content.find_source("digit", Path())
    assert "digits" in (caught.value.hint or "")
    with pytest.raises(UnknownName) as caught:
        content.find_task("digits_top5", Path())
    assert "digits_top1" in (caught.value.hint or "")
    with pytest.raises(UnknownName, match="unknown recipe 'nosuch'"):
        content.find_recipe("nosuch")


def test_recipes_by_path(project: Path) -> None:
    (project / "optkit.yaml").touch()
    (project / "src" / "other.yml").touch()
    assert content.find_recipe("./", project) == project / "optkit.yaml"
    assert content.find_recipe(project.name, project.parent) == project / "optkit.yaml"
    assert content.find_recipe("src/other.yml", project) == project / "src" / "other.yml"
    assert content.find_recipe(str(project / "optkit.yaml")) == project / "optkit.yaml"
    with pytest.raises(UsageError, match="no such recipe") as caught:
        content.find_recipe("src/nosuch.yaml", project)
    assert caught.value.where == "src/nosuch.yaml"


def test_default_is_named_in_pyproject(project: Path) -> None:
    (project / "recipes").mkdir()
    (project / "recipes" / "mine.yaml").touch()
    (project / "optkit.yaml").touch()
    (project / "pyproject.toml").write_text('[tool.optkit]\nrecipe = "recipes/mine.yaml"\n')
    for start in (project, project / "src" / "deep"):
        assert content.default_recipe(start) == (project / "recipes" / "mine.yaml").resolve()


def test_default_is_optkit_yaml_else(project: Path) -> None:
    (project / "optkit.yaml").touch()
    (project / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert content.default_recipe(project / "src") == (project / "optkit.yaml").resolve()


def test_no_default_beyond_the_project(project: Path) -> None:
    inner = project / "src"
    (project / "optkit.yaml").touch()
    (inner / "pyproject.toml").touch()
    assert content.default_recipe(inner / "deep") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.optkit\n", "unreadable"),
        ("[tool.optkit]\nrecipe = 3\n", "not a string"),
        ('[tool.optkit]\nrecipe = "gone.yaml"\n', "no such recipe"),
    ],
)
def test_broken_defaults(project: Path, text: str, says: str) -> None:
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        content.default_recipe(project)
    assert caught.value.where and caught.value.hint


def test_a_module_runs_under_a_name_of_its_own(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(
            "from dataclasses import dataclass\n"
            f"@dataclass\nclass Size:\n    value: int = {value}\n"
            "def create():\n    return Size().value\n"
        )
    first, second = (content.load_module(tmp_path / f / "model.py") for f in "ab")
    assert first.__name__ != second.__name__
    assert (first.create(), second.create()) == (1, 2)
    assert "model" not in sys.modules


def test_a_file_can_import_its_neighbours_also_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "optkit_neighbour.py").write_text("value = 7\n")
    (tmp_path / "model.py").write_text(
        "def create():\n    import optkit_neighbour\n    return optkit_neighbour.value\n"
    )
    assert content.load_factory(f"{tmp_path / 'model.py'}:create")() == 7
    del sys.modules["optkit_neighbour"]


def test_a_factory_of_an_installed_module() -> None:
    from json import dumps

    assert content.load_factory("json:dumps") is dumps


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f(:\n", 1, "SyntaxError"),
        ("x = 1\nimport optkit_no_such_module\n", 2, "No module named 'optkit_no_such_module'"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
    ],
)
def test_a_failing_file_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(InputRefused) as caught:
        content.load_module(path)
    assert caught.value.where == f"{path}:{line}"
    assert says in caught.value.message
    assert not [name for name in sys.modules if name.startswith("optkit_file_broken")]


def test_what_a_source_raises_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text("def samples(count):\n    yield count\n    raise KeyError('x')\n")
    module = content.load_module(path)
    feeds = content.guarded(content.member(module, "samples", path), {"count": 3}, path)
    assert next(feeds) == 3
    with pytest.raises(InputRefused, match="KeyError: 'x'") as caught:
        next(feeds)
    assert caught.value.where == f"{path}:3"
    with pytest.raises(InputRefused, match="unexpected keyword argument"):
        next(content.guarded(module.samples, {"cuont": 3}, path))


def test_missing_members_tell_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("def samples():\n    yield 1\n")
    module = content.load_module(path)
    with pytest.raises(InputRefused) as caught:
        content.member(module, "sample", path)
    assert caught.value.where == str(path) and "samples" in (caught.value.hint or "")
    with pytest.raises(InputRefused, match="METRIC"):
        content.metric(module, path, {})


def test_a_metric_that_fails_tells_its_line(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("def metric(k=1):\n    return f'top{k:d}'\n")
    with pytest.raises(InputRefused, match="ValueError: Unknown format code 'd'") as caught:
        content.metric(content.load_module(path), path, {"k": "five"})
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
    module, args = content.load_module(path), {"k": 5, "labels": ["a"], "path": "x"}
    assert content.metric(module, path, args) == "m5"
    score, aggregate = (content.hook(module, name, args) for name in ("score", "aggregate"))
    assert score is not None and aggregate is not None
    assert score(None, None) == 5 and aggregate(None) == args
    assert content.hook(module, "combine", args) is None
    path.write_text('METRIC = "top1"\n')
    assert content.metric(content.load_module(path), path, args) == "top1"
    with pytest.raises(InputRefused, match="cannot import optkit_no_such_module"):
        content.load_factory("optkit_no_such_module.net:create")


@pytest.mark.parametrize("model", ["model.py:create", "net.onnx", "sub dir/my net.pt2"])
def test_template_is_a_recipe_also_with_every_comment_taken_away(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (model.partition(":")[0], "weights.safetensors", "calibration.py", "evaluation.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = tmp_path / "optkit.yaml"
    text = template(model, path).text
    path.write_text(text)
    recipe = Recipe.load(path)
    assert recipe.source is not None and recipe.source.place is not None
    assert recipe.source.place.path == (tmp_path / model.partition(":")[0]).resolve()
    assert recipe.calibration is None and recipe.gates.max_drop == 0.01
    path.write_text(re.sub(r"^( *)# ( *\w+:)", r"\1\2", text, flags=re.MULTILINE))
    full = Recipe.load(path)
    assert full.calibration is not None and full.eval is not None and full.inputs


def test_import_is_light() -> None:
    code = (
        "import sys, optkit.content as c; c.recipe_names();"
        "heavy = ('numpy', 'pydantic', 'torch', 'ruamel.yaml', 'onnx_ir');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
