"""Masks, positions and empty caches: completed in samples that lack them, and plausible in random
ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground.data import sequences, spool, spool_writer, synthetic

ALL = "past + new"
INPUTS = {
    "input_ids": TensorInfo("input_ids", "int64", ("batch", "new")),
    "attention_mask": TensorInfo("attention_mask", "int64", ("batch", ALL)),
    "position_ids": TensorInfo("position_ids", "int64", ("batch", "new")),
    "past.key": TensorInfo("past.key", "float32", ("batch", 2, "past", 4)),
}


def completed(**feed: np.ndarray) -> dict[str, np.ndarray]:
    return sequences.completed({k.replace("_key", ".key"): v for k, v in feed.items()}, INPUTS,
                               ["past"])  # fmt: skip


def written(tmp_path: Path, feed: dict[str, np.ndarray], optional: list[str]) -> spool.Spool:
    spool_writer.write([feed], tmp_path, list(INPUTS.values()), limit_samples=None,
                memory_bytes=1 << 20, progress=lambda what, done: None,
                optional=optional)  # fmt: skip
    return spool.Spool(tmp_path)


def test_ids_alone_become_a_prefill() -> None:
    found = completed(input_ids=np.array([[5, 6, 7], [8, 9, 3]]))
    assert found["attention_mask"].tolist() == [[1, 1, 1]] * 2
    assert found["position_ids"].tolist() == [[0, 1, 2]] * 2
    assert found["past.key"].shape == (2, 2, 0, 4)
    assert {name: array.dtype.name for name, array in found.items()} == {
        name: info.dtype for name, info in INPUTS.items()
    }


def test_states_before_the_first_token_are_zero() -> None:
    state = TensorInfo("past_conv.0", "float32", ("batch", 6, 3))
    given = {"input_ids": np.array([[5, 6, 7], [8, 9, 3]])}
    found = sequences.completed(given, {**INPUTS, state.name: state}, ["past"])
    np.testing.assert_array_equal(found[state.name], np.zeros((2, 6, 3), np.float32))


def test_positions_count_from_the_first_token_behind_the_padding() -> None:
    found = completed(input_ids=np.zeros((2, 4)), attention_mask=np.array([[0, 0, 1, 1], [1] * 4]))
    assert found["position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_with_a_cache_the_positions_go_on() -> None:
    found = completed(
        input_ids=np.zeros((2, 1)),
        attention_mask=np.array([[0, 1, 1, 1], [1, 1, 1, 1]]),
        past_key=np.zeros((2, 2, 3, 4), np.float32),
    )
    assert found["position_ids"].tolist() == [[2], [3]]


def test_a_cache_alone_gives_the_mask_its_length() -> None:
    found = completed(input_ids=np.zeros((1, 2)), past_key=np.zeros((1, 2, 3, 4), np.float32))
    assert found["attention_mask"].shape == (1, 5)
    assert found["position_ids"].tolist() == [[3, 4]]


def test_what_is_given_stays_and_what_follows_from_nothing_stays_missing() -> None:
    given_mask = np.array([[1, 0, 1]])
    found = completed(input_ids=np.array([[1, 2, 3]]), attention_mask=given_mask)
    assert found["attention_mask"] is given_mask
    assert "input_ids" not in completed(attention_mask=given_mask)
    assert sequences.completed({}, {"x": TensorInfo("x", "float32", ("batch", 3))}, []) == {}


def test_a_spool_keeps_the_completed_feed(tmp_path: Path) -> None:
    (feed, _), *_ = written(tmp_path, {"input_ids": np.array([[1, 2], [3, 4]])}, ["past"])
    assert feed["past.key"].shape == (2, 2, 0, 4)
    assert feed["attention_mask"].tolist() == [[1, 1], [1, 1]]
    one, *_ = written(tmp_path / "b", {"input_ids": np.array([[1, 2]] * 3)}, ["past"]).batches(2)
    assert one[0]["past.key"].shape == (2, 2, 0, 4)


def test_an_axis_is_empty_only_where_it_may_be(tmp_path: Path) -> None:
    ids = np.array([[1, 2]])
    full = completed(input_ids=ids)
    with pytest.raises(InputRefused, match=r"'past\.key' is empty"):
        written(tmp_path, full, [])
    with pytest.raises(InputRefused, match=r"lacks input 'past\.key'"):
        written(tmp_path, {"input_ids": ids, "attention_mask": ids, "position_ids": ids}, [])


def test_a_sum_of_axes_is_checked(tmp_path: Path) -> None:
    feed = completed(input_ids=np.array([[1, 2]])) | {"attention_mask": np.array([[1, 1, 1]])}
    with pytest.raises(InputRefused, match="'past' is 0 and 'new' is 2") as caught:
        written(tmp_path, feed, ["past"])
    assert "'attention_mask' is 3" in caught.value.message


@given(batch=st.integers(1, 5), past=st.integers(0, 9), new=st.integers(1, 9),
       seed=st.integers(0, 99))  # fmt: skip
def test_masks_of_decoders_are_of_left_padding(batch: int, past: int, new: int, seed: int) -> None:
    specs = [InputSpec(info, (0, 96)) for info in INPUTS.values()]
    feed = synthetic.random_feed(specs, {"batch": batch, "past": past, "new": new}, seed)
    mask, positions = feed["attention_mask"], feed["position_ids"]
    assert mask.shape == (batch, past + new)
    assert (np.diff(mask, axis=1) >= 0).all()  # zeros, then ones
    assert mask[:, -1].all()
    assert (mask[0] == 0).any() or past + new == 1
    expected = [[max(int(row[: past + i + 1].sum()) - 1, 0) for i in range(new)] for row in mask]
    assert positions.tolist() == expected
    assert feed["past.key"].shape == (batch, 2, past, 4)


def test_without_positions_random_masks_are_of_right_padding() -> None:
    specs = [InputSpec(INPUTS[name], (0, 96)) for name in ("input_ids", "attention_mask")]
    mask = synthetic.random_feed(specs, {"batch": 3, "past": 0, "new": 6}, 0)["attention_mask"]
    assert mask.tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]


def test_no_random_mask_over_an_encoder_hides_all_of_it() -> None:
    info = TensorInfo("encoder_attention_mask", "int64", ("batch", "tokens"))
    specs = [InputSpec(info, (0, 1))]
    for tokens, wanted in ((1, [[1], [1]]), (4, [[1, 1, 1, 0], [1, 1, 0, 0]])):
        feed = synthetic.random_feed(specs, {"batch": 2, "tokens": tokens}, 0)
        assert feed[info.name].tolist() == wanted


def test_a_mask_of_floats_is_left_as_it_was_drawn() -> None:
    spec = InputSpec(TensorInfo("attention_mask", "float32", ("batch", 6)))
    feed = synthetic.random_feed([spec], {"batch": 2}, 0)
    assert len(np.unique(feed["attention_mask"])) == 12
