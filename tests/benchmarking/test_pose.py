"""Poses compared with pycocotools' evaluation of keypoints, and the heads of models of poses."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optkit.craft.benchmarking import average_precision as ap
from optkit.craft.benchmarking import boxes, detection, pose
from optkit.facts.errors import UnknownName
from optkit.ground.data import frames
from optkit.ground.data.frames import Boxes, Frame

SIZES = (8.0, 30.0, 60.0, 200.0)
PEOPLE = 17


def truth_of(random: np.random.Generator, kinds: int, keypoints: int = PEOPLE) -> Boxes:
    """Objects of all sizes; some keypoints, and all of some objects, are not labelled."""
    count = int(random.integers(0, 6))
    start = random.uniform(0, 300, (count, 2))
    sides = random.choice(SIZES, (count, 2)) * random.uniform(0.7, 1.4, (count, 2))
    places = start[:, None] + random.random((count, keypoints, 2)) * sides[:, None]
    seen = random.choice([0, 1, 2], (count, keypoints), p=[0.3, 0.2, 0.5])
    seen[random.random(count) < 0.2] = 0
    return Boxes(
        random.integers(0, kinds, count), np.concatenate([start, start + sides], axis=1),
        sides.prod(1) * random.uniform(0.5, 1, count), random.random(count) < 0.1,
        np.concatenate([places, seen[..., None]], axis=-1).astype(float),
    )  # fmt: skip


def found_in(random: np.random.Generator, truth: Boxes, kinds: int) -> ap.Detections:
    """Some poses moved a little, some of them twice, and some at random places."""
    chosen = truth.chosen(np.flatnonzero(random.random(len(truth.classes)) < 0.8))
    keypoints = truth.points.shape[1]  # type: ignore[union-attr]
    parts = []
    for spread in (0.5, 4.0):
        moved = chosen.points.copy()  # type: ignore[union-attr]
        moved[..., :2] += random.normal(0, spread, moved[..., :2].shape)
        parts.append((chosen.classes, moved))
    wild = truth_of(random, kinds, keypoints)
    parts.append((wild.classes, wild.points))
    classes = np.concatenate([kind for kind, _ in parts])
    points = np.concatenate([points for _, points in parts])
    places = points[..., :2]
    corners = np.concatenate([places.min(1), places.max(1)], axis=-1)
    return ap.Detections(corners, random.integers(1, 9, len(corners)) / 10, classes, points)


def by_pycocotools(pictures: list[tuple[ap.Detections, Boxes]], kinds: int) -> np.ndarray:
    """AP, AP at 0.5, at 0.75, of medium and of large objects."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotated: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image, (poses, truth) in enumerate(pictures, 1):
        for index, (kind, box) in enumerate(zip(truth.classes, truth.corners, strict=True)):
            points = truth.points[index]  # type: ignore[index]
            annotated.append({
                "id": len(annotated) + 1, "image_id": image, "category_id": int(kind) + 1,
                "bbox": [*box[:2], *(box[2:] - box[:2])], "area": truth.areas[index],
                "iscrowd": int(truth.crowd[index]), "keypoints": points.ravel().tolist(),
                "num_keypoints": int((points[:, 2] > 0).sum()),
            })  # fmt: skip
        for index, (kind, score) in enumerate(zip(poses.classes, poses.scores, strict=True)):
            points = poses.points[index]  # type: ignore[index]
            found.append({"image_id": image, "category_id": int(kind) + 1, "score": score,
                          "keypoints": points.ravel().tolist()})  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(1, len(pictures) + 1)],
            "annotations": annotated, "categories": [{"id": i + 1} for i in range(kinds)],
        }  # fmt: skip
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(found), "keypoints")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return np.asarray(evaluation.stats[:5])


def rows_of(pictures: list[tuple[ap.Detections, Boxes]], keypoints: int = PEOPLE) -> np.ndarray:
    likeness = pose._likeness(np.zeros((1, 1, 8 + 3 * keypoints)), None)
    most = max(len(found.scores) + len(truth.classes) for found, truth in pictures)
    return np.stack([ap.matched(*one, most + 2, likeness) for one in pictures])


@pytest.mark.parametrize("seed", range(40))
def test_the_figures_are_those_of_pycocotools(seed: int) -> None:
    """Five cases each: 200 in all."""
    for turn in range(5):
        random = np.random.default_rng([seed, turn])
        kinds = int(random.integers(1, 4))
        truths = [truth_of(random, kinds) for _ in range(int(random.integers(1, 12)))]
        pictures = [(found_in(random, truth, kinds), truth) for truth in truths]
        if not sum(len(found.scores) for found, _ in pictures):
            continue
        rows, once = rows_of(pictures), np.ones(len(pictures))
        parts = [
            detection.weighted(rows), detection.weighted(rows, overlap="50"),
            detection.weighted(rows, overlap="75"),
            *(detection.weighted(rows, area=area) for area in ("medium", "large")),
        ]  # fmt: skip
        got = np.asarray([part(once) for part in parts])
        wanted = by_pycocotools(pictures, kinds)
        np.testing.assert_allclose(np.nan_to_num(got, nan=-1.0), wanted, rtol=0, atol=1e-6)


def labels_of(truth: Boxes, frame: Frame) -> np.ndarray:
    return frames.written(frame, truth, 6)[None]


