"""Samples by their number of tokens, without the padding that all samples of a batch share.

    length 3   a b c . . .   ┐
    length 6   d e f g h i   │ in batches of two:   d e f g h i    a b c
    length 5   j k l m n .   │                      j k l m n .    o . .
    length 1   o . . . . .   ┘

No statistic and no comparison reads padding, but a run computes it. Texts that are padded to one
length may be half padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo, axes_of, batch_axis, batched
from optkit.ground.data.checking import rows_of
from optkit.ground.data.padding import mask_input, real_tokens
from optkit.ground.data.spool import Chosen, Spool

_WINDOW = 1024  # samples that are in memory and change places


def token_axis(inputs: Collection[TensorInfo]) -> str | None:
    """The axis along which padding may be cut: a named one that the mask of the tokens has, in a
    model that takes batches of any size.

    None if another input has it as a part of an axis ("past + new"), and if an input along it has
    no integers: features of a sound or a picture may be normalized with their padding.
    """
    mask = mask_input(inputs)
    axis = None if mask is None else mask.shape[1]
    if not isinstance(axis, str) or not isinstance(batch_axis(tuple(inputs)), str):
        return None
    along = [info for info in inputs if axis in axes_of(info.shape)]
    plain = all(axis in info.shape and _is_whole(info) for info in along)
    return axis if plain and axes_of([axis]) == (axis,) else None


def shortened(spool: Spool, size: int, least: int) -> Iterator[Chosen]:
    """All samples, in batches of `size`: of each `_WINDOW` samples the longest first. Padding
    behind the last token of a batch is cut, but `least` tokens remain. The spool has a
    `token_axis`."""
    axis, mask = token_axis(spool.inputs), mask_input(spool.inputs)
    assert axis is not None and mask is not None
    slices, groups, along = spool.slices(), spool.groups(), batched(spool.inputs)
    first = 0
    for feed, labels in spool.batches(_WINDOW):
        lengths = _lengths(feed, mask)
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            tokens = max(int(lengths[rows[0]]), least)
            yield (
                _cut(rows_of(feed, along, rows), spool.inputs, axis, tokens),
                None if labels is None else labels[rows],
                [slices[first + row] for row in rows] if slices else [],
                [groups[first + row] for row in rows] if groups else [],
            )
        first += len(order)


def _lengths(feed: Feed, mask: TensorInfo) -> np.ndarray:
    """The place after the last token of each sample."""
    real = real_tokens(feed, mask)
    if real is None:
        return np.full(len(feed[mask.name]), feed[mask.name].shape[1])
    behind = real[:, ::-1].argmax(axis=1)
    found: np.ndarray = np.where(real.any(axis=1), real.shape[1] - behind, real.shape[1])
    return found


def _cut(feed: Feed, inputs: Collection[TensorInfo], axis: str, tokens: int) -> Feed:
    kept = {
        info.name: tuple(slice(tokens if dim == axis else None) for dim in info.shape)
        for info in inputs
    }
    return {name: array[kept[name]] for name, array in feed.items()}


def _is_whole(info: TensorInfo) -> bool:
    return info.dtype == "bool" or info.dtype.startswith(("int", "uint"))
