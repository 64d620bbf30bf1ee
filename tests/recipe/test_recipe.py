"""Recipes: reading, overriding, ranges, files they may name, and errors that name the place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.codec import from_json
from optkit.facts.errors import RecipeError, UnknownName, UsageError
from optkit.facts.request import Request
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import places, shipped
from optkit.ground.recipe import Recipe, requested
from optkit.ground.recipe.sections import ACCURACY_LIMITS, ENGINE_LIMITS, Limits
from optkit.ground.store import digest_json

TEXT = """\
name: net
model: {factory: model.py:create, weights: weights.safetensors, args: {depth: 2}}
inputs:
  image: {dtype: float32, shape: [batch, 3, 8, 8]}
  ids: {dtype: int64, shape: [batch, seq], range: [0, 99]}
axes:
  batch: {min: 1, opt: 8, max: 32}
  seq: 16
calibration: {source: samples.py:training, samples: 64, method: percentile, batch: 4}
eval: {task: task.py}
gates:
  max_drop: 0.5%
  accept: [predicted]
bench: {batches: [1, 8], seconds: 3}
"""
FILES = ("model.py", "weights.safetensors", "samples.py", "task.py", "net.onnx", "net.pt2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "project"
    home.mkdir()
    for name in FILES:
        (home / name).touch()
    (tmp_path / "outside.py").touch()
    monkeypatch.chdir(home)
    return home


def load(folder: Path, text: str = TEXT) -> Recipe:
    (folder / "optkit.yaml").write_text(text)
    return Recipe.load("optkit.yaml")


def test_arrays_declare_the_inputs_of_a_python_model_without_any(folder: Path) -> None:
    np.savez("data.npz", image=np.zeros((5, 3, 8), np.float32), ids=np.arange(5))
    model, data = Recipe.for_model("model.py:create"), Request(calibration="data.npz")
    found = requested(model, data)
    assert {name: (part.dtype, part.shape) for name, part in found.inputs.items()} == {
        "image": ("float32", ("batch", 3, 8)),
        "ids": ("int64", ("batch",)),
    }
    assert requested(found, Request(shapes="image:4x3x8")).axes["batch"].max == 4
    declared = requested(load(folder), data)
    assert declared.inputs["image"].shape == ("batch", 3, 8, 8)  # those of the recipe stay
    assert not requested(Recipe.for_model("net.onnx"), data).inputs  # it has its own


def refused(folder: Path, old: str, new: str) -> RecipeError:
    """The error of TEXT with `old` replaced by `new`."""
    assert TEXT.count(old) == 1
    with pytest.raises(RecipeError) as caught:
        load(folder, TEXT.replace(old, new))
    assert caught.value.hint
    return caught.value


def test_reads_everything(folder: Path) -> None:
    recipe = load(folder)
    assert recipe.source is not None and recipe.source.kind == "python"
    assert recipe.source.place is not None
    assert recipe.source.place.path == folder.resolve() / "model.py"
    assert recipe.source.attribute == "create"
    assert recipe.source.weights is not None
    assert recipe.source.args == {"depth": 2}
    assert recipe.calibration_source is not None
    assert recipe.calibration_source.attribute == "training"
    assert recipe.eval_task is not None and recipe.eval_task.path.name == "task.py"
    assert recipe.axis_ranges() == {"batch": AxisRange(1, 8, 32), "seq": AxisRange(16, 16, 16)}
    assert recipe.gates.max_drop == 0.005
    assert recipe.gates.accept == ("predicted",)
    assert recipe.calibration is not None and recipe.calibration.percentile == 99.99
    assert recipe.bench.batches == (1, 8) and recipe.bench.threads is None


def test_defaults() -> None:
    recipe = Recipe.from_dict({"name": "net"})
    assert recipe.gates.max_drop == 0.01
    assert recipe.source is None and recipe.calibration is None and recipe.eval is None
    assert recipe.axis_ranges() == {"batch": AxisRange(1, 8, 32)}


def test_all_problems_are_told_at_once(folder: Path) -> None:
    text = TEXT.replace("0.5%", "lots").replace("max_drop:", "max_dorp:").replace("[1, 8]", "none")
    with pytest.raises(RecipeError) as caught:
        load(folder, text.replace("samples: 64", "samples: 0"))
    assert caught.value.message == "gates.max_dorp: unknown key"
    hint, *others = str(caught.value.hint).splitlines()
    assert "max_drop" in hint
    assert [line.split(": ", 3)[0::2] for line in others] == [
        ["also wrong", "calibration.samples"],
        ["also wrong", "bench.batches"],
    ]
    with pytest.raises(RecipeError, match=r"and 4 more$"):
        Recipe.from_dict({f"key{n}": 1 for n in range(12)})


def test_batch_has_a_default_only_where_it_is_used() -> None:
    def ranges(shape: list[Any]) -> dict[str, AxisRange]:
        data = {"name": "net", "inputs": {"x": {"dtype": "float32", "shape": shape}}}
        return Recipe.from_dict(data).axis_ranges()

    assert ranges(["batch", 4]) == {"batch": AxisRange(1, 8, 32)}
    assert ranges([2, 4]) == {}


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "hint"),
    [
        ("max_drop:", "max_dorp:", "12:3", "gates.max_dorp: unknown key", "max_drop"),
        ("gates:", "gate:", "11:1", "gate: unknown key", "gates"),
        ("samples: 64", "sample: 64", "9:44", "calibration.sample: unknown key", "samples"),
        ("range:", "rang:", "5:44", "inputs.ids.rang: unknown key", "range"),
        ("dtype: int64, ", "", "5:3", "inputs.ids: key 'dtype' is missing", ""),
        ("name: net\n", "", "1:1", "key 'name' is missing", ""),
        ("int64", "int63", "5:9", "'int63' is not one of", "int64"),
        ("percentile,", "percentil,", "9:57", "'percentil' is not one of", "percentile"),
        ("samples: 64", 'samples: "64"', "9:44", "valid integer, not '64'", ""),
        ("samples: 64", "samples: 0", "9:44", "greater than or equal to 1", ""),
        ("seconds: 3", "seconds: true", "14:26", "valid number, not True", ""),
        ("[1, 8]", "[1, 8.5]", "14:22", "bench.batches.1", ""),
        ("0.5%", "5", "12:3", "5 would be 500 %; write 5% or 0.05", ""),
        ("0.5%", "lots", "12:3", "neither a fraction", ""),
        ("min: 1,", "min: 9,", "7:3", "axes.batch: min 9 is larger than opt 8", ""),
        ("max: 32", "max: 7", "7:3", "axes.batch: opt 8 is larger than max 7", ""),
        ("max: 32", "max: 32, multiple: 8", "7:3", "min 1 is not a multiple of 8", ""),
        ("seq: 16", "sek: 16", "5:38", "axis 'seq' is not declared", "sek"),
        ("seq: 16", "seq: 16\n  len: 4", "9:3", "axes.len: no input has this axis", "remove"),
        ("[0, 99]", "[99, 0]", "5:3", "range 99 to 0 is empty", ""),
        ("[batch, seq]", "[batch, 0]", "5:38", "greater than or equal to 1", ""),
        ("[batch, seq]", "[batch, a-b]", "5:3", "'a-b' is not an axis name", ""),
        ("name: net", "name: ../net", "1:1", "'../net' is not a name", ""),
        ("factory: model.py:create", "path: net.onnx", "2:1", "belong to a factory", ""),
        ("factory: model.py:create, ", "", "2:1", "exactly one of factory, path and hub", ""),
        ("model.py:create", "model.py", "2:9", "names no function", "file.py:factory"),
        ("model.py:create", "pkg.mod:create", "2:9", "installed module", "command line"),
        ("model.py:create", "model.pt", "2:9", "'model.pt' is a checkpoint", "weights_only=True"),
        ("model.py:create", "w.safetensors", "2:9", "without the code", "model.weights=w.safe"),
        ("model.py:create", "mine.yaml", "2:9", "is a recipe, not a model", "--recipe mine.yaml"),
        ("model.py:create", "model.h5", "2:9", "is a model of Keras", "tf2onnx"),
        ("model.py:create", "model", "2:9", "file.py:function", "OWNER/model"),
        ("model.py:create", "../outside.py:f", "2:9", "the recipe's project", "command line"),
        ("model.py:create", "modl.py:create", "2:9", "no such file: 'modl.py'", "relative"),
        ("weights.safetensors", "w.pt", "2:35", "pickles are never", "'w.safetensors'"),
        ("samples.py:training", "digit", "9:15", "unknown calibration source 'digit'", "digits"),
        ("samples.py:training", "../outside.py", "9:15", "outside", "command line"),
        ("samples.py:training", "../project", "9:15", "not a Python file", "file.py"),
        ("task.py", "digits_top2", "10:8", "unknown evaluation task", "digits_top1"),
        ("task.py", "task.py:score", "10:8", "a whole file", "task.py"),
    ],
)  # fmt: skip
def test_errors_name_line_and_remedy(
    folder: Path, old: str, new: str, where: str, message: str, hint: str
) -> None:
    if re.fullmatch(r"\w+\.(pt|safetensors|yaml|h5)", new):
        (folder / new).touch()
    error = refused(folder, old, new)
    assert error.exit_code == 2
    assert error.where == f"optkit.yaml:{where}"
    assert message in error.message
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "lines"),
    [("yolo11n.pt", True), ("yolo26n-seg.yaml", True), ("gone.pt", False), ("net.h5", False)],
)
def test_a_model_file_that_is_not_there_is_missing(name: str, lines: bool, folder: Path) -> None:
    error = refused(folder, "model.py:create", name)
    assert error.message.endswith(f"there is no file {name!r} here")
    assert ("YOLO(" in str(error.hint)) is lines and "correct the path" in str(error.hint)


@pytest.mark.parametrize("mark", ["pyproject.toml", ".git", "optkit.yaml"])
def test_a_recipe_names_files_of_its_project_and_none_outside(tmp_path: Path, mark: str) -> None:
    project = tmp_path / "project"
    for name in ("recipes", "src"):
        (project / name).mkdir(parents=True)
    for file in (project / mark, project / "src" / "model.py", tmp_path / "outside.py"):
        file.touch()
    (project / "src" / "link.py").symlink_to(tmp_path / "outside.py")
    recipe = project / "recipes" / "net.yaml"
    recipe.write_text("name: net\nmodel: {factory: ../src/model.py:create}\n")
    source = Recipe.load(recipe).source
    assert source is not None and source.place is not None
    assert source.place.path == (project / "src" / "model.py").resolve()
    assert Recipe.load(recipe).to_json()["model"]["factory"] == "recipe:../src/model.py:create"
    for outside in ("../../outside.py", "../src/link.py"):
        recipe.write_text(f"name: net\nmodel: {{factory: {outside}:create}}\n")
        with pytest.raises(RecipeError, match="outside the recipe's project"):
            Recipe.load(recipe)


def test_links_do_not_lead_out(folder: Path) -> None:
    (folder / "link.py").symlink_to(folder.parent / "outside.py")
    assert "outside" in refused(folder, "samples.py:training", "link.py").message
    assert "no such file" in refused(folder, "task.py", "gone\\0.py").message


@pytest.mark.parametrize("path", ["task\0.py", "a/" * 3000 + "x.py"])
def test_impossible_paths_are_refused(folder: Path, path: str) -> None:
    with pytest.raises(RecipeError):
        Recipe.from_dict({"name": "net", "eval": {"task": path}})


def test_a_recipe_that_is_no_mapping(folder: Path) -> None:
    with pytest.raises(RecipeError, match="mapping"):
        load(folder, "- 1\n")
    with pytest.raises(RecipeError, match="no such recipe"):
        Recipe.load("nosuch.yaml")


def test_content_may_be_named_from_anywhere(folder: Path) -> None:
    recipe = load(folder, "name: net\ncalibration: {source: digits}\neval: {task: digits_top1}\n")
    assert str(recipe.calibration_source) == "content:calibration/digits.py:samples"
    assert str(recipe.eval_task) == "content:eval/digits_top1.py"


def test_overrides_are_validated_like_the_file(folder: Path) -> None:
    recipe = load(folder).with_overrides(
        [
            "gates.max_drop=-5%",
            "bench.batches=[2, 4]",
            "axes.batch.max=64",
            "eval=",
            "gates.accept=[]",
        ]
    )
    assert recipe.gates.max_drop == -0.05
    assert recipe.bench.batches == (2, 4)
    assert recipe.axis_ranges()["batch"] == AxisRange(1, 8, 64)
    assert recipe.eval is None
    assert load(folder).gates.max_drop == 0.005


def test_overrides_fill_sections_that_are_missing() -> None:
    recipe = Recipe.from_dict({"name": "net"}).with_overrides(["calibration.source=digits"])
    assert recipe.calibration is not None and recipe.calibration.samples == 256


def test_override_of_a_name_with_dots() -> None:
    data = {"name": "net", "inputs": {"x.1": {"dtype": "float32", "shape": [1, 4]}}}
    recipe = Recipe.from_dict(data).with_overrides(["inputs.x.1.dtype=int64"])
    assert recipe.inputs["x.1"].dtype == "int64"


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("gates.max_dorp=1%", "gates.max_dorp: unknown key", "max_drop"),
        ("gate.max_drop=1%", "gate: unknown key", "gates"),
        ("gates.max_drop", "not KEY=VALUE", "gates.max_drop=1%"),
        ("=1", "not KEY=VALUE", ""),
        ("gates..max_drop=1", "not KEY=VALUE", ""),
        ("gates.max_drop=[1", "expected", "YAML"),
        ("gates.max_drop=&a 1", "anchors", ""),
        ("name.x=1", "name has no keys", ""),
        ("axes.batch.min=16", "min 16 is larger than opt 8", ""),
        ("calibration.source=digit", "unknown calibration source", "digits"),
        ("model.path=net.onnx", "exactly one", ""),
    ],
)
def test_overrides_name_the_setting(folder: Path, setting: str, message: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(folder).with_overrides([setting])
    assert caught.value.where == f"--set {setting}"
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_the_command_line_may_name_any_file(folder: Path) -> None:
    recipe = load(folder).with_overrides(["calibration.source=../outside.py:fresh"])
    assert str(recipe.calibration_source) == "given:outside.py:fresh"


@pytest.mark.parametrize(
    ("model", "kind", "told"),
    [
        ("net.onnx", "onnx", "given:net.onnx"),
        ("net.pt2", "pt2", "given:net.pt2"),
        ("../outside.py:build", "python", "given:outside.py:build"),
        ("pkg.mod:build", "python", "pkg.mod:build"),
    ],
)
def test_model_replaces_the_whole_section(folder: Path, model: str, kind: str, told: str) -> None:
    recipe = load(folder).with_model(model)
    source = recipe.source
    assert source is not None
    assert (source.kind, source.weights, source.args) == (kind, None, {})
    described = recipe.to_json()["model"]
    assert (described["path"] or described["factory"]) == told
    if source.place is None:
        assert (source.module, source.attribute) == ("pkg.mod", "build")
    assert recipe.name == "net" and recipe.inputs


@pytest.mark.parametrize("model", ["nosuch.onnx", "model.bin", "model.py", "a b:c", ""])
def test_models_that_are_none(folder: Path, model: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(folder).with_model(model)
    assert caught.value.where == f"MODEL {model}"


@pytest.mark.parametrize(
    ("model", "name"),
    [("net.onnx", "net"), ("model.py:create", "model"), ("pkg.my_net:create", "my_net")],
)
def test_a_model_alone_gives_a_recipe(folder: Path, model: str, name: str) -> None:
    recipe = Recipe.for_model(model)
    assert recipe.name == name and recipe.source is not None


def test_shapes_set_ranges(folder: Path) -> None:
    recipe = load(folder)
    wide = requested(
        recipe, Request(min_shapes="image:2x3x8x8", max_shapes="image:64x3x8x8,ids:64x16")
    )
    assert wide.axis_ranges()["batch"] == AxisRange(2, 8, 64)
    one = requested(recipe, Request(shapes="ids:4x32"))
    assert one.axis_ranges() == {"batch": AxisRange(4, 4, 4), "seq": AxisRange(32, 32, 32)}
    mixed = requested(recipe, Request(shapes="ids:4x32", max_shapes="ids:8x32"))
    assert mixed.axis_ranges()["batch"] == AxisRange(4, 4, 8)
    assert requested(recipe, Request()) == recipe


def test_shapes_declare_the_inputs_of_a_python_model_without_any(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def create(): ...\n")
    made = {"name": "net", "model": {"factory": "model.py:create"}}
    recipe = Recipe.from_dict(made, tmp_path)
    found = requested(recipe, Request(shapes="image:4x3x64x32,scale:4"))
    declared = {name: (one.dtype, one.shape) for name, one in found.inputs.items()}
    assert declared == {
        "image": ("float32", ("batch", 3, 64, 32)), "scale": ("float32", ("batch",))
    }  # fmt: skip
    assert found.axis_ranges() == {"batch": AxisRange(4, 4, 4)}
    wide = requested(recipe, Request(min_shapes="image:1x3", max_shapes="image:8x3"))
    assert wide.axis_ranges()["batch"].max == 8
    table = requested(recipe, Request(shapes="image:4x3,table:10x2"))
    assert [one.shape for one in table.inputs.values()] == [(4, 3), (10, 2)]
    with pytest.raises(UsageError, match="axis 1 of image is 3, not 4"):
        requested(recipe, Request(shapes="image:1x4", max_shapes="image:8x3"))


def test_shapes_of_a_model_whose_recipe_declares_no_inputs() -> None:
    recipe = Recipe.from_dict({"name": "net"})
    request = Request(shapes="x:4x3x64")
    found = requested(recipe, request, lambda recipe: {"x": ("batch", 3, "width")})
    assert found.axis_ranges() == {"batch": AxisRange(4, 4, 4), "width": AxisRange(64, 64, 64)}
    with pytest.raises(UsageError, match="declares no inputs"):
        requested(recipe, request)


@pytest.mark.parametrize(
    ("bounds", "kind", "where", "message"),
    [
        ({"min_shapes": "image:16x3x8x8"}, RecipeError,
         "--min-shapes image:16x3x8x8", "min 16 is larger"),
        ({"min_shapes": "ids:9x16", "opt_shapes": "ids:4x16"}, RecipeError,
         "--min-shapes ids:9x16 --opt-shapes ids:4x16", "axes.batch: min 9 is larger than opt 4"),
        ({"shapes": "imag:4x3x8x8"}, UnknownName, "--shapes", "unknown input 'imag'"),
        ({"shapes": "image:4x3x8"}, UsageError, "--shapes", "image has 4 axes, not 3"),
        ({"opt_shapes": "image:4x3x8x9"}, UsageError, "--opt-shapes",
         "axis 3 of image is 8, not 9"),
        ({"max_shapes": "image:4x3x8x8,ids:5x16"}, UsageError, "--max-shapes",
         "axis 0 of ids is 4, not"),
        ({"max_shapes": "image"}, UsageError, "--max-shapes", "not name:AxBxC"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(
    folder: Path, bounds: dict[str, str], kind: type[UsageError], where: str, message: str
) -> None:
    with pytest.raises(kind) as caught:
        requested(load(folder), Request(**bounds))
    assert caught.value.where == where
    assert message in caught.value.message
    assert caught.value.hint


def test_json_is_the_same_on_every_machine(folder: Path, tmp_path: Path) -> None:
    here = load(folder).to_json()
    other = tmp_path / "elsewhere"
    folder.rename(other)
    there = Recipe.load(other / "optkit.yaml").to_json()
    assert digest_json(here) == digest_json(there)
    assert str(tmp_path) not in json.dumps(here)
    assert here["model"]["factory"] == "recipe:model.py:create"
    assert here["axes"]["seq"] == {"min": 16, "opt": 16, "max": 16}
    assert (
        from_json(dict[str, AxisRange], here["axes"])
        == Recipe.load(other / "optkit.yaml").axis_ranges()
    )


def test_a_default_written_out_changes_nothing() -> None:
    short = Recipe.from_dict({"name": "net", "gates": {"max_drop": "1%"}})
    long = Recipe.from_dict({"name": "net", "axes": {"batch": {"min": 1, "opt": 8, "max": 32}}})
    assert short.to_json() == long.to_json()


def test_inputs_travel_as_json(folder: Path) -> None:
    recipe = load(folder)
    rows = json.loads(json.dumps([spec.to_json() for spec in recipe.describe()]))
    specs = from_json(tuple[InputSpec, ...], rows)
    assert specs[1].info == TensorInfo("ids", "int64", ("batch", "seq"))
    assert specs[1].range == (0, 99) and specs[0].range is None


def test_inputs_of_a_model_are_joined_with_the_recipe(folder: Path) -> None:
    recipe = load(folder)
    model = [
        TensorInfo("ids", "int64", ("n", 16)),
        TensorInfo("image", "float32", ("n", 3, 8, 8)),
        TensorInfo("extra", "bool", (1,)),
    ]
    specs = recipe.describe(model)
    assert [spec.info for spec in specs] == model
    assert [spec.range for spec in specs] == [(0, 99), None, None]
    with pytest.raises(RecipeError, match="no such input") as caught:
        recipe.describe([TensorInfo("img", "float32", (1,)), *model[:1]])
    assert caught.value.where == "optkit.yaml:4:3" and "img" in (caught.value.hint or "")
    with pytest.raises(RecipeError, match="wants int32, not int64") as caught:
        recipe.describe([TensorInfo("ids", "int32", (1,)), model[1]])
    assert caught.value.where == "optkit.yaml:5:9"


@given(st.floats(-99, 99).map(lambda x: round(x, 6)))
def test_percent_is_a_hundredth(value: float) -> None:
    recipe = Recipe.from_dict({"name": "net", "gates": {"max_drop": f"{value:.6f}%"}})
    assert recipe.gates.max_drop == pytest.approx(value / 100, abs=1e-12)


WORDS = st.sampled_from([
    "name", "model", "inputs", "axes", "gates", "factory", "path", "batch", "min", "max_drop", "x",
    "dtype", "shape", "float32", "1%", "net.onnx", "../x.py", "{0}", "$HOME", "%s",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats(-2, 2) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_any_data_is_a_recipe_or_an_error_with_place_and_hint(data: dict[str, Any]) -> None:
    try:
        recipe = Recipe.from_dict({"name": "net", **data})
    except RecipeError as error:
        assert error.where and error.hint
        return
    digest_json(recipe.to_json())


@given(
    st.sampled_from(["gates.max_drop", "axes.batch", "model", "x", "inputs.a.b", "gates"]), VALUES
)
def test_any_override_is_a_recipe_or_an_error_that_names_it(key: str, value: Any) -> None:
    setting = f"{key}={json.dumps(value)}"
    try:
        Recipe.from_dict({"name": "net"}).with_overrides([setting])
    except RecipeError as error:
        assert error.where == f"--set {setting}"


@pytest.mark.parametrize("name", shipped.recipe_names())
def test_every_recipe_in_content_loads(name: str) -> None:
    recipe = Recipe.load(places.find_recipe(name))
    assert recipe.name == name
    text = json.dumps(recipe.to_json())
    assert str(shipped.root()) not in text and not re.search(r'"(/|\.\.)', text)


def test_calibration_on_the_command_line_is_data_or_a_source(folder: Path) -> None:
    recipe = load(folder, TEXT.replace("batch: 4}", "batch: 4, args: {depth: 2}}"))
    (folder / "pictures").mkdir()
    for named, source in (
        ("a.jsonl", "text"),
        ("a.npz", "arrays"),
        ("a.npy", "arrays"),
        ("pictures", "images"),
    ):
        found = requested(recipe, Request(calibration=named)).calibration
        assert found is not None and (found.source, found.args) == (source, {"path": named})
        assert (found.samples, found.batch) == (64, 4)
    found = requested(recipe, Request(calibration="digits")).calibration
    assert found is not None and (found.source, found.args) == ("digits", {})
    outside = requested(recipe, Request(calibration="../outside.py:training")).calibration_source
    assert outside is not None and outside.root == "given"
    bare = requested(Recipe.for_model("net.onnx"), Request(calibration="a.txt"))
    assert bare.calibration is not None and bare.calibration.source == "text"
    with pytest.raises(RecipeError) as caught:
        requested(recipe, Request(calibration="digit"))
    assert caught.value.where == "--calibration digit" and "digits" in (caught.value.hint or "")


def test_samples_in_place_of_ranges_are_refused_with_the_right_option(folder: Path) -> None:
    recipe = load(folder, TEXT)
    for named in ("a.npz", str(folder)):
        with pytest.raises(RecipeError, match="these are samples") as caught:
            requested(recipe, Request(ranges=named))
        assert caught.value.where == f"--calib {named}"
        assert caught.value.hint == f"give samples as --calibration {named}"
    (folder / "cache.txt").touch()
    found = requested(recipe, Request(ranges=str(folder / "cache.txt"))).ranges_file
    assert found is not None and found.path == (folder / "cache.txt").resolve()


def test_args_of_the_same_reader_stay_and_their_paths_start_where_they_stand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.sub(r"calibration: .*", "calibration: {source: text, args: {length: 8}}", TEXT)
    recipe = load(folder, text)
    monkeypatch.chdir(folder.parent)
    narrowed = recipe.with_overrides(["calibration.args.field=a"])
    found = requested(narrowed, Request(calibration="b.csv"))
    assert found.calibration is not None
    assert found.calibration.args == {"length": 8, "field": "a", "path": "b.csv"}
    folders = recipe.argument_folders("calibration")
    assert folders == {"length": folder.resolve()} and recipe.argument_folders("eval") == {}


def test_a_task_of_the_command_line_keeps_the_args_of_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "own.py").write_text("")
    monkeypatch.chdir(folder)
    recipe = load(folder, TEXT.replace("eval: {", "eval: {args: {size: 8}, "))
    assert recipe.eval is not None and recipe.eval.args == {"size": 8}
    same = requested(recipe, Request(eval_task=recipe.eval.task)).eval
    other = requested(recipe, Request(eval_task="top1")).eval
    assert same == recipe.eval
    assert other is not None and (other.task, other.args) == ("top1", {})
    assert str(requested(recipe, Request(eval_task="../own.py")).eval_task) == "given:own.py"
    with pytest.raises(RecipeError, match="unknown evaluation task") as caught:
        requested(Recipe.for_model("net.onnx"), Request(eval_task="top2"))
    assert caught.value.where == "--eval top2"


def test_data_for_evaluation_needs_a_task(folder: Path) -> None:
    found = requested(load(folder), Request(eval_data="held.jsonl")).eval
    assert found is not None and found.args == {"path": "held.jsonl"}
    with pytest.raises(RecipeError, match="no task") as caught:
        requested(Recipe.for_model("net.onnx"), Request(eval_data="held.jsonl"))
    assert caught.value.where == "--eval-data held.jsonl"


def test_gates_may_be_others_for_a_target() -> None:
    recipe = Recipe.from_dict(
        {
            "name": "net",
            "gates": {
                "max_drop": "2%", "max_latency_ms": 5.0, "min_value": "95%",
                "targets": {"l4": {"max_latency_ms": 2.0}, "cpu": {"max_latency_ms": None}},
            },
        }
    )  # fmt: skip
    assert [recipe.gates.of(name).max_latency_ms for name in ("h100", "l4", "cpu")] == [5, 2, None]
    assert recipe.gates.of("l4").max_drop == 0.02
    assert recipe.gates.of("l4").min_value == 0.95
    recorded = Recipe.from_dict({"name": "net", "gates": recipe.to_json()["gates"]})
    assert recorded.gates == recipe.gates
    assert recorded.gates.of("l4") == recipe.gates.of("l4")


@pytest.mark.parametrize("text", ["100%", "150%", "1%", "33.3%", "-5%"])
def test_a_recorded_percentage_is_read_again(text: str) -> None:
    gates = {"max_drop": text, "targets": {"l4": {"max_slice_drop": text}}}
    recipe = Recipe.from_dict({"name": "net", "gates": gates})
    recorded = Recipe.from_dict({"name": "net", "gates": recipe.to_json()["gates"]})
    assert recorded.gates == recipe.gates
    for name in ("l4", "cpu"):  # for a target nothing is parsed anew: 1.0 would be refused
        assert recorded.gates.of(name).max_drop == recipe.gates.max_drop
    assert recorded.gates.of("l4").max_slice_drop == recipe.gates.max_drop


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ({"l5": {}}, "did you mean l4"),
        ({"l4": {"max_dop": 0.1}}, "did you mean max_drop"),
        ({"l4": {"targets": {}}}, "unknown key"),
    ],
)
def test_gates_for_a_target_are_checked(targets: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict({"name": "net", "gates": {"targets": targets}})
    assert told in f"{error.value} {error.value.hint}"


def test_every_limit_is_of_accuracy_or_of_an_engine() -> None:
    limits = set(Limits.model_fields) - {"accept"}
    assert limits == {*ACCURACY_LIMITS, *ENGINE_LIMITS}
    assert not {*ACCURACY_LIMITS} & {*ENGINE_LIMITS}
