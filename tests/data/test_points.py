"""Annotations with keypoints and with oriented boxes: their readers, and errors with their place
and a remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optkit.craft.benchmarking import polygons
from optkit.craft.benchmarking.accuracy import EvaluationTask
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import places, user_code
from optkit.ground.data import detection
from optkit.ground.data.frames import Boxes, Frame
from tests.data.test_vision_tasks import Model
from tests.scoring import score

PIXELS = {"images": TensorInfo("images", "float32", ("batch", 3, 64, 64))}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set of YOLO without lines: pictures of 100×50 and of 32×64 pixels."""
    for name, size in (("a", (100, 50)), ("b", (32, 64))):
        place = tmp_path / "images" / "val" / f"{name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(place)
    (tmp_path / "labels" / "val").mkdir(parents=True)
    return tmp_path


def yaml(data: Path, lines: str, more: str = "") -> Path:
    (data / "labels" / "val" / "a.txt").write_text(lines)
    file = data / "data.yaml"
    file.write_text(f"val: images/val\nnames: [cat, dog]\n{more}\n")
    return file


def coco(data: Path, *annotations: dict[str, Any]) -> Path:
    file = data / "images" / "val" / "poses.json"
    own = {"image_id": 1, "category_id": 5, "bbox": [20, 10, 40, 30], "area": 700}
    file.write_text(json.dumps({
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [{**own, **one} for one in annotations],
        "categories": [{"id": 5, "name": "dog"}],
    }))  # fmt: skip
    return file


def read(samples: Any, path: Path, **args: Any) -> list[tuple[Frame, Boxes]]:
    batches = samples(path, preprocessing="letterbox", size=64, inputs=PIXELS, **args)
    return [(Frame.read(row), Boxes.read(row)) for _, labels in batches for row in labels]


def test_keypoints_of_yolo_and_coco_are_the_same(data: Path) -> None:
    line = "1 0.4 0.5 0.4 0.6 0.3 0.4 2 0.5 0.6 1 0 0 0\n"
    (_, ours), (_, none) = read(detection.poses, yaml(data, line, "kpt_shape: [3, 3]"))
    file = coco(data, {"keypoints": [30, 20, 2, 50, 30, 1, 0, 0, 0]})
    (_, theirs), _ = read(detection.poses, file, classes=["cat", "dog"])
    assert ours.points is not None and theirs.points is not None
    np.testing.assert_allclose(ours.points, [[[30, 20, 2], [50, 30, 1], [0, 0, 0]]])
    np.testing.assert_allclose(ours.points, theirs.points)
    np.testing.assert_allclose(ours.corners, theirs.corners)
    assert ours.classes.tolist() == theirs.classes.tolist() == [1]
    # the file of YOLO has no area: a person fills 0.53 of its box
    assert (ours.areas, theirs.areas) == (pytest.approx([0.53 * 1200]), [700])
    assert none.points is not None and none.points.shape == (0, 3, 3)


def test_keypoints_without_visibility_are_all_labelled(data: Path) -> None:
    (_, ours), _ = read(
        detection.poses, yaml(data, "0 0.5 0.5 1 1 0.1 0.2 0.3 0.4", "kpt_shape: [2, 2]")
    )
    assert ours.points is not None
    np.testing.assert_allclose(ours.points, [[[10, 10, 1], [30, 20, 1]]])


def test_oriented_boxes_are_quadrilaterals_in_pixels(data: Path) -> None:
    file = yaml(data, "0 0.5 0.2 0.6 0.4 0.5 0.6 0.4 0.4\n\n1 0 0 1.01 0 1 1 0 1")
    (_, ours), _ = read(detection.oriented, file)
    assert ours.points is not None
    assert ours.points[0].tolist() == [[50, 10, 1], [60, 20, 1], [50, 30, 1], [40, 20, 1]]
    assert ours.corners[0].tolist() == [40, 10, 60, 30]
    assert ours.areas[0] == pytest.approx(polygons.areas(ours.points[:1, :, :2])[0]) == 200


@pytest.mark.parametrize(
    ("line", "shape", "said"),
    [
        ("0 0.5 0.5 1 1 0.1 0.2 2", "[2, 3]", r"8 numbers.*a\.txt:1.*visibility` for each of 2"),
        ("\n0 0.5 0.5 1 1 7 0.2 2", "[1, 3]", r"not between 0 and 1.*a\.txt:2.*divide by the"),
        ("0 0.5 0.5 1 1 nan 0 2", "[1, 3]", r"not finite.*a\.txt:1"),
        ("0 0.5 0.5 1 1 a 0 2", "[1, 3]", r"not numbers.*a\.txt:1"),
        ("0.5 0.5 0.5 1 1 0 0 2", "[1, 3]", r"the class is 0\.5.*a\.txt:1.*0, 1, 2"),
        ("0 0.5 0.5 1 1 0 0 2", "17", r"kpt_shape is 17.*data\.yaml.*kpt_shape: \[17, 3\]"),
        ("0 0.5 0.5 1 1 0 0 2", "[1, 4]", r"kpt_shape is \[1, 4\].*data\.yaml"),
    ],
)  # fmt: skip
def test_bad_lines_of_poses_are_refused(data: Path, line: str, shape: str, said: str) -> None:
    with pytest.raises(InputRefused) as caught:
        read(detection.poses, yaml(data, line, f"kpt_shape: {shape}"))
    refused(caught.value, said)


