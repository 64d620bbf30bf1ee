"""Recipes of Hugging Face models: where they are, which files belong to them, and what they must
not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import RecipeError, UsageError
from optkit.facts.request import Request
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import places
from optkit.ground.recipe import Recipe, requested


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("project/bert", "project/lora", "project/empty", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("project/bert", "elsewhere"):
        (tmp_path / name / "config.json").touch()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def recipe(**model: Any) -> Recipe:
    return Recipe.from_dict({"name": "net", "model": model})


def refused(**model: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe(**model)
    assert caught.value.hint
    return caught.value.message


def test_a_folder_with_its_task_and_adapter(project: Path) -> None:
    found = recipe(path="bert", task="fill-mask", adapter="lora")
    source = found.source
    assert source is not None and source.place is not None and source.adapter is not None
    assert (source.kind, source.task, source.trusted) == ("hf", "fill-mask", False)
    assert source.place.path == project.resolve() / "bert"
    assert source.adapter.path == project.resolve() / "lora"
    assert found.to_json()["model"]["path"] == "recipe:bert"
    assert found.to_json()["model"]["adapter"] == "recipe:lora"


def test_a_name_on_the_hub() -> None:
    source = recipe(hub="org/some-model_1.5").source
    assert source is not None
    assert (source.kind, source.place, source.hub) == ("hf", None, "org/some-model_1.5")


@pytest.mark.parametrize(
    "name", ["model", "org/model/x", "../model", "/org/model", "org/", "a b/c"]
)
def test_what_is_no_name_on_the_hub(name: str) -> None:
    assert "is not org/name" in refused(hub=name)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"path": "empty"}, "holds neither optkit.yaml nor config.json"),
        ({"path": "nothere"}, "no such folder"),
        ({"path": "../elsewhere"}, "outside the recipe's project"),
        ({"path": "bert", "adapter": "../elsewhere"}, "outside the recipe's project"),
        ({"path": "bert", "adapter": "bert/config.json"}, "not a folder"),
        ({"path": "bert", "hub": "org/name"}, "exactly one of factory, path and hub"),
        ({"path": "bert", "weights": "x.safetensors"}, "belong to a factory"),
        ({"factory": "m.py:f", "task": "fill-mask"}, "belong to a Hugging Face model"),
        ({"path": "net.onnx", "adapter": "lora"}, "belong to a Hugging Face model"),
    ],
)
def test_what_does_not_go_together(model: dict[str, Any], told: str) -> None:
    assert told in refused(**model)


@pytest.mark.parametrize("value", [True, False, "yes"])
def test_no_recipe_trusts_code(value: object) -> None:
    assert "--trust-remote-code; a recipe may not" in refused(path="bert", trust_remote_code=value)
    with pytest.raises(RecipeError, match="a recipe may not"):
        recipe(path="bert").with_overrides([f"model.trust_remote_code={value}"])


def test_the_command_line_trusts_and_it_is_recorded() -> None:
    found = requested(
        recipe(path="bert"), Request(trust_remote_code=True, overrides=("bench.seconds=1",))
    )
    assert found.source is not None and found.source.trusted
    assert found.to_json()["model"]["trust_remote_code"] is True
    assert "trust_remote_code" not in recipe(path="bert").to_json()["model"]


def test_trust_is_for_hugging_face_models_alone() -> None:
    Path("net.onnx").touch()
    with pytest.raises(UsageError, match="can contain code"):
        requested(recipe(path="net.onnx"), Request(trust_remote_code=True))


def test_task_and_adapter_on_the_command_line_name_the_option() -> None:
    found = requested(recipe(path="bert"), Request(task="fill-mask", adapter="../elsewhere"))
    assert found.source is not None and found.source.adapter is not None
    assert found.source.adapter.root == "given"
    with pytest.raises(RecipeError) as caught:
        requested(recipe(path="bert"), Request(adapter="nothere"))
    assert caught.value.where == "--adapter nothere"


@pytest.mark.parametrize(
    ("model", "key", "name"),
    [
        ("bert", "path", "bert"),
        ("./bert/", "path", "bert"),
        ("../elsewhere", "path", "elsewhere"),
        (".", "path", "project"),
        ("net.onnx", "path", "net"),
        ("org/Some-Model", "hub", "Some-Model"),
        ("model.py:create", "factory", "model"),
        ("dir/model.py", "factory", "dir-model"),
        ("dir/model.py:create", "factory", "dir-model"),
        ("dir/net.py:create", "factory", "net"),
        ("../elsewhere/model.py:create", "factory", "elsewhere-model"),
        ("yolo/weights/best.onnx", "path", "yolo-weights-best"),
        ("org/model", "hub", "model"),
        ("pkg.mod:create", "factory", "mod"),
        ("pkg.model:create", "factory", "pkg-model"),
        ("model:create", "factory", "model"),
        ("model.py:small", "factory", "model-small"),
        ("model.py:large", "factory", "model-large"),
        ("dir/model.py:create_model", "factory", "dir-model"),
        ("torchvision.models:resnet18", "factory", "models-resnet18"),
        ("resnet18.py:resnet18", "factory", "resnet18"),
        ("recipes/x.yaml", "factory", "x.yaml"),
        ("a" * 5000, "factory", "a" * 100),
    ],
)
def test_model_on_the_command_line(model: str, key: str, name: str) -> None:
    assert places.model_key(model) == key
    assert places.model_name(model) == name


def test_a_folder_with_a_recipe_is_that_recipe(project: Path) -> None:
    assert places.model_recipe("bert") is None
    (project / "bert" / "optkit.yaml").touch()
    assert places.model_recipe("bert") == Path("bert/optkit.yaml")


def test_the_models_own_inputs_and_axes_fill_what_the_recipe_leaves_open() -> None:
    found = Recipe.from_dict(
        {"name": "net", "model": {"path": "bert"}, "axes": {"past": {"min": 0, "opt": 4, "max": 9}}}
    )
    specs = [
        InputSpec(TensorInfo("ids", "int64", ("batch", "past + new")), (0, 96)),
        InputSpec(TensorInfo("past.0", "float32", ("batch", 2, "past", 4))),
    ]
    own = {"past": AxisRange(0, 8, 16), "new": AxisRange(1, 1, 16), "batch": AxisRange(1, 8, 32)}
    whole = found.with_inputs(specs, own)
    assert whole.axis_ranges() == {**own, "past": AxisRange(0, 4, 9)}
    assert [spec.info.shape for spec in whole.describe()] == [
        ("batch", "past + new"), ("batch", 2, "past", 4),
    ]  # fmt: skip
    assert whole.optional_axes() == ["past"]
    assert whole.source == found.source


@pytest.mark.parametrize("shape", [["batch", "a+b"], ["batch", "a + "], ["batch", "a + b c"]])
def test_a_sum_of_axes_is_names_and_plus(shape: list[str]) -> None:
    with pytest.raises(RecipeError, match="nor a sum"):
        Recipe.from_dict({"name": "n", "inputs": {"x": {"dtype": "int64", "shape": shape}}})


def test_parts_of_a_sum_are_axes_of_the_inputs() -> None:
    data = {
        "name": "n",
        "inputs": {"x": {"dtype": "int64", "shape": ["batch", "a + b"]}},
        "axes": {"a": {"min": 0, "opt": 1, "max": 2}, "b": 3},
    }
    assert set(Recipe.from_dict(data).axis_ranges()) == {"batch", "a", "b"}
    with pytest.raises(RecipeError, match="axis 'b' is not declared"):
        Recipe.from_dict({**data, "axes": {"a": 3}})
