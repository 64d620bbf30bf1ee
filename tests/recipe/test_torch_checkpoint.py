"""The lines that a refusal of a checkpoint prints: they do what they say, and nothing is loaded
before."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from optkit.facts.errors import InputRefused, RecipeError
from optkit.ground.recipe import Recipe, template, torch_checkpoint
from optkit.verbs import api


@pytest.mark.parametrize("nested", [False, True])
def test_a_whole_module_is_loaded_by_the_lines_of_the_refusal(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(3, 2))
    torch.save({"epoch": 3, "model": net.half()} if nested else net, "best.pt")
    with pytest.raises(RecipeError, match="holds a whole module") as caught:
        Recipe.for_model("best.pt")
    asked, _, lines = str(caught.value.hint).partition("\n")
    assert "optkit init best_model.py:create" in asked and "trust" in asked
    space: dict[str, Any] = {}
    exec(lines, space)
    made, x = space["create"](), torch.ones(1, 3)
    torch.testing.assert_close(made(x), net.float()(x))


def test_ultralytics_loads_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = ModuleType("ultralytics.nn.tasks")
    tasks.DetectionModel = type("DetectionModel", (nn.Linear,), {"__module__": tasks.__name__})  # type: ignore[attr-defined]
    for name in ("ultralytics", "ultralytics.nn", tasks.__name__):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, tasks.__name__, tasks)
    path = tmp_path / "best.pt"
    torch.save({"model": tasks.DetectionModel(2, 2), "ema": None}, path)
    loader = torch_checkpoint.loader(str(path))
    assert loader is not None and f"return YOLO({str(path)!r}).model" in loader[0]
    (tmp_path / "model.py").write_text("def create(): ...")
    monkeypatch.chdir(tmp_path)
    written = template.template("model.py:create", Path("optkit.yaml")).text
    assert "weights_only" not in written
    with pytest.raises(RecipeError, match="pickles are never loaded") as caught:
        Recipe.from_dict(
            {"name": "net", "model": {"factory": "model.py:create", "weights": str(path)}}, tmp_path
        )
    assert ".model" in str(caught.value.hint) and "weights_only" not in str(caught.value.hint)


def test_inspect_says_what_a_checkpoint_is(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(InputRefused, match="a checkpoint of torch") as caught:
        api.inspect(path)
    assert f"optkit build {path}" in str(caught.value.hint)


def test_weights_and_other_files_have_no_module(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    assert torch_checkpoint.loader(str(path)) is None
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:200])
    (tmp_path / "old.pt").write_bytes(b"\x80\x02}q\x00.")
    for name in ("cut.pt", "old.pt", "absent.pt"):
        assert torch_checkpoint.loader(str(tmp_path / name)) is None


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_folder_in_place_of_a_checkpoint_is_named(path: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    data = {"name": "net", "model": {"factory": "model.py:create", "weights": path}}
    with pytest.raises(RecipeError, match="pickles are never loaded"):
        Recipe.from_dict(data, tmp_path)
