"""Compared with pycocotools, and small cases by hand."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.benchmarking import average_precision as ap
from optkit.craft.benchmarking import boxes, detection
from optkit.ground.data.frames import Boxes

SIZES = (8.0, 30.0, 60.0, 200.0)


def truth_of(random: np.random.Generator, kinds: int) -> Boxes:
    count = int(random.integers(0, 7))
    start = random.uniform(0, 300, (count, 2))
    sides = random.choice(SIZES, (count, 2)) * random.uniform(0.7, 1.4, (count, 2))
    corners = np.concatenate([start, start + sides], axis=1)
    return Boxes(
        random.integers(0, kinds, count), corners, sides.prod(1) * random.uniform(0.5, 1, count),
        random.random(count) < 0.15,
    )  # fmt: skip


def found_in(random: np.random.Generator, truth: Boxes, kinds: int) -> ap.Detections:
    """Some boxes moved a little, some of them twice, and some at random places."""
    chosen = truth.corners[random.random(len(truth.corners)) < 0.8]
    labels = truth.classes[: len(chosen)]
    moved = [chosen + random.normal(0, spread, chosen.shape) for spread in (1.0, 6.0)]
    wild = truth_of(random, kinds)
    corners = np.concatenate([*moved, wild.corners])
    classes = np.concatenate([labels, labels, wild.classes])
    sides = np.maximum(corners[:, 2:], corners[:, :2] + 1)
    corners = np.concatenate([corners[:, :2], sides], axis=1)
    # few different scores, so that many are equal
    return ap.Detections(corners, random.integers(1, 9, len(corners)) / 10, classes)


def by_pycocotools(pictures: list[tuple[ap.Detections, Boxes]], kinds: int) -> np.ndarray:
    """Its twelve figures; those of AP are the first six."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotated, found = [], []
    for image, (detections, truth) in enumerate(pictures, 1):
        for kind, box, area, crowd in zip(
            truth.classes, truth.corners, truth.areas, truth.crowd, strict=True
        ):
            annotated.append(
                {"id": len(annotated) + 1, "image_id": image, "category_id": int(kind) + 1,
                 "bbox": [*box[:2], *(box[2:] - box[:2])], "area": area, "iscrowd": int(crowd)}
            )  # fmt: skip
        for box, score, kind in zip(
            detections.corners, detections.scores, detections.classes, strict=True
        ):
            found.append(
                {"image_id": image, "category_id": int(kind) + 1, "score": score,
                 "bbox": [*box[:2], *(box[2:] - box[:2])]}
            )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(1, len(pictures) + 1)],
            "annotations": annotated, "categories": [{"id": i + 1} for i in range(kinds)],
        }  # fmt: skip
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return np.asarray(evaluation.stats)


def rows_of(pictures: list[tuple[ap.Detections, Boxes]]) -> np.ndarray:
    most = max(len(found.scores) + len(truth.classes) for found, truth in pictures)
    return ap.compact(np.stack([ap.matched(*one, most + 2) for one in pictures]))


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
        wanted = by_pycocotools(pictures, kinds)[:6]
        rows, once = rows_of(pictures), np.ones(len(pictures))
        parts = [
            ap.precision(rows), ap.precision(rows, thresholds=slice(0, 1)),
            ap.precision(rows, thresholds=slice(5, 6)),
            *(ap.precision(rows, area=area) for area in ("small", "medium", "large")),
        ]  # fmt: skip
        got = np.asarray([part(once) for part in parts])
        np.testing.assert_allclose(np.nan_to_num(got, nan=-1.0), wanted, rtol=0, atol=1e-6)


