"""The examples are what they say: trained weights, a clean split, recipes that find them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from optkit.craft.sources import model_factory
from optkit.ground import places, user_code
from optkit.ground.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = user_code.load_module(ROOT / "calibration" / "digits.py")
TASK = user_code.load_module(ROOT / "eval" / "digits_top1.py")
EXAMPLES = {"digits-vit": ("00_digits_vit", 8), "digits-cnn": ("01_digits_cnn", 32)}


@pytest.fixture(params=EXAMPLES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return Recipe.load(places.find_recipe(request.param))


def test_recipe_names_the_example_its_samples_and_its_task(recipe: Recipe) -> None:
    folder, size = EXAMPLES[recipe.name]
    source = recipe.source
    assert source is not None and source.place is not None and source.weights is not None
    assert source.place.path == ROOT / "examples" / folder / "model.py"
    assert recipe.inputs["image"].shape == ("batch", 1, size, size)
    assert recipe.calibration_source is not None and recipe.eval_task is not None
    assert recipe.gates.max_drop == 0.01
    feed = next(CALIBRATION.samples(**recipe.calibration.args))  # type: ignore[union-attr]
    assert feed["image"].shape[1:] == (1, size, size) and feed["image"].dtype == np.float32


def test_committed_weights_reach_97_percent_on_held_out_digits(recipe: Recipe) -> None:
    source = recipe.source
    assert source is not None and source.place is not None and source.weights is not None
    module = model_factory.load(f"{source.place.path}:create", {}, source.weights.path).eval()
    scores = []
    with torch.no_grad():
        for feed, labels in TASK.samples(**recipe.eval.args):  # type: ignore[union-attr]
            logits = module(torch.from_numpy(feed["image"])).numpy()
            scores.append(TASK.score({"output": logits}, labels))
    assert len(np.concatenate(scores)) == 898
    assert np.concatenate(scores).mean() >= 0.97


def test_weights_are_small_and_in_half_precision(recipe: Recipe) -> None:
    assert recipe.source is not None and recipe.source.weights is not None
    path = recipe.source.weights.path
    assert path.stat().st_size < 1_000_000
    floats = {str(a.dtype) for a in load_file(path).values() if a.dtype.kind == "f"}
    assert floats == {"float16"}


def test_cnn_is_wide_enough_for_integer_convolutions() -> None:
    module = model_factory.load(
        f"{ROOT / 'examples' / '01_digits_cnn' / 'model.py'}:create", {}, None
    )
    widths = {m.out_channels for m in module.modules() if isinstance(m, torch.nn.Conv2d)}
    assert all(width >= 24 and width % 8 == 0 for width in widths)
    assert 2.5e5 <= sum(p.numel() for p in module.parameters()) <= 3.5e5


def test_calibration_and_evaluation_share_no_digit() -> None:
    calibration = np.concatenate([feed["image"] for feed in CALIBRATION.samples()])
    evaluation = np.concatenate([feed["image"] for feed, _ in TASK.samples()])
    labels = np.concatenate([labels for _, labels in TASK.samples()])
    assert (len(calibration), len(evaluation)) == (899, 898)
    assert not {row.tobytes() for row in calibration} & {row.tobytes() for row in evaluation}
    digits = load_digits()
    np.testing.assert_array_equal(evaluation[:, 0] * 16, digits.images[1::2])
    np.testing.assert_array_equal(labels, digits.target[1::2])


def test_samples_need_nothing_that_an_extra_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.datasets", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert next(CALIBRATION.samples())["image"].shape == (32, 1, 8, 8)
    assert next(TASK.samples())[1].shape == (32,)


def test_the_shipped_digits_are_scikit_learns() -> None:
    digits = load_digits()
    with np.load(ROOT / "calibration" / "digits.npz", allow_pickle=False) as shipped:
        np.testing.assert_array_equal(shipped["images"], digits.images)
        np.testing.assert_array_equal(shipped["labels"], digits.target)


def test_the_first_calibration_samples_are_spread_over_the_half() -> None:
    first = next(CALIBRATION.samples())["image"][:, 0] * 16
    places = {image.tobytes(): i for i, image in enumerate(load_digits().images[0::2])}
    found = np.sort([places[image.astype(np.float64).tobytes()] for image in first])
    assert np.diff(found, prepend=0, append=899).max() < 2 * 899 / len(first)


@pytest.mark.parametrize("module", [CALIBRATION, TASK], ids=["calibration", "task"])
@pytest.mark.parametrize("size", [8, 32, 20])
def test_upscaling_is_torchs_bilinear(module: object, size: int) -> None:
    images = np.random.default_rng(0).random((3, 8, 8))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images)[:, None], size=size, mode="bilinear"
    )[:, 0]
    found = module.upscale(images, size)  # type: ignore[attr-defined]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_score_is_one_where_the_largest_logit_is_the_labels() -> None:
    logits = np.eye(10)[[3, 1, 4]]
    found = TASK.score({"output": logits}, np.array([3, 2, 4]))
    np.testing.assert_array_equal(found, [1.0, 0.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("folder", [folder for folder, _ in EXAMPLES.values()])
def test_quick_training_runs_and_keeps_the_weights(folder: str) -> None:
    weights = ROOT / "examples" / folder / "weights.safetensors"
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    done = subprocess.run(
        [sys.executable, str(weights.with_name("train.py")), "--quick"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "held-out top-1: 0." in done.stdout
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == before
