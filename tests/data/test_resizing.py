"""Samples at other sizes of the axes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, InputSpec, TensorInfo, size_of
from optkit.ground.data.resizing import resized, sizes_of, unchangeable


def spec(name: str, dtype: str, *shape: int | str, range: tuple[float, float] | None = None) -> (
    InputSpec
):  # fmt: skip
    return InputSpec(TensorInfo(name, dtype, shape), range)


IDS = spec("input_ids", "int64", "batch", "sequence", range=(0, 99))
MASK = spec("attention_mask", "int64", "batch", "sequence")
TEXT = (IDS, MASK, spec("token_type_ids", "int64", "batch", "sequence"),
        spec("position_ids", "int64", "batch", "sequence", range=(0, 511)))  # fmt: skip


def text(rows: int, width: int, *, left: bool, seed: int) -> Feed:
    """Ids 1 to 99 where a token is, 0 for padding."""
    random = np.random.default_rng(seed)
    real = np.arange(width) < random.integers(1, width + 1, (rows, 1))
    real = real[:, ::-1] if left else real
    mask = real.astype(np.int64)
    return {
        "input_ids": random.integers(1, 100, (rows, width)) * mask,
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (rows, width)),
        "position_ids": np.maximum(np.cumsum(mask, axis=1) - 1, 0),
    }


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 20),
    new=st.integers(1, 300),
    count=st.integers(1, 9),
    left=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_texts_hold_only_real_tokens_at_every_length(
    rows: int, width: int, new: int, count: int, left: bool, seed: int
) -> None:
    feed = text(rows, width, left=left, seed=seed)
    made = resized(feed, TEXT, {"batch": count, "sequence": new})
    assert {name: (a.shape, a.dtype) for name, a in made.items()} == {
        one.info.name: ((count, new), feed[one.info.name].dtype) for one in TEXT
    }
    if new == width:  # nothing to change
        rows_taken = np.arange(count) % rows
        assert all(np.array_equal(made[name], feed[name][rows_taken]) for name in feed)
        return
    assert made["attention_mask"].all()
    assert (made["position_ids"] == np.arange(new)).all()
    for row in range(count):
        ids = feed["input_ids"][row % rows]
        real = ids[feed["attention_mask"][row % rows] == 1]
        assert (made["input_ids"][row] == np.resize(real, new)).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_declared_shapes_hold_and_values_come_from_the_sample(data: st.DataObject) -> None:
    sizes = {axis: data.draw(st.integers(1, 12)) for axis in ("n", "t", "past", "h", "w")}
    new = {axis: data.draw(st.integers(1, 40)) for axis in sizes if data.draw(st.booleans())}
    specs = (
        spec("x", "float32", "n", "t", 3),
        spec("mask", "bool", "n", "past + t"),
        spec("key", "float32", "n", 2, "past", 3),
        spec("picture", data.draw(st.sampled_from(["float32", "uint8"])), "n", "h", "w", 3),
        spec("alone", "float32", "t"),
    )
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    feed = {
        one.info.name: (random.random([size_of(dim, sizes) for dim in one.info.shape]) * 99).astype(
            one.info.dtype
        )
        for one in specs
    }
    assert sizes_of(feed, [one.info for one in specs]) == sizes
    made = resized(feed, specs, new)
    for one in specs:
        name, array = one.info.name, made[one.info.name]
        assert array.shape == tuple(size_of(dim, sizes | new) for dim in one.info.shape)
        assert array.dtype == feed[name].dtype
        assert np.isin(array, feed[name]).all()
    if not new:
        assert all(np.array_equal(made[name], feed[name]) for name in feed)


def test_a_mask_of_padding_and_features_stay_together() -> None:
    specs = (spec("x", "float32", "n", "t", 1), spec("key_padding_mask", "bool", "n", "t"))
    feed = {
        "x": np.array([[[1], [2], [0], [0]], [[3], [4], [5], [0]]], np.float32),
        "key_padding_mask": np.array([[0, 0, 1, 1], [0, 0, 0, 1]], bool),
    }
    made = resized(feed, specs, {"t": 5})
    assert made["x"][..., 0].tolist() == [[1, 2, 1, 2, 1], [3, 4, 5, 3, 4]]
    assert not made["key_padding_mask"].any()


def test_pictures_are_cropped_in_the_middle_and_mirrored() -> None:
    specs = (spec("image", "float32", "n", 1, "h", "w"),)
    feed = {"image": np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)}
    made = resized(feed, specs, {"h": 2, "w": 8})["image"][0, 0]
    assert made.tolist() == [[6, 7, 8, 9, 10, 11, 11, 10], [12, 13, 14, 15, 16, 17, 17, 16]]


@pytest.mark.parametrize("new", [1, 3, 9])
def test_a_causal_mask_stays_causal(new: int) -> None:
    specs = (spec("x", "float32", "t", 2), spec("bias", "float32", 1, "t", "t"))
    causal = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    feed = {"x": np.zeros((4, 2), np.float32), "bias": causal[None]}
    made = resized(feed, specs, {"t": new})["bias"]
    np.testing.assert_array_equal(made[0], np.triu(np.full((new, new), -np.inf, np.float32), 1))


def test_lengths_change_with_their_axis() -> None:
    specs = (spec("x", "float32", "n", "t", 2), spec("x_lengths", "int64", "n"))
    feed = {"x": np.zeros((3, 8, 2), np.float32), "x_lengths": np.array([8, 4, 1])}
    assert resized(feed, specs, {"t": 64})["x_lengths"].tolist() == [64, 32, 8]
    assert resized(feed, specs, {"t": 2})["x_lengths"].tolist() == [2, 1, 1]


def test_positions_stay_in_their_range() -> None:
    specs = (spec("x", "float32", "n", "t"), spec("pos", "int64", "t", range=(0, 5)))
    feed = {"x": np.zeros((1, 3), np.float32), "pos": np.array([2, 3, 4])}
    assert resized(feed, specs, {"t": 6})["pos"].tolist() == [2, 3, 4, 5, 0, 1]


def test_an_axis_that_other_numbers_count_along_is_not_cut() -> None:
    specs = (spec("x", "float32", "nodes", 4), spec("edges", "int64", 2, "edge"))
    feed: Feed = {"x": np.zeros((5, 4), np.float32), "edges": np.array([[0, 4], [1, 2]])}
    assert resized(feed, specs, {"nodes": 9})["x"].shape == (9, 4)
    assert "'edges'" in unchangeable(feed, specs, {"nodes": 4})["nodes"]
    with pytest.raises(InputRefused, match="may count along it"):
        resized(feed, specs, {"nodes": 4})
    ranged = (specs[0], spec("edges", "int64", 2, "edge", range=(0, 1)))
    assert not unchangeable(feed, ranged, {"nodes": 4})


def test_an_empty_cache_stays_empty() -> None:
    specs = (spec("ids", "int64", "n", "t"), spec("mask", "int64", "n", "past + t"),
             spec("key", "float32", "n", "past", 2))  # fmt: skip
    feed = {"ids": np.ones((1, 3), np.int64), "mask": np.ones((1, 3), np.int64),
            "key": np.zeros((1, 0, 2), np.float32)}  # fmt: skip
    assert unchangeable(feed, specs, {"past": 4}) == {"past": "it is empty in the sample"}
    made = resized(feed, specs, {"t": 7})
    assert {name: a.shape for name, a in made.items()} == {
        "ids": (1, 7), "mask": (1, 7), "key": (1, 0, 2)
    }  # fmt: skip


@pytest.mark.parametrize("at", [0.0, 0.25, 1.0])
def test_smaller_samples_are_taken_at_a_place(at: float) -> None:
    feed = text(2, 20, left=False, seed=3)
    feed["attention_mask"][:] = 1
    first = round(15 * at)
    made = resized(feed, TEXT, {"sequence": 5}, at=at)["input_ids"]
    np.testing.assert_array_equal(made, feed["input_ids"][:, first : first + 5])
    picture: Feed = {"image": np.arange(40, dtype=np.float32).reshape(1, 1, 2, 20)}
    own = (spec("image", "float32", "n", 1, "h", "w"),)
    cut = resized(picture, own, {"w": 5}, at=at)["image"]
    np.testing.assert_array_equal(cut, picture["image"][..., first : first + 5])
