"""Names of files that are not UTF-8: refused with the name before anything hashes it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import optkit
from optkit.facts.errors import InputRefused, OptkitError, RecipeError, UnsafeFile, UsageError
from optkit.ground.artifact import prepare
from optkit.ground.data import folders, reading
from optkit.ground.intake import stage_folder
from optkit.ground.recipe import Recipe
from optkit.verbs import api
from tests.hostile import onnx_files

BAD = "m\udcff"  # what Python makes of the byte 0xFF


def _weights(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_python_files_of_a_hugging_face_folder(folder: Path, tmp_path: Path) -> None:
    _weights(folder / "model.safetensors")
    (folder / f"{BAD}.py").touch()
    stage_folder(folder, tmp_path / "store" / "objects")  # the code may not run: it is not taken
    with pytest.raises(UnsafeFile, match="is not UTF-8"):
        stage_folder(folder, tmp_path / "store" / "objects", code=True)


def test_weights_that_an_index_names(folder: Path, tmp_path: Path) -> None:
    name = f"{BAD}.safetensors"
    _weights(folder / name)
    index = {"weight_map": {"w": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsafeFile, match="is not UTF-8"):
        stage_folder(folder, tmp_path / "store" / "objects")


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"model": {"path": f"{BAD}.onnx"}}, "model.path"),
        ({"calibration": {"source": f"{BAD}.txt"}}, "calibration.source"),
        ({"calibration": {"source": "text", "args": {"path": f"{BAD}.txt"}}},
         "calibration.args.path"),
        ({"eval": {"task": "top1", "args": {"classes": ["a", BAD]}}}, "eval.args.classes.1"),
        ({"inputs": {BAD: {"dtype": "float32", "shape": [1]}}}, "inputs"),
    ],
    ids=str,
)  # fmt: skip
def test_texts_of_a_recipe(data: dict[str, object], key: str) -> None:
    with pytest.raises(RecipeError, match="is not UTF-8") as caught:
        Recipe.from_dict({"name": "n", **data})
    assert key in str(caught.value)


def test_the_folder_of_a_project(tmp_path: Path) -> None:
    place = tmp_path / BAD
    place.mkdir()
    with pytest.raises(RecipeError, match="is not UTF-8"):
        Recipe.from_dict({"name": "n"}, base=place)


def _picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)


def test_the_folder_of_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not UTF-8"):
        prepare(tmp_path / BAD, "net")
    assert not (tmp_path / BAD).exists()


def test_artifacts_and_graphs_that_are_opened_or_compared(tmp_path: Path, cache: Path) -> None:
    place = tmp_path / BAD
    place.mkdir()
    with pytest.raises(InputRefused, match="is not UTF-8"):
        optkit.load(place)
    graph = onnx_files.save(onnx_files.plain_model(), place)
    with pytest.raises(UsageError, match="is not UTF-8"):
        api.diff(graph, graph)


@pytest.mark.parametrize("name", [f"{BAD}.png", f"{BAD}/a.png"])
def test_pictures_and_their_classes(name: str, tmp_path: Path) -> None:
    _picture(tmp_path / "cat" / "a.png")
    _picture(tmp_path / name)
    with pytest.raises(InputRefused, match="is not UTF-8"):
        folders.spread(tmp_path, "images", reading.PICTURES, "pictures")


def test_a_model_of_such_a_name_can_still_be_inspected(tmp_path: Path) -> None:
    path = onnx_files.save(onnx_files.plain_model(), tmp_path).rename(tmp_path / f"{BAD}.onnx")
    assert api.inspect(path).graph is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda path: api.build(path, target="cpu", precision="fp32"),
        lambda path: api.bench(path, target="cpu", precision="fp32"),
    ],
)
def test_a_model_of_such_a_name_is_refused(
    call: Callable[[Path], object], tmp_path: Path, cache: Path
) -> None:
    path = onnx_files.save(onnx_files.plain_model(), tmp_path).rename(tmp_path / f"{BAD}.onnx")
    with pytest.raises(OptkitError, match="is not UTF-8") as caught:
        call(path)
    assert caught.value.exit_code in (2, 5)
