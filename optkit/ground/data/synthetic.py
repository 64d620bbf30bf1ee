"""Random values for a model's inputs that are plausible for its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from optkit.facts.tensors import Feed, size_of
from optkit.ground.data import mask_styles, sequences

if TYPE_CHECKING:
    from optkit.facts.tensors import InputSpec


def random_feed(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> Feed:
    """Seeded random values for each input at these axis sizes, the same on every machine.

    Floats are standard normal, or uniform in the range of the input. Integers are uniform in the
    range, including both ends, else 0 or 1. Masks and positions are like those of a tokenizer; each
    row of a mask has a token.
    """
    random = np.random.default_rng(seed)
    feed = {}
    for spec in specs:
        shape = tuple(size_of(dim, sizes) for dim in spec.info.shape)
        dtype = np.dtype(spec.info.dtype)
        values: np.ndarray
        if dtype.kind != "f":
            low, high = spec.range or (0, 1)
            values = random.integers(int(low), int(high), shape, endpoint=True)
        elif spec.range is None:
            values = np.asarray(random.standard_normal(shape))
        else:
            values = np.asarray(random.uniform(*spec.range, shape))
        feed[spec.info.name] = np.asarray(values, dtype)
    return sequences.plausible(mask_styles.with_tokens(feed, specs))
