from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from optkit.craft.benchmarking import metrics
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data.packing import IGNORED, full, pack, pad, windows


@given(st.lists(st.integers(2, 99), max_size=70), st.integers(1, 17))
def test_packing_cuts_a_stream_into_whole_blocks(stream: list[int], length: int) -> None:
    whole = len(stream) // length
    assert list(pack(iter(stream), length)) == [
        stream[i * length : (i + 1) * length] for i in range(whole)
    ]


@given(
    st.lists(st.lists(st.integers(2, 99), max_size=9), min_size=1),
    st.sampled_from(["left", "right"]),
)
def test_padding_keeps_the_tokens_on_their_side(given: list[list[int]], side: str) -> None:
    made = pad(given, value=0, side=side)
    assert made.ids.shape[1] == max(1, *map(len, given), 0)
    for row, ids in enumerate(given):
        assert made.ids[row][made.mask[row] == 1].tolist() == ids
        edge = made.mask[row, -1 if side == "left" else 0]
        assert edge == bool(ids)


def test_a_feed_has_what_the_model_has() -> None:
    shape = ("batch", "sequence")
    made = pad([[5, 6, 7], [8]], value=0, side="left", segments=[[0, 0, 1], [0]])
    names = ("position_ids", "input_ids", "attention_mask", "token_type_ids", "past.0.key")
    inputs = {name: TensorInfo(name, "int32", shape) for name in names}
    feed = made.feed(inputs)
    assert list(feed) == list(names[:4]) and {a.dtype.name for a in feed.values()} == {"int32"}
    assert feed["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8]]
    assert feed["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert feed["token_type_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert feed["position_ids"].tolist() == [[0, 1, 2], [0, 0, 0]]
    only = {"tokens": TensorInfo("tokens", "int64", shape)}
    assert full([[3, 4]]).feed(only)["tokens"].tolist() == [[3, 4]]
    with pytest.raises(InputRefused, match="no input 'input_ids'"):
        full([[3, 4]]).feed({n: TensorInfo(n, "int64", shape) for n in ("a", "b")})


@given(
    st.lists(st.integers(0, 10), min_size=2, max_size=70), st.integers(2, 16), st.integers(1, 16)
)
def test_windows_score_each_token_once_with_the_context_they_promise(
    stream: list[int], length: int, stride: int
) -> None:
    stride = min(stride, length)
    scored: list[int] = []
    start = 0
    for ids, targets in windows(stream, length, stride):
        assert ids == stream[start : start + length]
        for place in np.flatnonzero(targets != IGNORED):
            assert targets[place] == stream[start + place + 1]
            scored.append(start + int(place) + 1)
            assert start == 0 or place + 1 >= length - stride
        start += stride
    unseen = range(length, len(stream), length) if stride == length else ()
    assert scored == [i for i in range(1, len(stream)) if i not in unseen]


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (16, 5), (16, 16), (40, 3), (97, 97)])
def test_perplexity_is_that_of_torch_over_the_same_windows(length: int, stride: int) -> None:
    """The loop of "Perplexity of fixed-length models", with a model that looks back one token."""
    random = np.random.default_rng(3)
    stream = random.integers(0, 50, 97).tolist()
    table = torch.from_numpy(random.standard_normal((50, 50)))
    total, count, seen = 0.0, 0, 0
    for start in range(0, len(stream), stride):
        stop = min(start + length, len(stream))
        ids = torch.tensor(stream[start:stop])
        wanted = ids.clone()
        wanted[: -(stop - seen)] = -100
        loss = functional.cross_entropy(table[ids][:-1], wanted[1:], reduction="sum")
        total, count, seen = total + float(loss), count + int((wanted[1:] != -100).sum()), stop
        if stop == len(stream):
            break
    rows = [
        metrics.surprise(
            table[torch.tensor([ids + [0] * (length - len(ids))])].numpy(), targets[None]
        )
        for ids, targets in windows(stream, length, stride)
    ]
    found = np.concatenate(rows)
    assert found[:, 1].sum() == count
    assert metrics.perplexity(found) == pytest.approx(float(np.exp(total / count)), rel=1e-12)


def test_padding_on_the_left_wants_a_mask() -> None:
    names = ("input_ids", "attention_mask")
    both = {name: TensorInfo(name, "int64", ("batch", "tokens")) for name in names}
    alone = {"input_ids": both["input_ids"]}
    left, right = (pad([[3, 4, 5], [6]], value=0, side=side) for side in ("left", "right"))
    assert left.feed(both)["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert right.feed(alone)["input_ids"].tolist() == [[3, 4, 5], [6, 0, 0]]
    assert pad([[3], [6]], value=0, side="left").feed(alone).keys() == {"input_ids"}
    with pytest.raises(InputRefused, match="padded on the left, and the model has no input") as no:
        left.feed(alone)
    assert "padding_side: right" in str(no.value.hint)
