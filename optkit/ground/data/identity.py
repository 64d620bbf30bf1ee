"""Which samples are equal: a digest of each, exact or without its padding.

    tokens    7 8 9 · ·        · · 7 8 9        7 8 9
    mask      1 1 1 0 0        0 0 1 1 1        1 1 1        one sample with different padding

The exact digest identifies the data that was used. The other one recognises a sample that serves
two purposes, with any padding on either side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo, axes_of
from optkit.ground.data.checking import count_of
from optkit.ground.data.sequences import MASK


def sample_digests(feed: Feed, batched: Collection[str]) -> list[str]:
    """One sha256 per sample, over its inputs' names, dtypes, shapes and bytes."""
    return [digest(sample) for sample in samples(feed, batched)]


def samples(feed: Feed, batched: Collection[str]) -> Iterator[Feed]:
    """The samples of a feed, one by one, without the batch axis of the inputs `batched`."""
    for index in range(count_of(feed, batched)):
        yield {name: a[index] if name in batched else a for name, a in feed.items()}


def digest(sample: Feed) -> str:
    """sha256 over names, dtypes, shapes and bytes, in hex."""
    hasher = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        hasher.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def unpadded(sample: Feed, inputs: Mapping[str, TensorInfo]) -> Feed:
    """A sample without the positions that an attention mask (of zeros and ones) hides. They are
    removed from the mask, and from every input along the axis of the mask. Returns the same object
    if there are none.

    `inputs` gives the names of the axes: the mask of a decoder also counts its cache
    ("past_sequence + sequence"), which must be empty. Positions without a mask are data.
    """
    bare = sample
    for name, mask in sample.items():
        if not name.endswith(MASK) or mask.ndim != 1 or not np.isin(mask, (0, 1)).all():
            continue
        if not mask.all():
            of = inputs[name].shape[-1]
            bare = {n: _cut(bare[n], inputs[n], of, mask.astype(bool)) for n in sample}
    return bare


def _cut(array: np.ndarray, info: TensorInfo, of: int | str, real: np.ndarray) -> np.ndarray:
    """`array` without the hidden positions, along its first axis that belongs to the mask."""
    for axis, dim in enumerate(info.shape[len(info.shape) - array.ndim :]):
        shared = dim == of or set(axes_of([dim])) & set(axes_of([of]))
        if shared and array.shape[axis] == len(real):
            return np.compress(real, array, axis)
    return array
