"""examples/02_tiny_llama: a clean split, and the road from training to text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optkit.ground import user_code
from optkit.ground.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "02_tiny_llama"
OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")


@pytest.mark.slow
def test_training_and_held_out_modules_are_apart() -> None:
    corpus = user_code.load_module(EXAMPLE / "corpus.py")
    names = corpus.modules()
    assert len(names) > 150 and names == sorted(set(names))
    assert not {"test", "idlelib", "encodings"} & set(names)
    training, held_out = set(corpus.training()), list(corpus.held_out())
    shared = {text for text in held_out if text in training and len(text) > 100}
    assert not shared
    total = sum(map(len, training)) + sum(map(len, held_out))
    assert 0.05 < sum(map(len, held_out)) / total < 0.2


def test_without_training_the_error_says_what_to_run(tmp_path: Path) -> None:
    for name in ("optkit.yaml", "train.py"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    done = optkit("build", tmp_path, "--target", "cpu", "--json", "--out", tmp_path / "out")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "recipe")
    assert "model" in error["message"] and "train.py" in error["hint"]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_it_trains_builds_and_writes(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "optkit.yaml", tmp_path / "optkit.yaml")
    trained = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "held-out perplexity" in trained.stdout
    recipe = Recipe.load(tmp_path / "optkit.yaml")
    assert recipe.name == "tiny-llama" and recipe.eval is not None

    place = ("--out", tmp_path / "out", "--cache", tmp_path / "cache")
    samples = ("--set", "calibration.samples=16", "--set", "gates.max_drop=100%")
    built = optkit(
        "build", tmp_path, "--precision", "int4", "--target", "cpu", "--json", *samples, *place
    )
    assert built.returncode == 0, built.stderr
    result = json.loads(built.stdout)
    assert result["accuracy"]["metric"] == "perplexity"
    assert result["accuracy"]["value"] > 1 and result["drop"]["ci95"] is not None

    written = optkit(
        "generate", result["artifact"], "--prompt", "import os", "--max-new-tokens", "8", "--json"
    )
    assert written.returncode == 0, written.stderr
    (text,) = json.loads(written.stdout)["texts"]
    assert len(text["tokens"]) == 8 or text["finish_reason"] == "stop"
    assert (Path(result["artifact"]) / "genai_config.json").exists()


def optkit(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OPTKIT, *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
