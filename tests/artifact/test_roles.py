"""What serves and what proves, and artifacts of older versions, which do not say it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from optkit.facts.errors import IntegrityError
from optkit.ground.artifact import SAMPLES, Artifact, share
from optkit.ground.artifact.roles import role_of
from tests.packaging import tiny

OLDER = Path(__file__).parent / "older" / "v1-without-roles"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.onnx", "serves"),
        ("model.onnx.data", "serves"),
        ("tensorrt-rtx.engine", "serves"),
        ("tokenizer.json", "serves"),
        ("genai_config.json", "serves"),
        ("baseline/model.onnx", "proves"),
        ("simulation.onnx.data", "proves"),
        ("eval.safetensors", "proves"),
        ("report.html", "proves"),
        ("recipe.yaml", "proves"),
        ("encoder/model.onnx", "serves"),
        ("encoder/manifest.json", "serves"),
        ("decoder/baseline/model.onnx", "proves"),
        ("other/baseline/model.onnx", "serves"),
    ],
)
def test_a_file_serves_or_proves(name: str, role: str) -> None:
    assert role_of(name, ("encoder", "decoder")) == role


def test_the_manifest_says_the_role_of_each_file(tmp_path: Path) -> None:
    artifact = Artifact.load(tiny.artifact(tmp_path).path)
    roles = {name: file.role for name, file in artifact.manifest.files.items()}
    assert roles == {name: role_of(name) for name in roles}
    assert artifact.manifest.serving == ["empty", "engine.plan", "model.onnx"]


def test_an_artifact_of_an_older_version_loads_and_runs() -> None:
    artifact = Artifact.load(OLDER)
    artifact.verify()
    assert {file.role for file in artifact.manifest.files.values()} == {None}
    assert artifact.manifest.serving == ["empty", "engine.plan", "model.onnx"]
    assert artifact.baseline_path == OLDER / "baseline"
    with artifact.session() as session:
        x = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + 3)  # its simulation


def test_a_role_that_is_none_is_refused(tmp_path: Path) -> None:
    path = shutil.copytree(OLDER, tmp_path / "net-l4-int8")
    manifest = Artifact.load(path).manifest
    data = manifest.to_json()
    data["files"]["empty"]["role"] = "decorates"
    body = {key: value for key, value in data.items() if key != "check"}
    from optkit.ground.store import digest_json

    with pytest.raises(IntegrityError, match="fields are missing or wrong"):
        type(manifest).of({**body, "check": digest_json(body)}, "here")


def test_equal_samples_of_several_artifacts_are_one_file(tmp_path: Path) -> None:
    content = {**tiny.files(), SAMPLES: b"samples"}
    other = {**content, SAMPLES: b"other samples"}
    artifacts = [
        tiny.artifact(tmp_path, target, content=files)
        for target, files in (("l4", content), ("a10", content), ("t4", other))
    ]
    share(artifacts)
    first, second, third = ((each.path / SAMPLES).stat().st_ino for each in artifacts)
    assert first == second != third
    for artifact in artifacts:
        artifact.verify()