def refused(error: InputRefused, said: str) -> None:
    text = f"{error.message} {error.where} {error.hint}"
    assert re.search(said, text), text


def test_a_folder_of_poses_needs_the_number_of_keypoints(data: Path) -> None:
    yaml(data, "0 0.5 0.5 1 1 0.1 0.2 2")
    with pytest.raises(InputRefused) as caught:
        read(detection.poses, data)
    refused(caught.value, r"a folder does not say which keypoints.*kpt_shape: \[17, 3\]")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0 0.5 0.5 1 1", r"5 numbers.*a\.txt:1.*x4 y4`, the corners in order"),
        ("0 0 0 1 1 1 0 0 1", r"in no order around a box.*a\.txt:1.*corners in order"),
        ("0 0 0 1 0 1 0 0 0", r"in no order around a box.*a\.txt:1"),
        ("0 0 0 640 0 640 200 0 200", r"not between 0 and 1.*a\.txt:1.*divide by the width"),
    ],
)
def test_bad_lines_of_oriented_boxes_are_refused(data: Path, line: str, said: str) -> None:
    with pytest.raises(InputRefused) as caught:
        read(detection.oriented, yaml(data, line))
    refused(caught.value, said)


@pytest.mark.parametrize(
    ("keypoints", "said"),
    [
        ([[1, 1, 2], None], r"keypoints: none.*poses\.json, annotations\.1.*task is detection"),
        ([[1, 1]], r"keypoints: 2 numbers, and not x, y, v.*annotations\.0"),
        ([[1, 1, 2] * 3, [1, 1, 2]], r"3 numbers, and not 3 for each of 3.*annotations\.1"),
        ([["a"]], r"annotations\.0\.keypoints\.0.*poses\.json"),
    ],
)
def test_bad_keypoints_of_coco_are_refused(data: Path, keypoints: list[Any], said: str) -> None:
    with pytest.raises(InputRefused) as caught:
        read(detection.poses, coco(data, *({"keypoints": one} for one in keypoints)))
    refused(caught.value, said)


def test_coco_has_no_oriented_boxes(data: Path) -> None:
    with pytest.raises(InputRefused) as caught:
        read(detection.oriented, coco(data, {"keypoints": [1, 1, 2]}))
    refused(caught.value, r"no oriented boxes.*poses\.json.*YOLO's files")


def test_the_shipped_tasks_score_a_model_that_sees_and_one_that_does_not(data: Path) -> None:
    posed = yaml(data, "1 0.4 0.5 0.4 0.6 0.3 0.4 2", "kpt_shape: [1, 3]")
    (frame, row), _ = read(detection.poses, posed)
    assert row.points is not None
    point = frame.to_input(row.points[0, :, :2])[0]
    centre = frame.to_input(np.asarray([[40, 25.0]]))[0]
    pose = [*centre, 25.6, 19.2, 0, 0.9, *point, 1.0]
    assert of_task("pose", posed, pose, kinds=2) == pytest.approx(1.0)
    assert of_task("pose", posed, [*pose[:6], *(point + 40), 1.0], kinds=2) == 0.0
    oriented = yaml(data, "0 0.5 0.2 0.6 0.4 0.5 0.6 0.4 0.4")
    side = np.hypot(6.4, 6.4)
    diagonal = [*frame.to_input(np.asarray([[50, 20.0]]))[0], side, side, 0.9, 0, np.pi / 4]
    assert of_task("obb", oriented, diagonal) == pytest.approx(1.0)
    # an upright box of this size shares too little with one on its corner
    assert of_task("obb", oriented, [*diagonal[:6], 0.0]) < 0.6


def of_task(name: str, path: Path, row: list[float], **args: Any) -> float:
    place = places.find_task(name, Path()).path
    module = user_code.load_module(place)
    args = {"path": path, "preprocessing": "letterbox", "size": 64, **args}
    hooks = {key: user_code.hook(module, key, args) for key in ("score", "combine", "weighted")}
    task = EvaluationTask(user_code.metric(module, place, args), **hooks)  # type: ignore[arg-type]

    def run(feed: Feed) -> Feed:
        output = np.zeros((len(feed["images"]), len(row), 90))
        output[0, :, 3] = row  # the first picture is the one with an object
        return {"output0": output}

    samples = module.samples(**user_code.taken(module.samples, args), inputs=PIXELS)
    scored = score(Model(run), samples, task, evidence=Evidence.MEASURED)  # type: ignore[arg-type]
    assert scored.metric == f"{name}_map"
    return scored.value
