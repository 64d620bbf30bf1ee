"""Slim copies: artifacts of what serves, which say what was left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optkit.facts.errors import InputRefused, IntegrityError, ToolchainMissing
from optkit.ground.artifact import Artifact, write
from optkit.ground.workspace import Workspace
from optkit.road.packaging.formats import package
from optkit.road.packaging.variants import PackageSubject
from optkit.verbs import api
from tests.packaging import tiny

SERVING = {"empty", "engine.plan", "model.onnx"}


def slimmed(artifact: Artifact, out: Path) -> Artifact:
    document = package(PackageSubject.of(artifact.path, parts=True), "slim", out)
    return Artifact.load(Path(document.folder) / artifact.name)


def test_a_slim_copy_has_what_serves_and_says_what_it_lacks(tmp_path: Path) -> None:
    whole = tiny.artifact(tmp_path / "artifacts")
    slim = slimmed(whole, tmp_path / "packages")
    slim.verify()
    assert set(slim.manifest.files) == SERVING
    assert {path.name for path in slim.path.iterdir()} == {*SERVING, "manifest.json"}
    assert set(slim.manifest.omitted) == set(whole.manifest.files) - SERVING
    for name, file in slim.manifest.omitted.items():
        assert file == whole.manifest.files[name]
    assert (slim.digest, slim.result) == (whole.digest, whole.result)
    for name in SERVING:
        assert (slim.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_damaged_artifact_is_not_packaged(tmp_path: Path) -> None:
    made = tiny.artifact(tmp_path / "artifacts")
    (made.path / "model.onnx").write_bytes(b"changed")
    with pytest.raises(IntegrityError, match=r"model\.onnx was changed"):
        PackageSubject.of(made.path)


def test_a_slim_copy_of_a_slim_copy_is_the_same(tmp_path: Path) -> None:
    once = slimmed(tiny.artifact(tmp_path / "artifacts"), tmp_path / "a")
    twice = slimmed(once, tmp_path / "b")
    assert twice.manifest == once.manifest


def test_an_artifact_of_an_older_version_is_made_slim(tmp_path: Path) -> None:
    older = Path(__file__).parents[1] / "artifact" / "older" / "v1-without-roles"
    slim = slimmed(Artifact.load(older), tmp_path)
    slim.verify()
    assert set(slim.manifest.files) == SERVING
    assert "simulation.onnx" in slim.manifest.omitted


def test_a_slim_copy_for_this_cpu_runs(tmp_path: Path) -> None:
    content = {name: data for name, data in tiny.files().items() if name != "engine.plan"}
    whole = tiny.artifact(tmp_path / "artifacts", "cpu", "fp32", content)
    with slimmed(whole, tmp_path / "packages").session() as session:
        x = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + 1)


def test_without_its_device_a_slim_copy_says_what_is_missing(tmp_path: Path) -> None:
    content = {**tiny.files(), "simulation.onnx": tiny.graph(3.0)}
    whole = tiny.artifact(tmp_path / "artifacts", content=content)
    with whole.session() as session:
        assert "simulation.onnx runs" in str(session.note)
    with pytest.raises(ToolchainMissing, match=r"slim copy has no simulation\.onnx"):
        slimmed(whole, tmp_path / "packages").session()


@pytest.mark.parametrize("use", ["finish", "explain", "diff"])
def test_what_needs_the_proofs_names_the_missing_file(use: str, tmp_path: Path) -> None:
    slim = slimmed(tiny.artifact(tmp_path / "artifacts"), tmp_path / "packages")
    store = Workspace(tmp_path / "store")
    with pytest.raises(InputRefused, match=r"a slim copy, without report\.json") as told:
        if use == "finish":
            api.finish(slim.path, workspace=store)
        elif use == "explain":
            api.explain(slim.path, workspace=store)
        else:
            api.diff(slim.path, slim.path, workspace=store)
    assert "the whole artifact" in str(told.value.hint)


def test_a_fleet_becomes_one_package_which_other_formats_take(tmp_path: Path) -> None:
    variants = [
        PackageSubject.of(tiny.artifact(tmp_path / "artifacts", target, precision).path).variants[0]
        for target, precision in (("l4", "int8"), ("l4", "fp8"), ("cpu", "int8"))
    ]
    document = package(PackageSubject("net", tuple(variants)), "slim", tmp_path / "packages")
    again = PackageSubject.of(Path(document.folder))
    assert {one.artifact.digest for one in again.variants} == {
        one.artifact.digest for one in variants
    }
    oci = package(
        PackageSubject.of(Path(document.folder), precision="int8"), "oci", tmp_path / "oci"
    )
    assert len(oci.variants) == 2


def test_an_artifact_of_two_graphs_is_made_slim(tmp_path: Path) -> None:
    parts = {part: tiny.artifact(tmp_path / part) for part in ("encoder", "decoder")}
    files = {
        f"{part}/{name}": artifact.path / name
        for part, artifact in parts.items()
        for name in (*artifact.manifest.files, "manifest.json")
    }
    manifest = replace(
        parts["encoder"].manifest, name="whole", engine=None, files={},
        parts={part: artifact.digest for part, artifact in parts.items()},
    )  # fmt: skip
    slim = slimmed(write(tmp_path / "artifacts", manifest, files), tmp_path / "packages")
    slim.verify()
    for part in slim.parts.values():
        part.verify()
        assert set(part.manifest.files) == SERVING
    named = json.loads((slim.path / "manifest.json").read_text())
    assert "decoder/baseline/model.onnx" in named["omitted"]
