"""examples/03_hf_encoder: a clean split, what is committed, and the road from training to INT8."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from optkit.ground import user_code
from optkit.ground.recipe import Recipe
from tests.conftest import Optkit

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "03_hf_encoder"
FUNCTIONS = user_code.load_module(EXAMPLE / "functions.py")


def rows(name: str) -> list[dict[str, str]]:
    lines = (EXAMPLE / "data" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("get_name", "get"), ("_getName", "get"), ("getter", None), ("__get__", None),
        ("__init__", "create"), ("init", None), ("is_file", "check"), ("island", None),
        ("__str__", "show"), ("has_key", "check"), ("HTTP", None), ("_", None),
    ],
)  # fmt: skip
def test_a_verb_is_a_names_first_word(name: str, verb: str | None) -> None:
    assert FUNCTIONS.verb(name) == verb


def test_recipe_and_config_name_the_verbs_in_one_order() -> None:
    recipe = Recipe.load(EXAMPLE / "optkit.yaml")
    assert recipe.eval is not None and recipe.gates.max_drop == 0.01
    config = json.loads((EXAMPLE / "model" / "config.json").read_text())
    named = [config["id2label"][str(index)] for index in range(len(FUNCTIONS.VERBS))]
    assert recipe.eval.args["classes"] == named == list(FUNCTIONS.VERBS)


def test_committed_functions_hide_their_names_and_are_apart() -> None:
    training, held_out = rows("training.jsonl"), rows("held-out.jsonl")
    assert len(training) > 150 and len(held_out) > 500
    assert not {row["text"] for row in training} & {row["text"] for row in held_out}
    for row in training + held_out:
        assert row["label"] in FUNCTIONS.VERBS
        assert row["text"].startswith(("def [MASK]", "async def [MASK]"))


def test_committed_weights_are_small_and_know_what_functions_do() -> None:
    weights = load_file(EXAMPLE / "model" / "model.safetensors")
    assert {str(array.dtype) for array in weights.values()} == {"float16"}
    assert (EXAMPLE / "model" / "model.safetensors").stat().st_size < 2_000_000

    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE / "model")
    model = AutoModelForSequenceClassification.from_pretrained(EXAMPLE / "model").float().eval()
    chosen = rows("held-out.jsonl")
    texts, verbs = zip(*((row["text"], row["label"]) for row in chosen), strict=True)
    inputs = tokenizer(list(texts), truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs).logits.argmax(dim=1).tolist()
    right = sum(
        model.config.id2label[index] == verb for index, verb in zip(found, verbs, strict=True)
    )
    assert right / len(verbs) >= 0.7
    assert max(map(verbs.count, FUNCTIONS.VERBS)) / len(verbs) < 0.55


@pytest.mark.slow
def test_whole_modules_are_held_out() -> None:
    training, held_out = FUNCTIONS.split()
    assert not {f.module for f in training} & {f.module for f in held_out}
    texts = [f.text for f in training + held_out]
    assert len(set(texts)) == len(texts)
    assert 0.1 < len(held_out) / len(texts) < 0.4


@pytest.mark.slow
def test_it_trains_and_goes_to_int8(tmp_path: Path, optkit_apart: Optkit) -> None:
    shutil.copy(EXAMPLE / "optkit.yaml", tmp_path)
    trained = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "held-out accuracy: 0." in trained.stdout
    built = optkit_apart(
        "build", tmp_path, "--precision", "int8", "--target", "cpu", "--json",
        "--out", tmp_path / "out", "--set", "bench.seconds=0.1", cache=tmp_path / "cache",
    )  # fmt: skip
    assert built.code == 0, built.err
    assert built.result["gate"]["verdict"] in ("pass", "inconclusive")
    assert built.result["accuracy"]["metric"] == "top1"
    assert built.result["drop"]["ci95"] is not None
    assert built.result["drop"]["evidence"] == "measured"
    artifact = Path(built.result["artifact"])
    assert {"tokenizer.json", "config.json"} <= {file.name for file in artifact.iterdir()}
