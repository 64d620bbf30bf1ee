"""Finding recipes, sources, tasks and the project's default, in a checkout and in a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import optkit
from optkit.facts.errors import UnknownName, UsageError
from optkit.ground import places, shipped
from optkit.ground.recipe import Recipe
from optkit.ground.recipe.template import template


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project root with a folder inside."""
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    return tmp_path


def as_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is shipped as a wheel lays it out, in place of the checkout's."""
    folder = tmp_path / "shipped"
    for name in ("recipes/one.yaml", "calibration/one.py", "eval/one.py", "examples/00/model.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(shipped, "root", lambda: folder.resolve())
    return folder.resolve()


def test_checkout_is_found() -> None:
    assert (shipped.root() / "recipes").is_dir()
    assert places.find_source("digits", Path()).attribute == "samples"
    assert places.find_task("digits_top1", Path()).attribute is None


def test_names_lead_to_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_in_a_wheel(tmp_path, monkeypatch)
    assert shipped.recipe_names() == ["one"]
    assert places.find_recipe("one") == folder / "recipes/one.yaml"
    place = places.find_source("one:other", tmp_path)
    assert (str(place), place.path) == (
        "content:calibration/one.py:other",
        folder / "calibration/one.py",
    )
    assert str(places.locate("../examples/00/model.py:create", folder / "recipes")) == (
        "content:examples/00/model.py:create"
    )


def test_a_wheel_carries_it_beside_the_module(tmp_path: Path) -> None:
    package = tmp_path / "optkit"
    shipped_there = package / "ground" / "shipped"
    (shipped_there / "recipes").mkdir(parents=True)
    (shipped_there / "recipes" / "one.yaml").touch()
    here = Path(optkit.__file__).parent
    files = ("__init__.py", "facts/errors.py", "ground/places.py", "ground/shipped/__init__.py")
    for name in files:
        (package / name).parent.mkdir(exist_ok=True)
        shutil.copy(here / name, package / name)
    code = "from optkit.ground import places; print(places.find_recipe('one'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(shipped_there.resolve() / "recipes" / "one.yaml")


def test_unknown_names_tell_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        places.find_source("digit", Path())
    assert "digits" in (caught.value.hint or "")
    with pytest.raises(UnknownName) as caught:
        places.find_task("digits_top5", Path())
    assert "digits_top1" in (caught.value.hint or "")
    with pytest.raises(UnknownName, match="unknown recipe 'nosuch'"):
        places.find_recipe("nosuch")


def test_recipes_by_path(project: Path) -> None:
    (project / "optkit.yaml").touch()
    (project / "src" / "other.yml").touch()
    assert places.find_recipe("./", project) == project / "optkit.yaml"
    assert places.find_recipe(project.name, project.parent) == project / "optkit.yaml"
    assert places.find_recipe("src/other.yml", project) == project / "src" / "other.yml"
    assert places.find_recipe(str(project / "optkit.yaml")) == project / "optkit.yaml"
    with pytest.raises(UsageError, match="no such recipe") as caught:
        places.find_recipe("src/nosuch.yaml", project)
    assert caught.value.where == "src/nosuch.yaml"


def test_default_is_named_in_pyproject(project: Path) -> None:
    (project / "recipes").mkdir()
    (project / "recipes" / "mine.yaml").touch()
    (project / "optkit.yaml").touch()
    (project / "pyproject.toml").write_text('[tool.optkit]\nrecipe = "recipes/mine.yaml"\n')
    for start in (project, project / "src" / "deep"):
        assert places.default_recipe(start) == (project / "recipes" / "mine.yaml").resolve()


def test_default_is_optkit_yaml_else(project: Path) -> None:
    (project / "optkit.yaml").touch()
    (project / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert places.default_recipe(project / "src") == (project / "optkit.yaml").resolve()


def test_no_default_beyond_the_project(project: Path) -> None:
    inner = project / "src"
    (project / "optkit.yaml").touch()
    (inner / "pyproject.toml").touch()
    assert places.default_recipe(inner / "deep") is None


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
        places.default_recipe(project)
    assert caught.value.where and caught.value.hint


@pytest.mark.parametrize("model", ["model.py:create", "net.onnx", "sub dir/my net.pt2"])
def test_template_is_a_recipe_also_with_every_comment_taken_away(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (model.partition(":")[0], "weights.safetensors", "calibration.py", "evaluation.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def create(): ...\n" if name == "model.py" else "")
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
        "import sys, optkit.ground.places, optkit.ground.user_code;"
        "heavy = ('numpy', 'pydantic', 'torch', 'ruamel.yaml', 'onnx_ir');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