def exact(random: np.random.Generator, keypoints: int, kinds: int) -> tuple[Boxes, ap.Detections]:
    """Objects with all keypoints, far apart, and a pose exactly on each."""
    start = np.asarray([[10, 20], [150, 30], [80, 120.0]])
    places = start[:, None] + random.uniform(0, 40, (3, keypoints, 2))
    points = np.concatenate([places, np.ones((3, keypoints, 1))], axis=-1)
    corners = np.concatenate([start, start + 40], axis=1)
    classes = np.arange(3) % kinds
    truth = Boxes(classes, corners, np.full(3, 900.0), np.zeros(3, bool), points)
    return truth, ap.Detections(corners, np.asarray([0.9, 0.8, 0.7]), classes, points)


def outputs_of(found: ap.Detections, head: str, numbers: int, kinds: int) -> dict[str, np.ndarray]:
    assert found.points is not None
    points = found.points[..., :numbers].reshape(len(found.scores), -1)
    centred = np.concatenate([(found.corners[:, :2] + found.corners[:, 2:]) / 2,
                              found.corners[:, 2:] - found.corners[:, :2]], axis=1)  # fmt: skip
    assert np.allclose(boxes.corners(centred), found.corners)
    if head == "corners":
        keypoints = found.points[..., :numbers]
        parts = {"boxes": found.corners, "scores": found.scores, "labels": found.classes,
                 "keypoints": keypoints}  # fmt: skip
        return {name: part[None] for name, part in parts.items()}
    scores = found.scores[:, None]
    if head == "yolo_nms":
        rows = np.concatenate([found.corners, scores, found.classes[:, None], points], axis=1)
        return {"output0": rows[None]}
    of_classes = scores * (found.classes[:, None] == np.arange(kinds))
    rows = np.concatenate([centred, of_classes, points], axis=1)
    anchors = np.zeros((100, rows.shape[1]))
    anchors[5:8] = rows
    return {"output0": anchors.T[None]}


@pytest.mark.parametrize("head", ["yolo", "yolo_nms", "corners"])
@pytest.mark.parametrize(("keypoints", "numbers", "kinds"), [(17, 3, 1), (5, 2, 2), (1, 3, 1)])
def test_heads_are_read_and_recognised(
    head: pose.Head, keypoints: int, numbers: int, kinds: int
) -> None:
    random = np.random.default_rng(0)
    truth, found = exact(random, keypoints, kinds)
    # the picture of 400×200 pixels lies in the input at a half, 10 pixels from the top
    frame = Frame.of((400, 200), (200, 100), (0, 10), (200, 120))
    assert found.points is not None
    places = np.concatenate([frame.to_input(found.points[..., :2]), found.points[..., 2:]], axis=-1)
    moved = replace(found, corners=frame.to_input(found.corners), points=places)
    outputs, labels = outputs_of(moved, head, numbers, kinds), labels_of(truth, frame)
    for name in (head, "auto"):
        rows = pose.score(outputs, labels, head=name, kinds=kinds)  # type: ignore[arg-type]
        assert detection.weighted(detection.combine(rows))(np.ones(1)) == pytest.approx(1.0)
    (objects,) = pose.drawn(outputs, labels, kinds=kinds)
    assert objects.right.all() and len(objects.found) == 3
    assert np.allclose(objects.annotated[0].points, places[0, :, :2])


def test_sigmas_say_how_exact_a_keypoint_must_be() -> None:
    truth, found = exact(np.random.default_rng(0), 3, 1)
    assert found.points is not None
    moved = replace(found, points=found.points + np.asarray([4.0, 0, 0]))
    sharp, wide = (pose.similarities(moved, truth, np.full(3, sigma)) for sigma in (0.02, 0.5))
    assert np.diag(sharp) == pytest.approx(np.exp(-16 / (0.04**2 * 900 * 2)))
    assert np.diag(wide) == pytest.approx(np.exp(-16 / (1 * 900 * 2)))
    labels = labels_of(truth, Frame.of((200, 200), (200, 200), (0, 0), (200, 200)))
    outputs = outputs_of(moved, "corners", 3, 1)
    values = [detection.weighted(pose.score(outputs, labels, sigmas=[sigma] * 3))(np.ones(1))
              for sigma in (0.02, 0.5)]  # fmt: skip
    assert values == [0.0, pytest.approx(1.0)]


def test_outputs_that_do_not_fit_are_refused() -> None:
    truth, found = exact(np.random.default_rng(0), 5, 2)
    labels = labels_of(truth, Frame.of((200, 200), (200, 200), (0, 0), (200, 200)))
    outputs = outputs_of(found, "yolo", 3, 2)
    with pytest.raises(ValueError, match=r"1 classes the output has 16 numbers.*5 annotated"):
        pose.score(outputs, labels)
    with pytest.raises(UnknownName):
        pose.score(outputs, labels, head="yolov9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not fit the outputs: output0"):
        pose.score(outputs, labels, head="corners")
    with pytest.raises(ValueError, match="has 2 values for 5 keypoints"):
        pose.score(outputs, labels, kinds=2, sigmas=[1, 1])
    with pytest.raises(ValueError, match="larger than 0"):
        pose.score(outputs, labels, kinds=2, sigmas=[1, 1, 0, 1, 1])
    with pytest.raises(ValueError, match="no known head"):
        pose.score({"y": np.zeros((1, 4))}, labels)
