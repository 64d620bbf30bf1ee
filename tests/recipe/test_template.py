"""The recipe that `optkit init` writes without running code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optkit.facts.errors import InputRefused, RecipeError, UsageError
from optkit.facts.request import Request
from optkit.ground.recipe import Recipe, requested
from optkit.ground.recipe.template import RecipeTemplate, template

NET = """
from torch import nn

class Other(nn.Module):
    def forward(self, wrong): ...

class Encoder(nn.Module):
    def forward(self, input_ids, attention_mask, *, pixels, labels=None, **rest): ...

def create(width=4):
    net = Encoder()
    return net

def chained():
    return Encoder().eval().half()

def loaded():
    net: Encoder = Encoder()
    net.load_state_dict({})
    net = net.eval()
    return net.half()

def annotated() -> "Encoder":
    return read("net.pt")
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "net.py").write_text(NET)
    (tmp_path / "src" / "maker.py").write_text(
        "from net import Encoder as E\n\ndef create():\n    return E()\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(started: RecipeTemplate, path: Path) -> Recipe:
    path.parent.mkdir(exist_ok=True)
    path.write_text(started.text)
    return Recipe.load(path)


@pytest.mark.parametrize(
    ("line", "side"),
    [
        ("from ultralytics import YOLO", 640),
        ("from ultralytics.nn.tasks import DetectionModel", 640),
        ("import os, segmentation_models_pytorch as smp", 512),
        ("import os", 224),
    ],
)
def test_pictures_have_the_usual_size_of_the_imported_package(
    line: str, side: int, project: Path
) -> None:
    (project / "model.py").write_text(f"{line}\n\n\ndef create(): ...\n")
    recipe = loaded(template("model.py:create", Path("optkit.yaml")), project / "optkit.yaml")
    assert recipe.inputs["input"].shape == ("batch", 3, side, side)


@pytest.mark.parametrize(
    "model",
    ["src/net.py:create", "src/net.py:chained", "src/net.py:loaded", "src/net.py:annotated",
     "src/net.py:Encoder", "src/maker.py:create"],
)  # fmt: skip
def test_inputs_are_what_forward_requires(model: str, project: Path) -> None:
    recipe = loaded(template(model, Path("optkit.yaml")), project / "optkit.yaml")
    assert list(recipe.inputs) == ["input_ids", "attention_mask", "pixels"]
    assert recipe.inputs["input_ids"].dtype == recipe.inputs["attention_mask"].dtype == "int64"
    assert recipe.inputs["pixels"].dtype == "float32"
    assert recipe.axes["sequence"].max == 512
    started = template(model, Path("optkit.yaml"))
    assert "forward also takes labels" in started.text
    assert "# a guess: dtype and shape\n" in started.text


def test_what_is_guessed_is_said_in_the_recipe_and_in_the_next_step(project: Path) -> None:
    (project / "model.py").write_text("def create():\n    return load()\n")
    started = template("model.py:create", Path("optkit.yaml"))
    assert "  # a guess: name, dtype and shape\n  input: " in started.text
    assert "check its inputs, whose name, dtype and shape are guessed" in started.then
    np.savez(project / "c.npz", image=np.zeros((2, 3), np.float32))
    read = template("model.py:create", Path("optkit.yaml"), calibration="c.npz")
    assert "guessed" not in read.text + read.then


def test_a_recipe_in_a_folder_of_its_own_finds_everything(project: Path) -> None:
    (project / "recipes").mkdir()
    for file in ("weights.safetensors", "corpus.txt"):
        (project / file).touch()
    (project / "task.py").touch()
    out = Path("recipes/mine.yaml")
    started = template("src/net.py:create", out, weights="weights.safetensors",
                       calibration="corpus.txt", evaluation="task.py")  # fmt: skip
    recipe = loaded(started, project / out)
    assert recipe.source is not None and recipe.source.weights is not None
    assert recipe.source.weights.path == project / "weights.safetensors"
    assert recipe.calibration is not None and recipe.calibration.source == "text"
    assert recipe.calibration.args == {"path": "../corpus.txt"}
    assert recipe.eval_task is not None and recipe.eval_task.path == project / "task.py"
    assert started.then == (
        "check its inputs, whose dtype and shape are guessed, then: "
        "optkit build --recipe recipes/mine.yaml --target l4 "
        "--precision int8"
    )


def test_weights_beside_the_code_are_taken_where_they_are_the_only_ones(project: Path) -> None:
    def started() -> RecipeTemplate:
        return template("src/net.py:create", Path("optkit.yaml"))

    alone = started()
    assert "give model.weights" in alone.then and "else they are random" in alone.then
    (project / "src" / "best.pt").touch()
    assert "torch.load('src/best.pt'" in started().text and "give model.weights" in started().then
    (project / "src" / "one.safetensors").touch()
    recipe = loaded(started(), project / "optkit.yaml")
    assert recipe.model is not None and recipe.model.weights == "src/one.safetensors"
    assert started().then.startswith(
        "check its inputs, whose dtype and shape are guessed, then: optkit build --target l4"
    )
    (project / "src" / "two.safetensors").touch()
    assert "choose one of src/one.safetensors, src/two.safetensors" in started().text
    assert "give model.weights" in started().then


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        ("src/gone.py:create", {}, "no such file"),
        ("src/net.py", {}, "names no function"),
        ("net:create", {}, "may not name an installed module"),
        ("run.pt", {}, "there is no file 'run.pt'"),
        ("src/net.py:create", {"weights": "run.pt"}, "pickles are never loaded"),
        ("src/net.py:create", {"calibration": "digit"}, "unknown calibration source 'digit'"),
        ("src/net.py:create", {"evaluation": "top2"}, "unknown evaluation task 'top2'"),
        ("net.onnx", {"weights": "w.safetensors"}, "needs a Python factory"),
    ],
)
def test_what_no_recipe_may_say_is_refused(
    model: str, options: dict[str, str], told: str, project: Path
) -> None:
    with pytest.raises((RecipeError, UsageError), match=told) as caught:
        template(model, Path("optkit.yaml"), **options)
    assert caught.value.hint


