"""The inputs and outputs of a graph: names, dtypes, shapes with named axes, arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

import ml_dtypes  # noqa: F401  from here on numpy knows bfloat16 by its name
import numpy as np

from optkit.facts.codec import from_json, later
from optkit.facts.errors import InputRefused

_PLUS = " + "
_CODES = ("int8", "uint8")  # of a cache

Feed = dict[str, np.ndarray]
"""Arrays of inputs (or outputs) by name; axis 0 is the batch, if the model has one."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype (numpy's name, e.g. "float32") and shape; a str dimension is a dynamic axis, or
    a sum of axes ("past_sequence + sequence")."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class InputSpec:
    """One input of a model as steps get it. `range`: the bounds of random values, both included."""

    info: TensorInfo
    range: tuple[float, float] | None = None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self.info), "shape": list(self.info.shape), "range": self.range}

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> Self:
        info = {name: value for name, value in row.items() if name != "range"}
        bounds = row.get("range")
        return cls(
            from_json(TensorInfo, info),
            None if bounds is None else from_json(tuple[float, float], bounds),
        )


@dataclass(frozen=True)
class AxisRange:
    """The smallest, the tuned and the largest size of one dynamic axis (a fixed size: all three are
    equal). If `min` is 0, the axis may be empty. All its sizes are multiples of `multiple`."""

    min: int
    opt: int
    max: int
    multiple: int = later(1)

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max and size % self.multiple == 0

    def nearest(self, size: float) -> int:
        """The nearest of the sizes; the size itself if no multiple is in the range."""
        of = self.multiple
        least, most = -(-self.min // of), self.max // of
        return min(max(round(size / of), least), most) * of if least <= most else round(size)


def axes_of(shape: Iterable[int | str]) -> tuple[str, ...]:
    """The axes in a shape, each once; a dimension may be a sum of axes: "past + new"."""
    terms = (term for dim in shape if isinstance(dim, str) for term in dim.split(_PLUS))
    return tuple(dict.fromkeys(term for term in terms if not term.isdecimal()))


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of one dimension, with these sizes of the axes. KeyError for an axis without a
    size."""
    if isinstance(dim, int):
        return dim
    return sum(int(term) if term.isdecimal() else sizes[term] for term in dim.split(_PLUS))


def with_sizes(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """The dimension, with these fixed sizes of axes. In a sum, the known number comes last."""
    free = [axis for axis in axes_of([dim]) if axis not in sizes]
    known = size_of(dim, {**dict.fromkeys(free, 0), **sizes})
    return _PLUS.join([*free, *([str(known)] if known else [])]) if free else known


def batch_axis(inputs: Iterable[TensorInfo]) -> int | str | None:
    """The axis that counts samples: axis 0 of the first input that has axes, as its name or its
    fixed size.

    None if no input has axes: then every feed is one sample.
    """
    return next((info.shape[0] for info in inputs if info.shape), None)


def batched(inputs: Collection[TensorInfo]) -> frozenset[str]:
    """The inputs whose axis 0 counts samples: those with the axis `batch_axis`."""
    axis = batch_axis(inputs)
    return frozenset(info.name for info in inputs if info.shape and info.shape[0] == axis)


def leading(array: np.ndarray, rows: int, axis: int) -> np.ndarray:
    """A view of the first rows along an axis."""
    return array[(slice(None),) * axis + (slice(rows),)]


def count_samples(feed: Feed) -> int:
    """The number of samples in a feed, whose arrays are in the order of the inputs, as in a
    spool."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def narrowed(feed: Feed, inputs: Iterable[TensorInfo]) -> Feed:
    """A feed of the FP32 graph for a graph in which the caches of a decoder are half precision or
    codes. Raises InputRefused for a cache that is not empty if the graph takes codes."""
    halves = {info.name: info.dtype for info in inputs if info.dtype in ("float16", "bfloat16")}
    whole = {**feed, **{name: feed[name].astype(halves[name]) for name in halves.keys() & feed}}
    for info in inputs:
        given = whole.get(info.name)
        if given is not None and given.dtype.kind == "f" and info.dtype in _CODES:
            if given.size:
                raise InputRefused(
                    "the graph stores this cache as codes, the samples have floats in it",
                    where=f"input {info.name!r}",
                    hint="give samples with an empty cache, or leave out quantization.kv_cache",
                )
            whole[info.name] = np.zeros((*given.shape[:-1], int(info.shape[-1])), info.dtype)
    return whole
