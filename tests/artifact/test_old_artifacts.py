"""Artifacts and recipes that older versions wrote, kept in `old/`, still load.

The model is a convolution and a product, with 40 samples for its evaluation; a folder has the day
of the commit that built it. There is no engine in those for an L4 (`--defer`). The recipes are
those of their days, with every key that had been added until then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import optkit
from optkit.facts import documents
from optkit.ground.artifact import Artifact
from optkit.ground.recipe import Recipe
from tests.conftest import Optkit
from tests.figures import Figures

OLD = Path(__file__).with_name("old")
ARTIFACTS = sorted(OLD.glob("*/tiny-*"))
FOR_CPU = [folder for folder in ARTIFACTS if "-cpu-" in folder.name]
RECIPES = sorted(OLD.glob("*.yaml"))


def name(path: Path) -> str:
    return path.relative_to(OLD).as_posix()


def test_there_are_artifacts_of_several_days() -> None:
    assert len(FOR_CPU) >= 3 and len(ARTIFACTS) > len(FOR_CPU) and len(RECIPES) >= 3


@pytest.mark.parametrize("folder", ARTIFACTS, ids=name)
def test_its_documents_are_read_and_its_files_verified(folder: Path) -> None:
    artifact = Artifact.load(folder)
    artifact.verify()
    for document, data in (
        ("result", artifact.result),
        ("report", json.loads((folder / "report.json").read_text(encoding="utf-8"))),
    ):
        read = documents.model(document).validate_json(json.dumps(data)).to_json()
        assert {key: read[key] for key in data}.keys() == data.keys()
    assert Recipe.of_record(artifact.manifest.recipe).name == "tiny"


@pytest.mark.parametrize("folder", FOR_CPU, ids=name)
def test_it_runs_and_agrees_with_its_baseline(
    folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a relative path: an artifact of another machine runs in a child first."""
    shutil.copytree(folder, tmp_path / "artifact")
    monkeypatch.chdir(tmp_path)
    feed = {"image": np.random.default_rng(0).random((3, 1, 8, 8), np.float32)}
    (quantized,) = optkit.load("artifact").run(feed).values()
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "baseline" / "model.onnx")
    (expected,) = session.run(None, feed)
    assert quantized.shape == (3, 10)
    assert np.abs(quantized - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("folder", ARTIFACTS, ids=name)
def test_it_is_inspected(folder: Path, optkit_here: Optkit, cache: Path) -> None:
    shown = optkit_here("inspect", folder, "--json", cache=cache)
    assert shown.code == 0, shown.err


@pytest.mark.parametrize("older", FOR_CPU[:-1], ids=name)
def test_it_is_compared_with_a_newer_one(older: Path, optkit_here: Optkit, cache: Path) -> None:
    compared = optkit_here("diff", older, FOR_CPU[-1], "--json", cache=cache)
    assert compared.code == 0, compared.err
    documents.model("diff").validate_json(compared.out)


@pytest.mark.slow
def test_every_command_reads_every_artifact(
    optkit_here: Optkit, tmp_path: Path, cache: Path, figures: Figures
) -> None:
    lines = ("inspect OLD --json", "verify OLD", "explain OLD --json", "diff OLD NEW --json",
             "attest OLD --out OUT", "package OLD --format huggingface --out OUT",
             "finish OLD --json")  # fmt: skip
    tried = 0
    for folder in ARTIFACTS[:: figures.times(3, 1)]:
        for number, line in enumerate(lines):
            old = shutil.copytree(folder, tmp_path / f"{tried}" / folder.name)
            places = {"OLD": old, "NEW": FOR_CPU[-1], "OUT": tmp_path / f"{tried}-{number}"}
            done = optkit_here(*(places.get(word, word) for word in line.split()), cache=cache)
            # 4: its device is not here; 2: this format does not take it
            assert done.code in (0, 2, 4), (line, folder, done.err)
            assert done.code == 0 or "hint:" in done.err, (line, done.err)
            tried += 1
    figures.tell(
        "documents of older versions", tried + len(RECIPES),
        f"{len(ARTIFACTS)} artifacts through 7 commands, {len(RECIPES)} recipes: read, or refused "
        "with a hint",
    )  # fmt: skip


@pytest.mark.parametrize("folder", FOR_CPU[:1], ids=name)
def test_the_oldest_is_packaged(
    folder: Path, tmp_path: Path, optkit_here: Optkit, cache: Path
) -> None:
    done = optkit_here("package", folder, "--format", "oci", "--out", tmp_path, cache=cache)
    assert done.code == 0, done.err


@pytest.mark.parametrize("file", RECIPES, ids=name)
def test_a_recipe_is_read(file: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    for beside in ("model.py", "weights.safetensors"):
        (tmp_path / beside).touch()
    recipe = Recipe.load(shutil.copy(file, tmp_path / "optkit.yaml"))
    assert recipe.name == file.stem.partition("_")[2]
