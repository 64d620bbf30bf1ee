"""The key of a step contains everything on which its result depends, including the order of
patterns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target
from optkit.ground.recipe import Recipe
from optkit.ground.store import Store, digest_json
from optkit.road.pipeline import Build, Foreign, Job, delivery
from optkit.road.pipeline.graphs import comparison
from optkit.road.pipeline.quantization import settings_of
from optkit.road.steps.graph import Graph
from optkit.satellites.tuning.past_trials import PastTrials
from optkit.satellites.tuning.reproduce import reproduction
from optkit.satellites.tuning.space import Space

PATTERNS = [("*", "fp16"), ("*head*", "int8")]


def recipe(nodes: Any = (), **others: Any) -> Recipe:
    return Recipe.from_dict({"name": "net", "quantization": {"nodes": dict(nodes)}, **others})


def memory(settings: Recipe, tmp_path: Any) -> str:
    made = Build(
        Job(settings, target("l4"), PRECISIONS["int8"]), None, ("tensorrt",), PRECISIONS["fp16"]
    )
    return PastTrials.of(made, Space((), "fp16"), {}, Store(tmp_path)).key


def test_the_order_of_patterns_is_told_apart(tmp_path: Any) -> None:
    """The last that matches counts, while the keys of a JSON object have no order in a digest."""
    one, other = recipe(PATTERNS), recipe(PATTERNS[::-1])
    assert digest_json(one.to_json()) == digest_json(other.to_json())
    assert settings_of(one).order != settings_of(other).order
    assert memory(one, tmp_path) != memory(other, tmp_path)


@pytest.mark.parametrize("nodes", [PATTERNS, PATTERNS[::-1]])
def test_a_tuned_recipe_and_a_record_keep_the_order(nodes: Any, tmp_path: Path) -> None:
    made = Job(recipe(nodes), target("l4"), PRECISIONS["int8"], graph=Foreign(tmp_path, "0" * 64))
    file = reproduction(made, tmp_path, {}).file
    for text in (file.read_bytes(), delivery._yaml(made.recipe.to_json())):
        assert list(YAML(typ="safe").load(text)["quantization"]["nodes"].items()) == nodes


def test_the_data_of_a_tuned_recipe_is_found_from_its_own_folder(tmp_path: Path) -> None:
    """Relative to the file; beside a task of the user's, which the command line names, absolute."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "task.py").write_text("")
    data = {"source": "text", "args": {"path": "corpus.jsonl", "field": "text"}}
    task = {"task": "task.py", "args": {"held": "held.npz", "k": 2}}
    mine = {"name": "net", "calibration": data, "eval": task, "model": {"hub": "org/name"}}
    made = Job(Recipe.from_dict(mine, home), target("l4"), PRECISIONS["int8"])
    out = tmp_path / "out"
    out.mkdir()
    again = reproduction(made, out, {"calibration": ["path"], "eval": ["held"]})
    found = again.recipe
    assert found.calibration is not None and found.eval is not None
    assert found.calibration.args == {"path": "../home/corpus.jsonl", "field": "text"}
    assert found.argument_folders("calibration")["path"] == out.resolve()
    assert found.eval.args == {"held": str(home / "held.npz"), "k": 2}
    assert str(home / "held.npz") in again.command


@pytest.mark.parametrize(
    "others",
    [
        {"bench": {"threads": 1}},
        {"inputs": {"x": {"dtype": "int64", "shape": [4], "range": [0, 9]}}},
    ],
)
def test_trials_are_remembered_by_all_they_depend_on(others: Any, tmp_path: Any) -> None:
    assert memory(recipe(), tmp_path) != memory(recipe(**others), tmp_path)


@pytest.mark.parametrize("role", ["fused", "prepared"])
def test_graphs_too_large_for_two_sessions_are_not_compared(role: str) -> None:
    made = Build(
        Job(recipe(), target("l4"), PRECISIONS["int8"]), None, ("tensorrt",), PRECISIONS["fp16"]
    )
    made.source = Graph(parameters=1 << 30)
    runner: Any = SimpleNamespace(limits=SimpleNamespace(memory_bytes=1 << 33))
    assert f"the {role} graph" in str(comparison(made, runner, role)[1])
    runner.limits.memory_bytes = 1 << 34
    assert comparison(made, runner, role)[1] is None
