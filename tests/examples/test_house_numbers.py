"""The example that INT8 makes faster: its pictures, its split, its weights."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from optkit.craft.sources import model_factory
from optkit.ground import places, user_code
from optkit.ground.recipe import Recipe

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "04_house_numbers"
WEIGHTS = FOLDER / "weights.safetensors"
SCENES, SAMPLES, TASK = (
    user_code.load_module(FOLDER / f"{name}.py") for name in ("scenes", "samples", "task")
)


def test_the_recipe_finds_its_parts_and_is_tuned_for_a_full_device() -> None:
    recipe = Recipe.load(places.find_recipe("house-numbers"))
    assert recipe.source is not None and recipe.source.weights is not None
    assert recipe.source.weights.path == WEIGHTS
    assert recipe.axis_ranges()["batch"].opt == 32


def test_a_seed_gives_the_same_pictures_and_another_gives_others() -> None:
    images, _ = SCENES.digits(0)
    first, again, other = (SCENES.draw(images[:4], seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (4, 3, 96, 96) and first.dtype == np.float32
    assert first.min() >= 0 and first.max() <= 1 and np.abs(first - other).mean() > 0.05


def test_training_and_held_out_digits_differ() -> None:
    (training, _), (held_out, labels) = SCENES.digits(0), SCENES.digits(1)
    assert (len(training), len(held_out)) == (899, 898)
    assert not {one.tobytes() for one in training} & {one.tobytes() for one in held_out}
    assert set(labels) == set(range(10))


def test_samples_are_of_the_training_half_and_the_task_draws_the_other() -> None:
    assert sum(len(feed["image"]) for feed in SAMPLES.samples()) == 256
    feed, labels = next(TASK.samples())
    assert len(feed["image"]) == len(labels) == 32
    np.testing.assert_array_equal(labels, SCENES.digits(1)[1][:32])


@pytest.mark.slow
def test_the_weights_are_small_and_read_held_out_pictures() -> None:
    floats = {str(a.dtype) for a in load_file(WEIGHTS).values() if a.dtype.kind == "f"}
    assert WEIGHTS.stat().st_size < 2_000_000 and floats == {"float16"}
    module = model_factory.load(f"{FOLDER / 'model.py'}:create", {}, WEIGHTS).eval()
    right = []
    with torch.no_grad():
        for number, (feed, labels) in enumerate(TASK.samples()):
            if number < 3:
                logits = module(torch.from_numpy(feed["image"])).numpy()
                right.append(TASK.score({"output": logits}, labels))
    assert np.concatenate(right).mean() >= 0.9


@pytest.mark.slow
def test_quick_training_runs_and_keeps_the_weights() -> None:
    before = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    done = subprocess.run(
        [sys.executable, str(FOLDER / "train.py"), "--quick"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "held-out top-1: 0." in done.stdout
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == before
