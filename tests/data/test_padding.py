"""Which axes of a value count tokens, and which of its elements are padding."""

from __future__ import annotations

import numpy as np
import pytest

from optkit.facts.tensors import TensorInfo
from optkit.ground.data.padding import TokenAxes, mask_input

NAMED = (
    TensorInfo("input_ids", "int64", ("batch", "sequence")),
    TensorInfo("attention_mask", "int64", ("batch", "sequence")),
)
FIXED = tuple(TensorInfo(info.name, info.dtype, (2, 6)) for info in NAMED)
DECODER = (
    TensorInfo("input_ids", "int64", ("batch", "new")),
    TensorInfo("attention_mask", "int64", ("batch", "past + new")),
    TensorInfo("past_key_values.0.key", "float32", ("batch", 2, "past", 4)),
)
MASK = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])


@pytest.mark.parametrize(
    ("inputs", "shape", "axes"),
    [
        (NAMED, ("batch", "sequence", 64), (1,)),
        (NAMED, ("batch", 2, "sequence", "sequence"), (2, 3)),
        (NAMED, ("batch", 64, "sequence"), (2,)),
        (NAMED, ("batch", "sequence"), (1,)),
        (NAMED, ("batch", 64), ()),
        (NAMED, (1, "sequence", 64), ()),
        (NAMED, ("batch", "other", 64), ()),
        (FIXED, (2, 6, 64), (1,)),
        (FIXED, (2, 2, 6, 6), (2,)),
        (FIXED, (2, 6), ()),
        (DECODER, ("batch", "new", 100), (1,)),
        (DECODER, ("batch", 2, "past + new", 4), (2,)),
    ],
)
def test_axes_that_count_tokens(
    inputs: tuple[TensorInfo, ...], shape: tuple[int | str, ...], axes: tuple[int, ...]
) -> None:
    tokens = TokenAxes.of(inputs)
    assert tokens is not None and tokens.axes(shape) == axes


@pytest.mark.parametrize("names", [("batch", "sequence", 3), ("made_up_0", "made_up_1", 3)])
def test_what_padding_hides_of_an_output(names: tuple[int | str, ...]) -> None:
    tokens = TokenAxes.of(NAMED)
    assert tokens is not None
    feed = {"input_ids": MASK, "attention_mask": MASK}
    hidden = tokens.hidden(feed, TensorInfo("y", "float32", names), (2, 6, 3))
    assert hidden is not None
    np.testing.assert_array_equal(hidden[:, :, 0], MASK == 0)
    pooled = TensorInfo("p", "float32", ("batch", 6))
    assert tokens.hidden(feed, pooled, (2, 6)) is None
    whole = {"input_ids": MASK, "attention_mask": np.ones_like(MASK)}
    assert tokens.hidden(whole, TensorInfo("y", "float32", names), (2, 6, 3)) is None


def test_scores_are_hidden_by_query_and_by_key() -> None:
    tokens = TokenAxes.of(NAMED)
    assert tokens is not None
    scores = TensorInfo("s", "float32", ("batch", 2, "sequence", "sequence"))
    hidden = tokens.hidden({"attention_mask": MASK}, scores, (2, 2, 6, 6))
    assert hidden is not None
    real = MASK[:, :, None] * MASK[:, None, :]
    np.testing.assert_array_equal(np.broadcast_to(hidden, (2, 2, 6, 6))[:, 0], real == 0)


def test_new_tokens_are_the_last_of_a_decoder_s_mask() -> None:
    tokens = TokenAxes.of(DECODER)
    assert tokens is not None
    past = np.zeros((2, 2, 4, 4), np.float32)
    feed = {"input_ids": MASK[:, :2], "attention_mask": MASK, "past_key_values.0.key": past}
    np.testing.assert_array_equal(tokens.real(feed, "new"), MASK[:, 4:] == 1)
    np.testing.assert_array_equal(tokens.real(feed, "past"), MASK[:, :4] == 1)
    np.testing.assert_array_equal(tokens.real(feed, "past + new"), MASK == 1)


def test_what_is_no_mask_hides_nothing() -> None:
    tokens = TokenAxes.of(NAMED)
    assert tokens is not None
    hidden = TensorInfo("y", "float32", ("batch", "sequence", 3))
    assert tokens.hidden({"attention_mask": 2 * MASK}, hidden, (2, 6, 3)) is None
    assert tokens.hidden({"attention_mask": 0 * MASK}, hidden, (2, 6, 3)) is None


@pytest.mark.parametrize("name", ["key_padding_mask", "labels_mask", "encoder_attention_mask"])
def test_masks_of_other_meanings_are_not_taken(name: str) -> None:
    assert mask_input([TensorInfo(name, "int64", ("batch", "sequence"))]) is None


FRAMES = (
    TensorInfo("features", "float32", ("batch", "t", 8)),
    TensorInfo("attention_mask", "int64", ("batch", "t")),
)


@pytest.mark.parametrize(
    ("dim", "places"), [("(t - 1)//2 + 1", (2, 3)), ("t//3", (1, 1)), ("2*t", (6, 10))]
)
def test_strided_outputs_hide_what_tokens_alone_do_not_have(
    dim: str, places: tuple[int, int]
) -> None:
    tokens = TokenAxes.of(FRAMES)
    assert tokens is not None
    feed = {"features": np.zeros((2, 6, 8), np.float32), "attention_mask": MASK}
    size = {"(t - 1)//2 + 1": 3, "t//3": 2, "2*t": 12}[dim]
    hidden = tokens.hidden(feed, TensorInfo("y", "float32", ("batch", dim, 5)), (2, size, 5))
    assert hidden is not None
    np.testing.assert_array_equal(~hidden[..., 0], np.arange(size) < np.array(places)[:, None])
    left = {**feed, "attention_mask": MASK[:, ::-1]}  # strides do not start at the tokens
    assert tokens.hidden(left, TensorInfo("y", "float32", ("batch", dim, 5)), (2, size, 5)) is None


@pytest.mark.parametrize("dim", ["windows", "(u - 1)//2 + 1", "batch size"])
def test_other_sizes_hide_nothing(dim: str) -> None:
    tokens = TokenAxes.of(FRAMES)
    assert tokens is not None
    feed = {"features": np.zeros((2, 6, 8), np.float32), "attention_mask": MASK}
    assert tokens.hidden(feed, TensorInfo("y", "float32", ("batch", dim, 5)), (2, 3, 5)) is None


@pytest.mark.parametrize("first", ["key_padding_mask", "src_key_padding_mask"])
def test_true_is_padding_in_the_masks_of_torch(first: str) -> None:
    inputs = (
        TensorInfo("x", "float32", ("batch", "s", 8)),
        TensorInfo(first, "bool", ("batch", "s")),
    )
    assert mask_input(inputs) is None
    tokens = TokenAxes.of(inputs)
    assert tokens is not None
    feed = {"x": np.zeros((2, 6, 8), np.float32), first: MASK == 0}
    hidden = tokens.hidden(feed, TensorInfo("y", "float32", ("batch", "s", 8)), (2, 6, 8))
    assert hidden is not None
    np.testing.assert_array_equal(hidden[..., 0], MASK == 0)
    target = TensorInfo("tgt_key_padding_mask", "bool", ("batch", "t"))
    both = TokenAxes.of((*inputs, target))
    assert both is not None and both.mask == target
