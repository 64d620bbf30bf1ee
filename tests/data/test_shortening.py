"""Samples by length, without the padding that all samples of a batch share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.data import spool_writer
from optkit.ground.data.shortening import shortened, token_axis
from optkit.ground.data.spool import Spool

IDS = TensorInfo("input_ids", "int64", ("batch", "sequence"))
MASK = TensorInfo("attention_mask", "int64", ("batch", "sequence"))
BIAS = TensorInfo("bias", "int64", ("batch", 2, "sequence", "sequence"))
SOUND = TensorInfo("sound", "float32", ("batch", "sequence"))


@pytest.mark.parametrize(
    ("inputs", "axis"),
    [
        ((IDS, MASK), "sequence"),
        ((IDS, MASK, BIAS), "sequence"),
        ((IDS,), None),
        ((SOUND, MASK), None),
        ((TensorInfo("input_ids", "int64", ("batch", 8)), MASK), "sequence"),
        ((IDS, TensorInfo("attention_mask", "int64", ("batch", 8))), None),
        ((TensorInfo("input_ids", "int64", (4, "sequence")), MASK), None),
        ((IDS, TensorInfo("attention_mask", "int64", ("batch", "past + sequence"))), None),
        ((IDS, MASK, TensorInfo("key", "int64", ("batch", "past + sequence"))), None),
    ],
)
def test_padding_may_be_cut_along_a_named_axis_of_integers(
    inputs: tuple[TensorInfo, ...], axis: str | None
) -> None:
    assert token_axis(inputs) == axis


def padded(lengths: list[int], width: int) -> Feed:
    """Sample n has the tokens n·100, n·100 + 1, …"""
    ids = np.zeros((len(lengths), width), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = row * 100 + np.arange(length)
        mask[row, :length] = 1
    bias = np.broadcast_to(ids[:, None, None], (len(lengths), 2, width, width))
    return {"input_ids": ids, "attention_mask": mask, "bias": np.ascontiguousarray(bias)}


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    size=st.integers(1, 7),
    least=st.integers(1, 12),
)
def test_every_sample_stays_and_only_padding_goes(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, least: int
) -> None:
    place = tmp_path_factory.mktemp("spool")
    feed = padded(lengths, 9)
    labels, names = np.arange(len(lengths)), [f"slice {n}" for n in range(len(lengths))]
    spool_writer.write(
        [(feed, labels, names, names[::-1])], place, (IDS, MASK, BIAS), limit_samples=None,
        memory_bytes=1 << 24, progress=lambda *_: None,
    )  # fmt: skip
    batches = list(shortened(Spool(place), size, least))
    order = np.concatenate([labels for _, labels, *_ in batches if labels is not None])
    assert sorted(order) == list(range(len(lengths)))
    found = [lengths[number] for number in order]
    assert found == sorted(lengths, reverse=True)
    assert [name for _, _, some, _ in batches for name in some] == [names[n] for n in order]
    assert [name for *_, some in batches for name in some] == [names[-1 - n] for n in order]
    for cut, numbers, *_ in batches:
        assert numbers is not None and len(numbers) <= size
        longest = max(lengths[number] for number in numbers)
        # without a mask of zeros and ones nothing says what is padding
        sound = any(length < 9 for length in lengths)
        tokens = min(max(longest if sound else 9, least), 9)
        assert cut["input_ids"].shape[1] == tokens
        for name, array in cut.items():
            whole = feed[name][numbers]
            part = whole[..., :tokens, :tokens] if name == "bias" else whole[:, :tokens]
            np.testing.assert_array_equal(array, part)
            if name == "attention_mask":
                assert whole.sum() == array.sum()
