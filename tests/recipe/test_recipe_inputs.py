"""The inputs of a model, as `optkit init` writes them into a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.facts.tensors import TensorInfo, axes_of
from optkit.ground.recipe import Recipe
from optkit.ground.recipe.template import RecipeTemplate, template

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
AXES = NAMES.filter(lambda name: " + " not in name and not name.isdecimal())
PICTURE = TensorInfo("x", "float32", ("p2o.DynamicDimension.0", 3, "x.2", "floor(width/2)"))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.onnx").touch()
    (tmp_path / "data.npz").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*read: TensorInfo, calibration: str | None = None) -> RecipeTemplate:
    return template("net.onnx", Path("optkit.yaml"), read=read, calibration=calibration)


def loaded(text: str) -> Recipe:
    Path("optkit.yaml").write_text(text, encoding="utf-8")
    return Recipe.load(Path("optkit.yaml"))


def test_axes_have_names_that_a_recipe_may_have() -> None:
    recipe = loaded(started(PICTURE).text)
    assert recipe.inputs["x"].shape == ("batch", 3, "x_2", "floor_width_2")
    assert list(recipe.axes) == ["batch"]


def test_axes_without_a_range_are_named() -> None:
    told = "give a range to x_2, floor_width_2 under axes (or give --calibration), then: optkit"
    assert started(PICTURE).then.startswith(told)
    assert started(PICTURE, calibration="data.npz").then.startswith("optkit build")
    assert "# x_2: {min: 1, opt: 64, max: 128}" in started(PICTURE).text


def test_names_that_a_recipe_may_have_stay() -> None:
    read = (
        TensorInfo("ids", "int64", ("N", "new")),
        TensorInfo("mask", "bool", ("N", "past + new")),
        TensorInfo("cache", "float16", ("N", 2, "past", 8)),
        TensorInfo("null", "float32", ("N", "true", "Null")),
    )
    recipe = loaded(started(*read, calibration="data.npz").text)
    assert [part.shape for part in recipe.inputs.values()] == [info.shape for info in read]
    assert list(recipe.axes) == ["N"]


@pytest.mark.parametrize("shape", [(4, 3), ()])
def test_a_model_of_fixed_sizes_needs_no_axes(shape: tuple[int, ...]) -> None:
    recipe = loaded(started(TensorInfo("x", "uint8", shape)).text)
    assert recipe.inputs["x"].shape == shape and not recipe.axes


@pytest.mark.parametrize(
    "info", [TensorInfo("x", "float8_e4m3fn", ("batch", 3)), TensorInfo("x", "float32", (1, 0))]
)
def test_inputs_that_no_recipe_may_declare_are_left_to_the_model(info: TensorInfo) -> None:
    recipe = loaded(started(info).text)
    assert not recipe.inputs and not recipe.axes


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_any_names_give_a_recipe_that_loads(data: st.DataObject) -> None:
    """Inputs keep their names; axes keep which of them are equal."""
    axes = data.draw(st.lists(AXES, min_size=1, max_size=4, unique=True), label="axes")
    shape = st.lists(st.sampled_from(axes) | st.integers(1, 9), max_size=4).map(tuple)
    names = data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True), label="inputs")
    read = [TensorInfo(name, "float32", data.draw(shape, label="shape")) for name in names]
    recipe = loaded(started(*read, calibration="data.npz").text)
    assert list(recipe.inputs) == names
    renamed: dict[str, str] = {}
    for info in read:
        written = recipe.inputs[info.name].shape
        assert len(written) == len(info.shape)
        for dim, other in zip(info.shape, written, strict=True):
            if isinstance(dim, int):
                assert other == dim
            else:
                assert renamed.setdefault(dim, str(other)) == other
    assert len(set(renamed.values())) == len(renamed) == len(axes_of(
        dim for info in read for dim in info.shape))  # fmt: skip
