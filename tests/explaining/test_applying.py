"""A recipe with the changes that findings ask for: what is written, and that it loads again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from optkit.explaining import Change, Cost, Finding, applied
from optkit.explaining.words import line, modules, named
from optkit.recipe import Recipe
from optkit.runtime import Evidence

NODES = ("quantization", "nodes")


def finding(settings: dict[tuple[str, ...], object]) -> Finding:
    cost = Cost(0.5, Evidence.SIMULATED)
    return Finding("clipped", "accuracy", "", "", (), (), cost, Change("", settings))


def test_settings_stand_in_the_recipe_and_the_first_of_two_counts(tmp_path: Path) -> None:
    record = Recipe.from_dict({"name": "net", "quantization": {"nodes": {"*": "int8"}}}).to_json()
    found = [
        finding({("calibration", "method"): "minmax", (*NODES, "a/Gemm"): "fp16"}),
        finding({("calibration", "method"): "mse", (*NODES, "*"): "fp16"}),
    ]
    data, missing = applied({**record, "calibration": {"source": "text"}}, found, tmp_path)
    assert data["calibration"] == {"source": "text", "method": "minmax"}
    # the last pattern that matches a node counts
    assert list(data["quantization"]["nodes"].items()) == [("*", "fp16"), ("a/Gemm", "fp16")]
    assert missing == []


def test_optkits_own_files_are_found_from_the_new_recipe(tmp_path: Path) -> None:
    record = Recipe.load("recipes/digits-vit.yaml").to_json()
    data, missing = applied(record, [finding({(*NODES, "[[]a]/Gemm"): "fp16"})], tmp_path)
    found = Recipe.from_dict(data, tmp_path)
    assert missing == []
    again = found.to_json()
    assert again["quantization"]["nodes"] == {"[[]a]/Gemm": "fp16"}
    assert {**again, "quantization": record["quantization"]} == record


def test_files_of_the_recipes_folder_keep_their_names_and_others_are_given_again(
    tmp_path: Path,
) -> None:
    record = {
        "name": "net",
        "model": {"path": "given:net.onnx", "trust_remote_code": True},
        "calibration": {"source": "recipe:source.py:samples"},
    }
    data, missing = applied(record, [], tmp_path)
    assert data == {"name": "net", "calibration": {"source": "source.py:samples"}}
    assert missing == ["model.path=net.onnx"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("calibration", "method"), "minmax"),
        ((*NODES, 'odd "name": {x}/Gemm'), "fp16"),
        (("quantization", "placement", "residual_adds"), False),
        (("quantization", "placement", "tensor_ops"), ["Conv"]),
        (("calibration", "samples"), 256),
    ],
)
def test_a_line_says_the_setting_in_yaml(path: tuple[str, ...], value: object) -> None:
    found = YAML(typ="safe").load(line(path, value))
    for key in path:
        found = found[key]
    assert found == value


def test_names_in_sentences() -> None:
    assert named(["a"]) == "a" and named(["a", "b"]) == "a and b"
    assert named(["a", "b", "c", "d"]) == "a, b and 2 more"
    assert modules(["blocks.0.mlp/MatMul", "/enc/layer.0/Gemm + x", "MatMul"]) == (
        "blocks.0.mlp", "enc.layer.0",
    )  # fmt: skip