def test_arrays_say_what_a_python_model_takes(project: Path) -> None:
    tokens = np.arange(12, dtype=np.int64).reshape(3, 4)
    np.savez("data.npz", input_ids=tokens, attention_mask=tokens > 3, pixels=tokens / 2, extra=1)
    out = Path("optkit.yaml")
    recipe = loaded(template("src/net.py:create", out, calibration="data.npz"), out)
    assert {name: (part.dtype, part.shape) for name, part in recipe.inputs.items()} == {
        "input_ids": ("int64", ("batch", 4)),
        "attention_mask": ("bool", ("batch", 4)),
        "pixels": ("float32", ("batch", 4)),
    }
    assert list(recipe.axes) == ["batch"]


def test_without_the_text_of_forward_all_arrays_are_inputs(project: Path) -> None:
    Path("src/package.py").write_text("from torch.nn import Linear\n\ncreate = Linear\n")
    np.savez("data.npz", b=np.zeros((3, 5), np.float32), a=np.zeros((3, 2), np.float32))
    out = Path("optkit.yaml")
    started = template("src/package.py:create", out, calibration="data.npz")
    assert list(loaded(started, out).inputs) == ["b", "a"]


def test_what_slow_code_depends_on_has_a_line_where_there_is_code(project: Path) -> None:
    for name in ("source.py", "task.py", "corpus.txt", "calibration.py", "net.onnx"):
        (project / name).touch()
    out = Path("optkit.yaml")
    text = template("src/net.py:create", out, calibration="source.py", evaluation="task.py").text
    assert text.count("  # depends: ") == 3
    recipe = loaded(RecipeTemplate(text.replace("  # depends: ", "  depends: "), ""), out)
    assert recipe.model is not None and recipe.calibration is not None and recipe.eval is not None
    for section in (recipe.model, recipe.calibration, recipe.eval):
        assert section.depends == ("data", "$NAME")
    read = template("src/net.py:create", out, calibration="corpus.txt", evaluation="top1").text
    assert read.count("depends: ") == 1
    suggested = template("net.onnx", out).text.replace("# calibration:", "calibration:")
    suggested = suggested.replace("#   source", "  source")
    suggested = suggested.replace("#   depends", "  depends", 1)
    assert suggested.count("depends: ") == 2
    recipe = loaded(RecipeTemplate(suggested, ""), out)
    assert recipe.calibration is not None and recipe.calibration.depends == ("data", "$NAME")


def test_an_npy_has_the_name_of_the_one_argument_that_forward_requires(project: Path) -> None:
    code = (
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, {}):\n        ...\n"
    )
    np.save("data.npy", np.zeros((5, 3)))
    out = Path("optkit.yaml")
    for named, wanted in (("pixels, scale=1", "pixels"), ("*given", "input")):
        Path("src/one.py").write_text(code.format(named))
        recipe = loaded(template("src/one.py:Net", out, calibration="data.npy"), out)
        assert {name: part.shape for name, part in recipe.inputs.items()} == {wanted: ("batch", 3)}
        asked = requested(Recipe.for_model("src/one.py:Net"), Request(calibration="data.npy"))
        assert list(asked.inputs) == [wanted]
    Path("src/one.py").write_text(code.format("left, right"))
    for refused in (
        lambda: template("src/one.py:Net", out, calibration="data.npy"),
        lambda: requested(Recipe.for_model("src/one.py:Net"), Request(calibration="data.npy")),
    ):
        with pytest.raises(InputRefused, match="'left', 'right'") as caught:
            refused()
        assert "give an .npz" in str(caught.value.hint)
