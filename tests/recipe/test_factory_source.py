"""The names of a module by its text. A name that is there is never refused."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from optkit.facts.errors import RecipeError, nearest
from optkit.facts.request import Request
from optkit.ground.recipe import factory_source, resolve
from optkit.ground.recipe.template import template

MODEL = """
from torch import nn
from textwrap import *
from layers import Block as Part
if True:
    class MLP(nn.Module): ...
try:
    import numpy as np
except ImportError:
    np = None
with open(__file__) as file: head = file.read()
for size in (1, 2): ...
(first, *rest), last = (1, 2), 3
print(walrus := 3)
build: object = MLP

def create():
    global made
    made = inner = MLP()
    return inner
"""
HIDDEN = (
    "globals()['create'] = int",
    "exec('create = int')",
    "vars().update(create=int)",
    "import sys\nsys.modules[__name__].create = int",
    "from sys import modules\nmodules[__name__].create = int",
    "def __getattr__(name): return int",
    "from nowhere import *",
    "from .file import *",
    "def (",
)


def test_the_text_shows_what_a_module_defines_assigns_and_imports(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    found = factory_source.names(tmp_path / "model.py")
    assert found is not None
    shown = {"nn", "Part", "MLP", "np", "file", "head", "size", "first", "rest", "last", "walrus",
             "build", "create", "made", "dedent"}  # fmt: skip
    assert shown <= found
    assert found.isdisjoint({"inner", "Block", "print", "open", "torch"})
    assert factory_source.defined(tmp_path / "model.py") == ["create"]


@pytest.mark.parametrize("code", HIDDEN)
def test_where_the_text_may_not_show_all_names_none_is_missing(code: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(f"import os\n{code}\n")
    assert factory_source.names(tmp_path / "file.py") is None


def test_names_of_packages_are_found_without_running_them(tmp_path: Path) -> None:
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit\n")
    (package / "__init__.py").write_text("from ..nets import *\nfrom .one import One\n")
    (package / "one.py").write_text("class One: ...\n")
    (tmp_path / "package" / "nets.py").write_text("from .inner.one import *\nclass Net: ...\n")
    file = factory_source.module_file("package.inner", tmp_path)
    assert file == package / "__init__.py"
    assert sorted(factory_source.names(file) or ()) == ["Net", "One"]
    for unknown in ("package.other", "nosuch.module", "package.inner.one.deeper", "math"):
        assert factory_source.module_file(unknown, tmp_path) is None


def test_no_function_or_class_of_a_package_is_taken_for_missing() -> None:
    """Of 2,473 modules that torch, transformers, scikit-learn and this test's own libraries load,
    384 may not show all their names, and 5 have names that other modules put into them: classes
    of torch.cuda, torch.sparse, numpy.dtypes and ssl. Here are those with networks."""
    importlib.import_module("torch.nn.utils.parametrizations")
    importlib.import_module("sklearn.linear_model")
    checked = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith(("torch.nn", "sklearn.linear_model", "json", "numpy.fft")):
            continue
        file = factory_source.module_file(name, Path())
        found = None if file is None else factory_source.names(file)
        if found is not None:
            there = {key for key, value in vars(module).items()
                     if callable(value) and not key.startswith("__")}  # fmt: skip
            assert there <= found, name
            checked += 1
    assert checked > 60


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("models.py:Mlp", "did you mean models.py:MLP?"),
        ("models.py:crate", "did you mean models.py:create?"),
        ("models.py:zzz", "name what returns the model, e.g. models.py:create or models.py:MLP"),
        ("package.models:mlp", "did you mean package.models:MLP?"),
        ("torch.nn:Linar", "did you mean torch.nn:Linear"),
    ],
)
def test_an_unknown_name_is_refused_with_the_near_ones(
    model: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from torch import nn\n\ndef create(): ...\n\nclass MLP(nn.Module): ...\n"
    (tmp_path / "package").mkdir()
    for file in ("models.py", "package/__init__.py", "package/models.py"):
        (tmp_path / file).write_text("" if "init" in file else code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="has no function or class") as caught:
        resolve(Request(model=model, calibration="gone.npz"))
    assert hint in str(caught.value.hint) and model in str(caught.value.where)
    with pytest.raises(RecipeError, match="has no function or class"):
        resolve(Request(model="models.py:MLP", overrides=(f"model.factory={model}",)))
    module, _, _ = model.partition(":")
    assert resolve(Request(model=f"{module}:{'Linear' if 'torch' in module else 'MLP'}")).source


def test_a_recipe_with_an_unknown_name_tells_the_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def create(): ...\n")
    (tmp_path / "optkit.yaml").write_text("name: net\nmodel:\n  factory: model.py:creat\n")
    with pytest.raises(RecipeError, match=r"model\.py has no function or class 'creat'") as caught:
        resolve(Request(recipe=str(tmp_path / "optkit.yaml")))
    assert "optkit.yaml:3" in str(caught.value.where)


def test_a_template_names_no_unknown_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("def create(): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="has no function or class 'creat'"):
        template("model.py:creat", Path("optkit.yaml"))


def test_near_names_are_found_in_any_case() -> None:
    assert nearest("Mlp", ["MLP", "create", "mlp"]) == ["MLP", "mlp"]
    assert nearest("RESNET", ["resnet18", "ResNet50", "vgg"]) == ["ResNet50", "resnet18"]
