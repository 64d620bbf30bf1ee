"""The arguments of a sample source, their part in the key, and the entry in the manifest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.facts.precisions import PRECISIONS
from optkit.facts.request import Request
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.devices import target
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Recipe, requested
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import Build, Job, data_of
from optkit.road.pipeline.collected import collected
from optkit.road.pipeline.sources import collect
from optkit.road.steps.collect import Collect, CollectedSamples
from optkit.road.steps.graph import Graph

SETTINGS = {
    "name": "net",
    "calibration": {"source": "text", "args": {"path": "corpus.txt", "length": 4}},
    "eval": {"task": "perplexity", "args": {"path": "held.txt"}},
}


class Runner:
    """Notes what it is asked to run."""

    limits = SimpleNamespace(memory_bytes=1 << 30)

    def __init__(self) -> None:
        self.asked: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def do(self, step: Collect, label: str) -> CollectedSamples:
        self.asked[label.split()[1]] = step.params, step.beside
        info = SpoolInfo(len(label), 1, 0, False, label)
        return CollectedSamples(info=info, folder=Foreign(meta={"info": info.to_json()}))


def asked(recipe: Recipe, assets: dict[str, str]) -> tuple[Build, Runner]:
    made = Build(
        Job(recipe, target("cpu"), PRECISIONS["int8"]), "onnxruntime", (), PRECISIONS["fp32"]
    )
    files = {"model.onnx": "0" * 64, **assets}
    made.source = Graph(folder=Foreign(Path("/store/source"), files=files))
    runner = Runner()
    collect(made, runner)  # type: ignore[arg-type]
    return made, runner


def test_a_models_tokenizer_is_in_the_key_and_its_place_is_not(tmp_path: Path) -> None:
    recipe = Recipe.from_dict(SETTINGS, tmp_path)
    tokenizer = {"assets/tokenizer.json": "1" * 64}
    _, runner = asked(recipe, tokenizer)
    params, here = runner.asked["calibration"]
    assert params["assets"] == tokenizer and here["model"] == "/store/source/assets"
    assert "/store" not in str(params) and str(tmp_path) not in str(params)
    _, without = asked(recipe, {})
    params, here = without.asked["calibration"]
    assert "assets" not in params and "model" not in here


def test_paths_start_at_the_recipe_or_at_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    recipe = requested(Recipe.from_dict(SETTINGS, tmp_path), Request(calibration="mine.jsonl"))
    _, runner = asked(recipe, {})
    params, here = runner.asked["calibration"]
    assert params["args"] == {"path": "mine.jsonl", "length": 4}
    assert here["folders"] == {"path": str(cwd), "length": str(tmp_path)}
    _, other = runner.asked["evaluation"]
    assert other["folders"] == {"path": str(tmp_path)}


def test_the_manifest_names_both_kinds_of_data(tmp_path: Path) -> None:
    made, _ = asked(Recipe.from_dict(SETTINGS, tmp_path), {})
    found = data_of(made)
    assert found["calibration"] == {
        "source": "content:calibration/text.py:samples",
        "args": {"path": "corpus.txt", "length": 4},
        "samples": 27,
        "digest": "collect calibration samples",
    }
    assert found["evaluation"]["source"] == "content:eval/perplexity.py"
    made.evaluation = None
    assert list(data_of(made)) == ["calibration"]


def test_recipes_in_two_folders_with_the_same_relative_path_have_their_own_samples(
    tmp_path: Path,
) -> None:
    runner = Workspace(cache=tmp_path / "cache").runner()
    settings = {
        "name": "net",
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 2]}},
        "axes": {"batch": {"min": 1, "opt": 4, "max": 4}},
        "calibration": {"source": "arrays", "args": {"path": "samples.npz"}},
    }
    digests = set()
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.savez(folder / "samples.npz", x=np.full((4, 2), number, np.float32))
        recipe = Recipe.from_dict(settings, folder)
        source = recipe.samples("calibration")
        assert source is not None
        digests.add(collected(recipe, source, "calibration", recipe.describe(), runner).info.digest)
    assert len(digests) == 2
