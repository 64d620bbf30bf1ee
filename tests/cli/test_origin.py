"""What the user's file says about its model is in every file that optkit makes of it, as the
programs that wrote it read it back."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from tests.cli.test_quantized_products import THIN, project

Optkit = Callable[..., Any]

NAMES = {0: "cat", 1: "dog"}


@pytest.fixture
def told(tmp_path: Path) -> Path:
    folder = project(tmp_path / "told", THIN, [3, 8, 8], w_1=(3, 3, 3, 3), w_2=(2, 3, 1, 1))
    model = onnx.load(folder / "model.onnx")
    onnx.helper.set_model_props(model, {"names": str(NAMES), "stride": "32", "task": "detect"})
    model.doc_string, model.model_version, model.domain = "my detector", 7, "org.example"
    model.graph.doc_string = "two convolutions"
    onnx.save(model, folder / "model.onnx")
    return folder


def check(file: Path) -> None:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta()
    metadata = facts.custom_metadata_map
    assert ast.literal_eval(metadata["names"]) == NAMES, file
    assert int(ast.literal_eval(metadata["stride"])) == 32 and metadata["task"] == "detect"
    assert (facts.description, facts.version, facts.domain) == ("my detector", 7, "org.example")
    assert facts.graph_description == "two convolutions"
    assert [one.name for one in (*session.get_inputs(), *session.get_outputs())] == ["x", "y"]


@pytest.mark.parametrize("asked", [("export",), ("fuse",), ("quantize", "-t", "l4", "-p", "int8")])
def test_a_stage_keeps_what_the_file_says(
    asked: tuple[str, ...], told: Path, store: Path, optkit_here: Optkit
) -> None:
    done = optkit_here(*asked, "-o", "out", cwd=told, cache=store)
    assert done.code == 0, done.err
    files = sorted((told / "out").rglob("*.onnx"))
    assert len(files) == (2 if "l4" in asked else 1)
    for file in files:
        check(file)


def test_another_date_in_the_file_changes_no_step_behind_the_export(
    told: Path, store: Path, optkit_here: Optkit
) -> None:
    digests = []
    for date in ("2026-11-28", "2026-11-29"):
        model = onnx.load(told / "model.onnx")
        onnx.helper.set_model_props(model, {"names": str(NAMES), "date": date})
        onnx.save(model, told / "model.onnx")
        assert optkit_here("fuse", "-o", date, cwd=told, cache=store).code == 0
        found = onnx.load(told / date / "model.onnx").metadata_props
        about = {one.key: one.value for one in found}
        assert about["date"] == date
        digests.append(about["optkit.build.digest"])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_an_artifact_keeps_what_the_file_says(told: Path, store: Path, optkit_here: Optkit) -> None:
    done = optkit_here("build", "-t", "cpu", "-p", "int8", "--json", cwd=told, cache=store)
    assert done.code == 0, done.err
    artifact = told / json.loads(done.out)["artifact"]
    files = sorted(artifact.rglob("*.onnx"))
    assert len(files) == 2  # with the baseline
    for file in files:
        check(file)
