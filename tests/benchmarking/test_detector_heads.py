"""Outputs of known detectors, made from known boxes."""

from __future__ import annotations

import numpy as np
import pytest

from optkit.craft.benchmarking import detector_heads
from optkit.craft.benchmarking.detector_heads import DetectionLimits, Head
from optkit.facts.errors import UnknownName

CORNERS = np.asarray([[10, 20, 50, 80], [100, 100, 160, 150], [12, 21, 51, 79]], float)
KINDS = np.asarray([1, 0, 1])
SCORES = np.asarray([0.9, 0.8, 0.7])
SIZES = np.asarray([[200.0, 160.0]])
LIMITS = DetectionLimits(0.05, 0.5, 10)


def centred() -> np.ndarray:
    return np.concatenate([(CORNERS[:, :2] + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - CORNERS[:, :2]],
                          axis=1)  # fmt: skip


def chances(classes: int) -> np.ndarray:
    values = np.full((3, classes), 0.01)
    values[np.arange(3), KINDS] = SCORES
    return values


def outputs(head: Head) -> dict[str, np.ndarray]:
    """The three boxes, in the form of this head."""
    if head == "yolo":
        return {"output0": np.concatenate([centred(), chances(2)], axis=1).T[None].repeat(9, 2)}
    if head == "yolov5":
        whole = np.concatenate([centred(), np.ones((3, 1)), chances(2)], axis=1)
        return {"output": np.concatenate([whole, np.zeros((60, 7))])[None]}
    if head == "yolo_nms":
        rows = np.concatenate([CORNERS, SCORES[:, None], KINDS[:, None]], axis=1)
        return {"output0": np.concatenate([rows, np.zeros((20, 6))])[None]}
    if head == "corners":
        return {"boxes": CORNERS[None], "scores": SCORES[None], "labels": KINDS[None]}
    shares = centred() / np.tile(SIZES, 2)
    if head == "rt_detr":
        logits = np.log(chances(2) / (1 - chances(2)))
    else:
        every = np.concatenate([chances(2), 1 - chances(2).sum(1, keepdims=True)], axis=1)
        logits = np.log(np.maximum(every, 1e-9))
    return {"logits": logits[None], "pred_boxes": shares[None]}


@pytest.mark.parametrize("head", ["yolo", "yolov5", "corners"])
def test_overlapping_boxes_of_a_class_are_suppressed(head: Head) -> None:
    (found,) = detector_heads.detections(outputs(head), SIZES, head, LIMITS)
    np.testing.assert_allclose(found.corners, CORNERS[:2], atol=1e-9)
    np.testing.assert_allclose(found.scores, SCORES[:2])
    assert found.classes.tolist() == [1, 0]


@pytest.mark.parametrize(("head", "axis"), [("yolo", 1), ("yolov5", 2), ("yolo_nms", 2)])
def test_coefficients_of_masks_are_no_classes(head: Head, axis: int) -> None:
    (name, whole), *_ = outputs(head).items()
    shape = list(whole.shape)
    shape[axis] = 4
    masks = np.random.default_rng(0).normal(0, 3, shape)
    both = {name: np.concatenate([whole, masks], axis), "protos": np.zeros((1, 4, 40, 50))}
    (found,) = detector_heads.detections(both, SIZES, "auto", LIMITS)
    (expected,) = detector_heads.detections(outputs(head), SIZES, head, LIMITS)
    np.testing.assert_array_equal(found.corners, expected.corners)
    np.testing.assert_array_equal(found.classes, expected.classes)


@pytest.mark.parametrize(("head", "axis"), [("yolo", 1), ("yolov5", 2)])
def test_keypoints_are_no_classes(head: Head, axis: int) -> None:
    ((name, whole),) = outputs(head).items()
    keypoints = whole.take(range(2), axis)  # in pixels, as the centres are
    with pytest.raises(ValueError, match=r"is no score of a class .* the task pose"):
        wrong = {name: np.concatenate([whole, keypoints], axis)}
        list(detector_heads.detections(wrong, SIZES, head, LIMITS))


@pytest.mark.parametrize("head", ["yolo_nms", "detr", "rt_detr"])
def test_a_set_is_not_suppressed(head: Head) -> None:
    (found,) = detector_heads.detections(outputs(head), SIZES, head, LIMITS)
    np.testing.assert_allclose(found.corners, CORNERS, atol=1e-9)
    np.testing.assert_allclose(found.scores, SCORES, atol=1e-9)
    assert found.classes.tolist() == KINDS.tolist()


@pytest.mark.parametrize("head", ["yolo", "yolov5", "yolo_nms", "corners"])
def test_a_head_is_recognised_by_its_shapes(head: Head) -> None:
    assert detector_heads.recognised(outputs(head)) == head


def test_a_set_with_logits_has_to_be_named() -> None:
    with pytest.raises(ValueError, match=r"args\.head, detr .* or rt_detr"):
        detector_heads.recognised(outputs("detr"))


def test_outputs_that_do_not_fit_are_listed() -> None:
    with pytest.raises(ValueError, match=r"head detr does not fit the outputs: output0 \[1, 6, 27"):
        list(detector_heads.detections(outputs("yolo"), SIZES, "detr", LIMITS))
    with pytest.raises(UnknownName, match="unknown head 'yolov8'"):
        list(detector_heads.detections(outputs("yolo"), SIZES, "yolov8", LIMITS))


def test_weak_and_surplus_detections_are_left_out() -> None:
    (found,) = detector_heads.detections(
        outputs("rt_detr"), SIZES, "rt_detr", DetectionLimits(0.75, 0.5, 10)
    )
    assert found.classes.tolist() == [1, 0]
    (found,) = detector_heads.detections(
        outputs("rt_detr"), SIZES, "rt_detr", DetectionLimits(0.0, 0.5, 1)
    )
    assert found.scores.tolist() == [pytest.approx(0.9)]
