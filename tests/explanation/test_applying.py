"""A recipe with the changes that findings ask for: what is written, and that it loads again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from optkit.facts.documents.explanation import ExplainFinding, FindingCost
from optkit.facts.evidence import Evidence
from optkit.ground.recipe import Recipe
from optkit.show.explanation import applied
from optkit.show.explanation.words import advice, line, modules, named

NODES = ("quantization", "nodes")


def finding(settings: dict[tuple[str, ...], object]) -> ExplainFinding:
    cost = FindingCost(0.5, "noise", Evidence.SIMULATED)
    return ExplainFinding("clipped", "accuracy", "", "", (), (), cost, advice("", settings))


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


def test_what_is_null_on_purpose_stays(tmp_path: Path) -> None:
    gates = {"max_drop": None, "targets": {"cpu": {"max_drop": None}, "l4": {"max_drop": "1%"}}}
    record = Recipe.from_dict({"name": "net", "gates": gates}).to_json()
    model = {"factory": "recipe:net.py:create", "args": {"bias": None}}
    data, _ = applied({**record, "model": model}, [], tmp_path)
    assert data["model"] == {"factory": "net.py:create", "args": {"bias": None}}
    del data["model"]
    limits = Recipe.from_dict(data).gates
    assert limits.max_drop is None
    assert limits.of("cpu").max_drop is None and limits.of("l4").max_drop == 0.01


def test_what_the_command_line_gave_is_reported_with_all_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def samples(): ...")
    given = Recipe.from_dict({"name": "net"}, tmp_path).with_overrides(
        [f"calibration.source={tmp_path / 'mine.py'}", "calibration.samples=64"]
    )
    data, missing = applied(
        given.to_json(), [finding({("calibration", "method"): "mse"})], tmp_path
    )
    assert missing == [
        "calibration.source=mine.py:samples", "calibration.samples=64", "calibration.method=mse",
    ]  # fmt: skip
    Recipe.from_dict(data, tmp_path)
    missing[0] = missing[0].replace("=", f"={tmp_path}/")
    again = Recipe.from_dict(data, tmp_path).with_overrides(missing)
    assert again.calibration is not None
    assert (again.calibration.samples, again.calibration.method) == (64, "mse")


def test_given_weights_leave_their_factory_and_a_module_goes_with_its_arguments(
    tmp_path: Path,
) -> None:
    weights = {
        "factory": "recipe:net.py:create",
        "weights": "given:w.safetensors",
        "args": {"n": 2},
    }
    data, missing = applied({"name": "net", "model": weights}, [], tmp_path)
    assert data["model"] == {"factory": "net.py:create", "args": {"n": 2}}
    assert missing == ["model.weights=w.safetensors"]
    module = {"factory": "package.nets:create", "path": None, "args": {"n": 2}}
    data, missing = applied({"name": "net", "model": module}, [], tmp_path)
    assert "model" not in data
    assert missing == ["model.factory=package.nets:create", 'model.args={"n": 2}']


def test_data_of_another_folder_is_given_again(tmp_path: Path) -> None:
    (tmp_path / "held-out.txt").write_text("text")
    record = {
        "name": "net",
        "calibration": {"source": "content:calibration/text.py", "args": {"path": "far/a.txt"}},
        "eval": {"task": "content:eval/perplexity.py", "args": {"path": "held-out.txt"}},
    }
    data, missing = applied(record, [], tmp_path)
    assert missing == ["calibration.args.path=far/a.txt"]
    assert data["calibration"]["args"] == {} and data["eval"]["args"] == {"path": "held-out.txt"}


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