def with_scores_of_their_own(
    found: list[ap.Detections], random: np.random.Generator
) -> list[ap.Detections]:
    scores = random.permutation(sum(len(one.scores) for one in found)) + 1.0
    ends = np.cumsum([len(one.scores) for one in found])[:-1]
    return [
        replace(one, scores=part) for one, part in zip(found, np.split(scores, ends), strict=True)
    ]


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), area=st.sampled_from(list(ap.AREAS)))
def test_a_picture_that_counts_twice_counts_as_two(seed: int, area: str) -> None:
    random = np.random.default_rng(seed)
    truths = [truth_of(random, 2) for _ in range(6)]
    # among equal scores, the order would differ: a copy stands beside its picture
    found = with_scores_of_their_own([found_in(random, truth, 2) for truth in truths], random)
    counts = random.integers(0, 3, len(truths))
    repeated = np.repeat(np.arange(len(truths)), counts)
    rows = rows_of(list(zip(found, truths, strict=True)))
    weighted = ap.precision(rows, area=area)(counts.astype(float))
    plain = ap.precision(rows[repeated], area=area)(np.ones(len(repeated)))
    np.testing.assert_allclose(weighted, plain, atol=1e-12)


def test_one_box_of_two_is_found() -> None:
    truth = Boxes(
        np.asarray([0, 0]), np.asarray([[0, 0, 10, 10], [50, 50, 60, 60]], float),
        np.asarray([100.0, 100.0]), np.zeros(2, bool),
    )  # fmt: skip
    found = ap.Detections(np.asarray([[0, 0, 10, 10.0]]), np.asarray([0.9]), np.asarray([0]))
    value = ap.precision(rows_of([(found, truth)]))(np.ones(1))
    assert value == pytest.approx(51 / 101)  # precision 1 up to a recall of 0.5


def test_suppression_keeps_the_best_of_each_class() -> None:
    corners = np.asarray([[0, 0, 10, 10], [1, 0, 11, 10], [1, 0, 11, 10], [30, 0, 40, 10]], float)
    kept = boxes.suppressed(
        corners, np.asarray([0.5, 0.9, 0.8, 0.1]), np.asarray([0, 0, 1, 0]), 0.5, 10
    )
    assert kept.tolist() == [1, 2, 3]


@given(seed=st.integers(0, 10_000), most=st.integers(0, 40))
def test_suppression_is_that_of_its_definition(seed: int, most: int) -> None:
    """A box is kept if no kept one of its class with a higher score overlaps it."""
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 40))
    start = random.uniform(0, 60, (count, 2))
    corners = np.concatenate([start, start + random.uniform(-2, 40, (count, 2))], axis=1)
    scores, classes = random.integers(0, 9, count) / 10, random.integers(0, 3, count)
    shared = boxes.overlaps(corners, corners)
    expected: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        rivals = [one for one in expected if classes[one] == classes[index]]
        if not (shared[index, rivals] > 0.5).any():
            expected.append(int(index))
    kept = boxes.suppressed(corners, scores, classes, 0.5, most)
    assert kept.tolist() == expected[:most] and kept.dtype == np.int64


def test_slices_are_the_metric_of_each_class_and_size() -> None:
    random = np.random.default_rng(5)
    truths = [truth_of(random, 3) for _ in range(12)]
    rows = rows_of([(found_in(random, truth, 3), truth) for truth in truths])
    counts = random.integers(0, 3, len(truths)).astype(float)
    found = {name: of(counts) for name, of in detection.slices(rows, overlap="50").items()}
    half = slice(0, 1)
    assert found == {
        **{f"class {kind}": ap.precision(rows, thresholds=half, kind=kind)(counts)
           for kind in range(3)},
        **{f"{area} boxes": ap.precision(rows, thresholds=half, area=area)(counts)
           for area in ("small", "medium", "large")},
    }  # fmt: skip
    whole = detection.weighted(rows, overlap="50")(counts)
    assert np.mean([found[f"class {kind}"] for kind in range(3)]) == pytest.approx(whole)
    assert detection.slices(rows, area="small").keys() <= {f"class {kind}" for kind in range(3)}


def test_sizes_and_classes_without_a_box_are_no_slices() -> None:
    truth = Boxes(np.asarray([2]), np.asarray([[0.0, 0, 10, 10]]), np.asarray([100.0]),
                  np.zeros(1, bool))  # fmt: skip
    found = ap.Detections(np.asarray([[0, 0, 10, 10.0]] * 2), np.ones(2), np.asarray([2, 0]))
    assert [*detection.slices(rows_of([(found, truth)]))] == ["class 2", "small boxes"]
