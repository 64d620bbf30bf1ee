"""The example of a detector: scenes, losses, weights, and a build that keeps its gate."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from optkit.craft.benchmarking import boxes
from optkit.craft.sources import model_factory
from optkit.ground import places, user_code
from optkit.ground.data.frames import Boxes, Frame
from optkit.ground.recipe import Recipe
from tests.conftest import Optkit

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "05_digit_detector"
WEIGHTS = FOLDER / "weights.safetensors"
SCENES, SAMPLES, TASK, LOSSES, MODEL = (
    user_code.load_module(FOLDER / f"{name}.py")
    for name in ("digit_scenes", "samples", "task", "losses", "model")
)
CELLS = MODEL.middles(16, 16)


def test_the_recipe_finds_its_parts() -> None:
    recipe = Recipe.load(places.find_recipe("digit-detector"))
    assert recipe.source is not None and recipe.source.weights is not None
    assert recipe.source.weights.path == WEIGHTS
    assert recipe.eval_task is not None and recipe.eval_task.path == FOLDER / "task.py"
    assert recipe.gates.max_drop == 0.01


def test_a_number_gives_the_same_scene_and_another_gives_another() -> None:
    first, again, other = (SCENES.scene("test", number) for number in (1, 1, 2))
    np.testing.assert_array_equal(first.picture, again.picture)
    np.testing.assert_array_equal(first.corners, again.corners)
    assert first.picture.shape == (128, 128, 3) and first.picture.dtype == np.uint8
    assert np.abs(first.picture.astype(int) - other.picture).mean() > 10
    assert not np.array_equal(first.picture, SCENES.scene("validation", 1).picture)


@settings(max_examples=30)
@given(number=st.integers(0, 10**6))
def test_boxes_lie_in_the_scene_and_overlap_little(number: int) -> None:
    one = SCENES.scene("train", number)
    assert 1 <= len(one.labels) == len(one.corners) <= SCENES.MOST
    assert (one.corners[:, 2:] - one.corners[:, :2]).min() >= 4
    assert one.corners.min() >= 0 and one.corners.max() <= SCENES.SIZE
    areas = boxes.areas(one.corners)
    shared = boxes.overlaps(one.corners, one.corners, np.ones(len(areas), bool)) * areas[:, None]
    shares = shared / np.minimum(areas[:, None], areas) - np.eye(len(areas))
    assert shares.max() <= SCENES.OVERLAP + 1e-9


def test_the_parts_share_no_digit() -> None:
    parts = {part: SCENES.digits(part)[0] for part in ("train", "validation", "test")}
    assert [len(images) for images in parts.values()] == [899, 449, 449]
    drawn = [{one.tobytes() for one in images} for images in parts.values()]
    assert len(set.union(*drawn)) == sum(map(len, drawn))


def test_calibration_has_scenes_of_its_own_and_the_task_those_of_the_test_part() -> None:
    assert sum(len(feed["image"]) for feed in SAMPLES.samples()) == 256
    feed, labels = next(TASK.samples())
    one = SCENES.scene("test", 0)
    np.testing.assert_array_equal(feed["image"][0].transpose(1, 2, 0) * 255, one.picture)
    frame, truth = Frame.read(labels[0]), Boxes.read(labels[0])
    assert (frame.width, frame.input_height, frame.left) == (128, 128, 0)
    np.testing.assert_array_equal(truth.corners, one.corners)
    np.testing.assert_array_equal(truth.classes, one.labels)


def ideal(scenes: list[object]) -> np.ndarray:
    """The output of a model that answers as `targets` asks."""
    kinds, corners = LOSSES.targets(scenes, CELLS, 12.0)
    start, stop = corners[:, :2], corners[:, 2:]
    scores = torch.nn.functional.one_hot(kinds + 1, 11)[..., 1:].permute(0, 3, 1, 2)
    output = torch.cat([(start + stop) / 2, stop - start, scores], 1).flatten(2)
    return output.numpy()


def test_a_model_that_answers_as_it_should_is_almost_perfect() -> None:
    """A digit is lost if smaller ones take all its cells."""
    rows = []
    for feed, labels in TASK.samples(scenes=64):
        scenes = [SCENES.scene("test", len(rows) * 32 + one) for one in range(len(labels))]
        assert len(feed["image"]) == 32
        rows.append(TASK.score({"output": ideal(scenes)}, labels))
    value = TASK.weighted(TASK.combine(np.concatenate(rows)))(np.ones(64))
    assert 0.97 < value <= 1


def test_the_smallest_of_two_digits_gets_the_cells_that_both_want() -> None:
    corners = np.asarray([[0.0, 0, 64, 64], [24, 24, 40, 40]])
    one = SCENES.Scene(np.zeros((128, 128, 3), np.uint8), corners, np.asarray([3, 7]))
    kinds, boxes_of = LOSSES.targets([one], CELLS, 20.0)
    assert kinds[0, 4, 4] == 7 and kinds[0, 2, 2] == 3 and kinds[0, 12, 12] == -1
    assert boxes_of[0, :, 4, 4].tolist() == [24, 24, 40, 40]
    assert (kinds == 7).sum() == 4  # 2×2 cells of 8 pixels have their middle in the small box


def test_focal_loss_is_a_quarter_of_weighted_cross_entropy_at_even_odds() -> None:
    """At a probability of 1/2: α · (1/2)² · log 2."""
    for target, alpha in ((1.0, 0.25), (0.0, 0.75)):
        value = LOSSES.focal_loss(torch.zeros(1), torch.tensor([target]))
        assert float(value) == pytest.approx(alpha * 0.25 * np.log(2))


def test_giou_loss() -> None:
    truth = torch.tensor([[0.0, 0.0, 2.0, 2.0]] * 3)
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [3.0, 0.0, 5.0, 2.0]])
    # the same; a third shared in a hull without a gap; none shared in a hull of 10 with a gap of 2
    expected = [0.0, 1 - 1 / 3, 1 + 2 / 10]
    assert LOSSES.giou_loss(others, truth).tolist() == pytest.approx(expected)


def test_the_loss_is_small_for_right_answers_alone() -> None:
    scenes = [SCENES.scene("train", number) for number in range(3)]
    kinds, corners = LOSSES.targets(scenes, CELLS, 12.0)
    sides = torch.cat([CELLS - corners[:, :2], corners[:, 2:] - CELLS], 1)
    right = torch.nn.functional.one_hot(kinds + 1, 11)[..., 1:].permute(0, 3, 1, 2) * 40.0 - 20
    assert float(LOSSES.loss(sides, right, CELLS, scenes, 12.0)) < 1e-3
    assert float(LOSSES.loss(sides + 4, right, CELLS, scenes, 12.0)) > 0.1
    assert float(LOSSES.loss(sides, right.roll(1, 1), CELLS, scenes, 12.0)) > 1


def test_the_output_holds_the_maps_as_centre_sides_and_probabilities() -> None:
    torch.manual_seed(0)
    model = MODEL.create(8, 1).eval()
    image = torch.rand(2, 3, 128, 96)
    with torch.no_grad():
        output, (sides, logits) = model(image), model.maps(image)
    assert output.shape == (2, 14, 16 * 12)
    x, y = MODEL.middles(16, 12)
    left, top, right, bottom = sides.unbind(1)
    cells = output.unflatten(2, (16, 12))
    torch.testing.assert_close(cells[:, 0] - cells[:, 2] / 2, x - left)
    torch.testing.assert_close(cells[:, 1] + cells[:, 3] / 2, y + bottom)
    torch.testing.assert_close(cells[:, 2:4], torch.stack([left + right, top + bottom], 1))
    torch.testing.assert_close(cells[:, 4:], logits.sigmoid())


@pytest.mark.slow
def test_the_weights_are_small_and_find_digits() -> None:
    floats = {str(a.dtype) for a in load_file(WEIGHTS).values() if a.dtype.kind == "f"}
    assert WEIGHTS.stat().st_size < 2_000_000 and floats == {"float16"}
    module = model_factory.load(f"{FOLDER / 'model.py'}:create", {}, WEIGHTS).eval()
    with torch.no_grad():
        rows = [
            TASK.score({"output": module(torch.from_numpy(feed["image"])).numpy()}, labels)
            for feed, labels in TASK.samples(scenes=128)
        ]
    whole, ones = TASK.combine(np.concatenate(rows)), np.ones(128)
    assert TASK.weighted(whole)(ones) > 0.5
    assert TASK.weighted(whole, overlap="50")(ones) > 0.85


@pytest.mark.slow
def test_int8_keeps_the_gates_on_mean_average_precision(
    optkit_apart: Optkit, cache: Path, tmp_path: Path
) -> None:
    built = optkit_apart(
        "build", "--recipe", "digit-detector", "--target", "cpu", "--precision", "int8", "--json",
        "--set", "eval.args.scenes=256", "--set", "gates.max_slice_drop=5%", "--out", tmp_path,
        cache=cache,
    )  # fmt: skip
    assert built.code == 0, built.err
    assert built.result["gate"] == {"verdict": "pass", "reasons": []}
    report = json.loads((Path(built.result["artifact"]) / "report.json").read_text())
    whole, slices = report["gates"]
    assert (whole["gate"], slices["gate"]) == ("max_drop", "max_slice_drop")
    # ten digits, small and medium boxes
    assert "worst of 12 slices" in slices["reason"]


@pytest.mark.slow
def test_quick_training_runs_and_keeps_the_weights() -> None:
    before = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    done = subprocess.run(
        [sys.executable, str(FOLDER / "train.py"), "--quick"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "validation mAP@.5:.95: 0." in done.stdout
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == before


@pytest.mark.slow
def test_a_training_with_its_own_losses_is_built(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "quantize.py", "--out", tmp_path, "--quick"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(re.findall(r"^(PTQ|QAT): ([\d.]+)% mAP, gate: [a-z]+$", done.stdout, re.M))
    assert found.keys() == {"PTQ", "QAT"}
    assert min(map(float, found.values())) > 75
    assert len(list(tmp_path.glob("detector-*-l4-fp8"))) == 2
