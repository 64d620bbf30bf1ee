"""What a report draws of a picture: the objects that each model finds, in the pixels of its
input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking import average_precision as ap
from optkit.craft.benchmarking import boxes, detection, masks
from optkit.craft.benchmarking.drawings import Objects, Regions, Shape, changed
from optkit.ground.data.frames import Boxes, Frame, written
from tests.benchmarking.test_average_precision import found_in, rows_of, truth_of


@given(seed=st.integers(0, 10_000))
def test_a_detection_gets_a_free_box_of_its_class_that_overlaps_by_half(seed: int) -> None:
    """The partners are those that count as right at the threshold of 0.5."""
    random = np.random.default_rng(seed)
    truth = truth_of(random, 2)
    found = found_in(random, truth, 2)
    partners = ap.partners(found, truth)
    matched = partners >= 0
    assert (truth.classes[partners[matched]] == found.classes[matched]).all()
    shared = boxes.overlaps(found.corners, truth.corners, truth.crowd)
    assert (shared[np.flatnonzero(matched), partners[matched]] >= 0.5).all()
    single = partners[matched][~truth.crowd[partners[matched]]]
    assert len(single) == len(set(single.tolist()))
    rows = ap.matched(found, truth, len(partners) + len(truth.classes))
    right = (rows[:, 1] >= 0) & (rows[:, 2] % 3 == 1)
    assert len(single) == right.sum()


def test_the_metric_of_a_picture_alone_is_that_of_a_data_set_with_this_picture() -> None:
    random = np.random.default_rng(2)
    truths = [truth_of(random, 3) for _ in range(8)]
    rows = rows_of([(found_in(random, truth, 3), truth) for truth in truths])
    values = detection.each(rows, overlap="50")
    for value, row, truth in zip(values, rows, truths, strict=True):
        single = ap.precision(row[None], thresholds=slice(0, 1))(np.ones(1))
        assert value == (single if (~truth.crowd).any() else 0.0)
    assert len({*values.tolist()}) > 4


def test_boxes_are_drawn_where_they_lie_in_the_input() -> None:
    """A picture of 200×100 pixels is letterboxed into 50×50: at a quarter, 12 pixels from the
    top."""
    frame = Frame.of((200, 100), (50, 25), (0, 12), (50, 50))
    truth = Boxes(
        np.asarray([1, 0, 1]), np.asarray([[40, 20, 80, 60], [0, 0, 20, 20], [100, 0, 200, 100.0]]),
        np.asarray([1600.0, 400, 10_000]), np.asarray([False, False, True]),
    )  # fmt: skip
    outputs = {
        "boxes": np.asarray([[[10, 17, 20, 27], [26, 13, 30, 30], [30, 14, 45, 20], [0, 0, 9, 9]]]),
        "scores": np.asarray([[0.9, 0.8, 0.7, 0.2]]),
        "labels": np.asarray([[1, 1, 0, 0]]),
    }
    (objects,) = detection.drawn(outputs, written(frame, truth, 4)[None])
    assert [one.kind for one in objects.annotated] == [1, 0]  # a crowd is no single object
    assert objects.annotated[0].outline.tolist() == [[10, 17], [20, 17], [20, 27], [10, 27]]
    # the second detection lies in the crowd, the last one is not sure enough
    assert [one.kind for one in objects.found] == [1, 0]
    assert objects.partners.tolist() == [0, -1] and objects.right.tolist() == [True, False]


def objects(partners: list[int], annotated: int = 3) -> Objects:
    shape = (Shape(0, np.asarray([[0, 0], [4, 0], [4, 4.0]])),)
    return Objects(shape * annotated, shape * len(partners), np.ones(len(partners)),
                   np.asarray(partners), 0.25)  # fmt: skip


def test_lost_and_gained_are_those_of_single_objects_and_pixels() -> None:
    assert changed(objects([0, 1, -1]), objects([2, 1])) == (1, 1)
    assert changed(objects([]), objects([0, 1, 2])) == (0, 3)
    right, counts = np.asarray([[1, 1, 0, 1]], bool), np.asarray([[1, 1, 1, 0]], bool)
    before, after = Regions(right, counts), Regions(~right, counts)
    assert changed(before, after) == (2, 1)


@pytest.mark.parametrize("measure", ["miou", "dice"])
def test_masks_have_a_metric_of_each_picture(measure: masks.Measure) -> None:
    random = np.random.default_rng(1)
    found, truth = random.integers(0, 3, (2, 5, 6, 7))
    truth[3] = 255
    values = masks.alone(masks.overlaps(found, truth, 3, 255), measure)
    assert values[3] == 0
    whole = []
    for kind in np.unique(np.concatenate([found[0], truth[0]])):
        both, ours, theirs = ((a == kind).sum() for a in (found[0], found[0], truth[0]))
        both = ((found[0] == kind) & (truth[0] == kind)).sum()
        whole.append(both / (ours + theirs - both) if measure == "miou"
                     else 2 * both / (ours + theirs))  # fmt: skip
    assert values[0] == pytest.approx(np.mean(whole))
