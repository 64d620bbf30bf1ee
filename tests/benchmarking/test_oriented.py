"""Oriented boxes: their overlaps compared with exact clipping in rational numbers, their average
precision with that of the definition, and the heads of YOLO."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking import average_precision as ap
from optkit.craft.benchmarking import boxes, detection, oriented, polygons
from optkit.facts.errors import UnknownName
from optkit.ground.data import frames
from optkit.ground.data.frames import Boxes, Frame

Point = tuple[Fraction, Fraction]


def turn(a: Point, b: Point, p: Point) -> Fraction:
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def area(points: list[Point]) -> Fraction:
    """Signed."""
    pairs = zip(points, [*points[1:], *points[:1]], strict=True)
    return sum((a[0] * b[1] - a[1] * b[0] for a, b in pairs), Fraction(0)) / 2


def clipped(subject: list[Point], clip: list[Point]) -> list[Point]:
    """Sutherland and Hodgman (1974), in rational numbers."""
    for a, b in zip(clip, [*clip[1:], *clip[:1]], strict=True):
        kept: list[Point] = []
        for p, q in zip(subject, [*subject[1:], *subject[:1]], strict=True):
            first, second = turn(a, b, p), turn(a, b, q)
            if first >= 0:
                kept.append(p)
            if (first > 0 > second) or (first < 0 < second):
                share = first / (first - second)
                kept.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
        subject = kept
    return subject


def rational(quad: np.ndarray) -> list[Point]:
    points = [(Fraction(float(x)), Fraction(float(y))) for x, y in quad]
    return points if area(points) > 0 else points[::-1]


def exact(quad: np.ndarray, other: np.ndarray) -> float:
    one, two = rational(quad), rational(other)
    shared = area(clipped(one, two))
    return float(shared / (area(one) + area(two) - shared))


def drawn_at_random(random: np.random.Generator, count: int) -> np.ndarray:
    sides = random.uniform(1, 60, (count, 2))
    return np.concatenate([random.uniform(0, 80, (count, 2)), sides,
                           random.uniform(-4, 4, (count, 1))], axis=1)  # fmt: skip


def grid(random: np.random.Generator, count: int) -> np.ndarray:
    """Upright and diagonal boxes on whole numbers, whose sides and corners often coincide."""
    upright = np.concatenate([random.integers(0, 8, (count, 2)) * 1.0,
                              random.integers(1, 5, (count, 2)) * 2.0], axis=1)  # fmt: skip
    quads = boxes.corners(upright)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    diagonal = random.random(count) < 0.4
    middle = quads.mean(1, keepdims=True)
    turned = middle + (quads - middle) @ np.asarray([[1.0, 1], [-1, 1]])
    return np.where(diagonal[:, None, None], turned, quads)


@given(seed=st.integers(0, 10_000), touching=st.booleans())
def test_overlaps_are_those_of_exact_clipping(seed: int, touching: bool) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 6))
    quads, others = (
        grid(random, size) if touching else polygons.corners(drawn_at_random(random, size))
        for size in (count, 5)
    )
    if random.random() < 0.5:
        others = others[:, ::-1]  # the other way around
    got = polygons.overlaps(quads, others)
    wanted = np.asarray([[exact(one, other) for other in others] for one in quads])
    np.testing.assert_allclose(got, wanted.reshape(count, 5), rtol=0, atol=1e-9)


def test_a_box_has_its_area_and_overlaps_itself() -> None:
    quads = polygons.corners(drawn_at_random(np.random.default_rng(0), 50))
    np.testing.assert_allclose(np.diag(polygons.overlaps(quads, quads)), 1, atol=1e-9)
    upright = polygons.corners(np.asarray([[10, 20, 6, 4, 0], [10, 20, 6, 4, np.pi / 2]]))
    assert polygons.areas(upright) == pytest.approx([24, 24])
    assert polygons.bounds(upright).tolist() == [
        pytest.approx([7, 18, 13, 22]), pytest.approx([8, 17, 12, 23])
    ]  # fmt: skip
    # the x axis turns towards the y axis, which points down in a picture
    tilted = polygons.corners(np.asarray([[0, 0, 2, 0, np.pi / 4]]))[0]
    assert {(round(x, 3), round(y, 3)) for x, y in tilted} == {(0.707, 0.707), (-0.707, -0.707)}


@given(seed=st.integers(0, 10_000))
def test_upright_boxes_have_the_figures_of_the_task_detection(seed: int) -> None:
    """Without an angle, overlaps, areas and suppression are those of upright boxes."""
    random = np.random.default_rng(seed)
    upright = drawn_at_random(random, 12)
    upright[:, 4] = 0
    quads, corners = polygons.corners(upright), boxes.corners(upright)
    np.testing.assert_allclose(
        polygons.overlaps(quads, quads), boxes.overlaps(corners, corners), atol=1e-9
    )
    np.testing.assert_allclose(polygons.areas(quads), boxes.areas(corners))
    scores, classes = random.permutation(12) / 12, random.integers(0, 2, 12)
    assert np.array_equal(
        polygons.suppressed(quads, scores, classes, 0.3, 9),
        boxes.suppressed(corners, scores, classes, 0.3, 9),
    )


@given(seed=st.integers(0, 10_000), limit=st.sampled_from([0.0, 0.2, 0.7]))
def test_suppression_is_that_of_its_definition(seed: int, limit: float) -> None:
    """A box is kept if no kept one of its class with a higher score overlaps it."""
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 14))
    quads = polygons.corners(drawn_at_random(random, count) * [0.5, 0.5, 1, 1, 1])
    scores, classes = random.permutation(count) / 20, random.integers(0, 2, count)
    expected: list[int] = []
    for index in np.argsort(-scores):
        rivals = [one for one in expected if classes[one] == classes[index]]
        if not any(exact(quads[index], quads[one]) > limit for one in rivals):
            expected.append(int(index))
    assert polygons.suppressed(quads, scores, classes, limit, 20).tolist() == expected


def with_points(quads: np.ndarray) -> np.ndarray:
    return np.concatenate([quads, np.ones((len(quads), 4, 1))], axis=-1)


def by_definition(pictures: list[tuple[ap.Detections, Boxes]], threshold: float) -> float:
    """The average precision of one class, detection by detection, with exact overlaps."""
    best = [(score, number, index) for number, (found, _) in enumerate(pictures)
            for index, score in enumerate(found.scores)]  # fmt: skip
    taken = [set[int]() for _ in pictures]
    hits = []
    for _, number, index in sorted(best, reverse=True):
        found, truth = pictures[number]
        assert found.points is not None and truth.points is not None
        shared = [exact(found.points[index, :, :2], one[:, :2]) for one in truth.points]
        free = [i for i in range(len(shared)) if i not in taken[number] and shared[i] >= threshold]
        hits.append(bool(free))
        if free:
            taken[number].add(max(free, key=lambda i: shared[i]))
    right, total = np.cumsum(hits), sum(len(truth.classes) for _, truth in pictures)
    precision = right / np.arange(1, len(hits) + 1)
    recall = right / total
    values = [max((p for p, r in zip(precision, recall, strict=True) if r >= level), default=0.0)
              for level in np.linspace(0, 1, 101)]  # fmt: skip
    return float(np.mean(values))


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_that_of_its_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    pictures = []
    for _ in range(6):
        truth = drawn_at_random(random, int(random.integers(1, 5)))
        moved = truth + random.normal(0, [2, 2, 2, 2, 0.1], truth.shape)
        quads, found = polygons.corners(truth), polygons.corners(np.abs(moved))
        found = np.concatenate([found, polygons.corners(drawn_at_random(random, 2))])
        pictures.append((
            ap.Detections(polygons.bounds(found), random.random(len(found)),
                          np.zeros(len(found), int), with_points(found)),
            Boxes(np.zeros(len(quads), int), polygons.bounds(quads), polygons.areas(quads),
                  np.zeros(len(quads), bool), with_points(quads)),
        ))  # fmt: skip
    rows = np.stack([ap.matched(*one, 20, oriented.LIKENESS) for one in pictures])
    once = np.ones(len(pictures))
    half = detection.weighted(rows, overlap="50")(once)
    assert half == pytest.approx(by_definition(pictures, 0.5), abs=1e-9)
    assert 0 < half < 1
    whole = np.mean([by_definition(pictures, one) for one in ap.THRESHOLDS])
    assert detection.weighted(rows)(once) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("head", ["yolo", "yolo_nms"])
def test_heads_are_read_and_recognised(head: oriented.Head) -> None:
    turned = np.asarray([[60, 60, 40, 20, 0.5], [150, 90, 50, 10, -1.0], [151, 90, 50, 10, -1.0]])
    quads, classes = polygons.corners(turned[:2]), np.asarray([1, 0])
    # a picture of 400×200 pixels at a half, 10 pixels from the top
    frame = Frame.of((400, 200), (200, 100), (0, 10), (200, 120))
    place = frame.to_picture(quads)
    truth = Boxes(classes, polygons.bounds(place), polygons.areas(place), np.zeros(2, bool),
                  with_points(place))  # fmt: skip
    labels = frames.written(frame, truth, 3)[None]
    scores = np.asarray([[0, 0.9], [0.8, 0], [0.7, 0]])
    if head == "yolo":
        rows = np.zeros((40, 7))
        rows[3:6] = np.concatenate([turned[:, :4], scores, turned[:, 4:]], axis=1)
        output = rows.T
    else:
        kinds = scores.argmax(1)[:, None]
        output = np.concatenate([turned[:, :4], scores.max(1)[:, None], kinds, turned[:, 4:]], 1)
    for name in (head, "auto"):
        rows = oriented.score({"output0": output[None]}, labels, head=name)
        assert detection.weighted(rows)(np.ones(1)) == pytest.approx(1.0)
    (objects,) = oriented.drawn({"output0": output[None]}, labels)
    assert objects.right.all()
    # without suppression, the third one is there twice
    assert len(objects.found) == (2 if head == "yolo" else 3)
    assert np.allclose(objects.annotated[0].outline, quads[0])


def test_outputs_that_do_not_fit_are_refused() -> None:
    frame, labels = Frame.of((8, 8), (8, 8), (0, 0), (8, 8)), np.zeros((1, 1, 20))
    labels[0, 0, :8] = list(vars(frame).values())
    with pytest.raises(UnknownName):
        oriented.score({"y": np.zeros((1, 7, 40))}, labels, head="detr")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="three axes, this one 2"):
        oriented.score({"y": np.zeros((1, 7))}, labels)
    with pytest.raises(ValueError, match="7 numbers per box"):
        oriented.score({"y": np.zeros((1, 40, 8))}, labels, head="yolo_nms")
    found = replace(ap.Detections(np.zeros((1, 4)), np.ones(1), np.zeros(1, int)))
    with pytest.raises(ValueError, match="no corners"):
        oriented.LIKENESS.areas(found)
