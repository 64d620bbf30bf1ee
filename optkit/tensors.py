"""What goes into a graph and comes out of it: names, dtypes, shapes with named axes, arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  from here on numpy knows bfloat16 by its name
import numpy as np

_PLUS = " + "

Feed = dict[str, np.ndarray]
"""Input (or output) arrays by name; axis 0 is the batch where the model has one."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype (numpy's name, e.g. "float32") and shape; a str dimension is a dynamic axis, or
    a sum of axes ("past_sequence + sequence")."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class AxisRange:
    """min/opt/max of one dynamic axis (or a fixed size, all three equal). `min` 0: may be empty."""

    min: int
    opt: int
    max: int


def axes_of(shape: Iterable[int | str]) -> tuple[str, ...]:
    """The axes that a shape names, each once; a dimension may be a sum of them: "past + new"."""
    terms = (term for dim in shape if isinstance(dim, str) for term in dim.split(_PLUS))
    return tuple(dict.fromkeys(term for term in terms if not term.isdecimal()))


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of one dimension at these sizes of the axes. KeyError: an axis without one."""
    if isinstance(dim, int):
        return dim
    return sum(int(term) if term.isdecimal() else sizes[term] for term in dim.split(_PLUS))


def with_sizes(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """The dimension with these axes of a fixed size; of a sum, what is known stands behind."""
    free = [axis for axis in axes_of([dim]) if axis not in sizes]
    known = size_of(dim, {**dict.fromkeys(free, 0), **sizes})
    return _PLUS.join([*free, *([str(known)] if known else [])]) if free else known


def batch_axis(inputs: Iterable[TensorInfo]) -> int | str | None:
    """What counts samples: axis 0 of the first input that has axes, its name or its fixed size.

    None where no input has axes: every feed is one sample.
    """
    return next((info.shape[0] for info in inputs if info.shape), None)


def batched(inputs: Collection[TensorInfo]) -> frozenset[str]:
    """The inputs whose axis 0 counts samples: those that share `batch_axis`."""
    axis = batch_axis(inputs)
    return frozenset(info.name for info in inputs if info.shape and info.shape[0] == axis)


def count_samples(feed: Feed) -> int:
    """Samples in a feed whose arrays stand in the order of the inputs, as a spool yields them."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def narrowed(feed: Feed, inputs: Iterable[TensorInfo]) -> Feed:
    """A feed of the FP32 graph for its cast, which takes the caches of a decoder in half."""
    halves = {info.name: info.dtype for info in inputs if info.dtype in ("float16", "bfloat16")}
    return {**feed, **{name: feed[name].astype(halves[name]) for name in halves.keys() & feed}}
