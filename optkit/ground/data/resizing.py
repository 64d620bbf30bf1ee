"""Samples at other sizes of the axes: each number of the new sample is one of the sample, except
counts (positions, lengths), which are counted again.

    tokens     a b c . → 6    a b c a b c         real tokens again and again; less: the first ones
    pictures   a b c   → 7    a b c c b a a       mirrored at the end; less: the middle
    features   a b c   → 7    a b c c b a a       mirrored at the end; less: the first ones
    samples    rows again and again; less: the first ones

An axis that several inputs have changes in all of them in the same way, so a mask says of each
token what it said before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, InputSpec, TensorInfo, axes_of, batch_axis

_PLUS = " + "
_POSITIONS = re.compile(r"(^|[._/])(cache_)?pos(ition)?s?(_ids)?$")
_LENGTHS = re.compile(r"len(gth)?s?$|(^|[._/])num_(frames|tokens)$")


def resized(
    feed: Feed, specs: Sequence[InputSpec], sizes: Mapping[str, int], *, at: float | None = None
) -> Feed:
    """The feed with these sizes of named axes; axes that are not in `sizes` keep theirs. `specs`:
    the inputs, of which all are in the feed; integers remain in their ranges. `at`: where a
    smaller size takes its places, from 0, the first ones, to 1, the last ones; None: see above.

    Raises InputRefused for an axis that is `unchangeable`.
    """
    for axis, reason in unchangeable(feed, specs, sizes).items():
        raise InputRefused(f"it cannot have the size {sizes[axis]}: {reason}", where=f"axis {axis}")
    old = sizes_of(feed, [spec.info for spec in specs])
    changed = {axis: n for axis, n in sizes.items() if old.get(axis, n) != n}
    change = _Change(feed, specs, old, changed, at)
    return {spec.info.name: change.of(spec) for spec in specs}


def unchangeable(
    feed: Feed, specs: Sequence[InputSpec], sizes: Mapping[str, int]
) -> dict[str, str]:
    """Those of the axes that cannot have these sizes → the reason."""
    old = sizes_of(feed, [spec.info for spec in specs])
    found = {}
    for axis, new in sizes.items():
        if axis not in old:
            found[axis] = "no input shows how long it is"
        elif not old[axis] and new:
            found[axis] = "it is empty in the sample"
        elif (name := _counted_along(feed, specs, axis, new, old[axis])) is not None:
            found[axis] = (
                f"the numbers of input {name!r} may count along it; declare the input's range if "
                f"they do not"
            )
    return found


def sizes_of(feed: Feed, inputs: Sequence[TensorInfo]) -> dict[str, int]:
    """The sizes of the named axes in a feed; of a sum ("past + sequence") the part that no other
    input shows."""
    dims = [
        (dim, size)
        for info in inputs
        for dim, size in zip(info.shape, feed[info.name].shape, strict=True)
        if isinstance(dim, str)
    ]
    found = {dim: size for dim, size in dims if axes_of([dim]) == (dim,)}
    for dim, size in dims:
        unknown = [axis for axis in axes_of([dim]) if axis not in found]
        if len(unknown) == 1:
            rest = (t for t in dim.split(_PLUS) if t != unknown[0])
            found[unknown[0]] = size - sum(int(t) if t.isdecimal() else found[t] for t in rest)
    return found


class _Change:
    """The change of one feed. `old`: the sizes of its axes; `new`: those that change."""

    def __init__(
        self,
        feed: Feed,
        specs: Sequence[InputSpec],
        old: Mapping[str, int],
        new: Mapping[str, int],
        at: float | None,
    ) -> None:
        self._feed, self._old, self._new, self._at = feed, old, new, at
        self._batch = _samples_axis([spec.info for spec in specs])
        self._places = {axis: self._place(axis, specs) for axis in new if axis != self._batch}
        if self._batch is not None and self._batch in new:
            self._places[self._batch] = np.arange(new[self._batch]) % old[self._batch]

    def of(self, spec: InputSpec) -> np.ndarray:
        """One input."""
        info, array = spec.info, self._feed[spec.info.name]
        dims = info.shape
        inner = [at for at, dim in enumerate(dims) if dim in self._places and dim != self._batch]
        if _counts(info, _LENGTHS):
            array = self._lengths(array)
        if len(inner) == 2 and dims[inner[0]] == dims[inner[1]] and _is_banded(array, inner):
            array = _banded(array, inner, self._new[str(dims[inner[0]])])
        elif inner == [len(dims) - 1] and _counts(info, _POSITIONS):
            array = self._positions(spec, array)
        else:
            for at, dim in enumerate(dims):
                if at or dim != self._batch:
                    array = self._taken(array, info, at, dim)
        return self._taken(array, info, 0, dims[0]) if self._is_batched(info) else array

    def _is_batched(self, info: TensorInfo) -> bool:
        return bool(info.shape) and info.shape[0] == self._batch

    def _taken(self, array: np.ndarray, info: TensorInfo, at: int, dim: int | str) -> np.ndarray:
        """The array with the places along one of its axes, `dim`."""
        if isinstance(dim, int) or not self._places.keys() & set(axes_of([dim])):
            return array
        places = self._along(dim)
        if places.ndim == 1 or not self._is_batched(info):
            return np.take(array, places if places.ndim == 1 else places[0], axis=at)
        spread = [1] * array.ndim
        spread[0], spread[at] = places.shape
        return np.take_along_axis(array, places.reshape(spread), axis=at)

    def _along(self, dim: str) -> np.ndarray:
        """The places of a dimension, which may be a sum of axes: int64 [new] or [samples, new]."""
        parts, start = [], 0
        for term in dim.split(_PLUS):
            size = int(term) if term.isdecimal() else self._old[term]
            parts.append(self._places.get(term, np.arange(size)) + start)
            start += size
        rows = [part for part in parts if part.ndim == 2]
        if rows:
            parts = [np.broadcast_to(p, (len(rows[0]), p.shape[-1])) for p in parts]
        return np.concatenate(parts, axis=-1)

    def _place(self, axis: str, specs: Sequence[InputSpec]) -> np.ndarray:
        """The place of the sample from which each place along an axis is taken: int64 [new], or
        [samples, new] if a mask says which tokens of each sample are real."""
        old, new = self._old[axis], self._new[axis]
        along = [spec.info for spec in specs if axis in axes_of(spec.info.shape)]
        if any(map(_is_tokens, along)):
            visible = next(self._visible(axis, along), None)
            if visible is None:
                return (np.arange(new) + self._skipped(old, new)) % max(old, 1)
            rows = [np.flatnonzero(row) if row.any() else np.arange(old) for row in visible]
            starts = [self._skipped(len(row), new) for row in rows]
            return np.stack(
                [
                    row[(np.arange(new) + at) % len(row)]
                    for row, at in zip(rows, starts, strict=True)
                ]
            )
        middle = any(_is_picture(info) for info in along) and new < old
        skipped = (old - new) // 2 if middle and self._at is None else self._skipped(old, new)
        at = (np.arange(new) + skipped) % max(2 * old, 1)
        return np.where(at < old, at, 2 * old - 1 - at)

    def _skipped(self, old: int, new: int) -> int:
        """How many places a smaller size leaves out in front."""
        return round(max(old - new, 0) * (self._at or 0.0))

    def _visible(self, axis: str, along: Sequence[TensorInfo]) -> Iterator[np.ndarray]:
        """Real tokens by the masks of an axis: bool [samples, old]."""
        for info in along:
            values = self._feed[info.name]
            mask = "mask" in info.name.lower() and values.dtype.kind in "iub"
            if not mask or len(info.shape) != 2 or not self._is_batched(info):
                continue
            terms = str(info.shape[1]).split(_PLUS)
            before = terms[: terms.index(axis)]
            start = sum(int(t) if t.isdecimal() else self._old[t] for t in before)
            part = values[:, start : start + self._old[axis]]
            if ((part == 0) | (part == 1)).all():
                # 1 is a token, but padding where the name is about padding, as in torch
                yield part == 0 if "pad" in info.name.lower() else part == 1

    def _positions(self, spec: InputSpec, array: np.ndarray) -> np.ndarray:
        """Positions from the first one of each row on, in the range of the input."""
        counted = np.arange(self._new[str(spec.info.shape[-1])], dtype=array.dtype)
        first = array.min(axis=-1, keepdims=True) if array.size else 0
        found = np.broadcast_to(first + counted, (*array.shape[:-1], counted.size))
        if spec.range is not None:
            low, high = (int(end) for end in spec.range)
            found = low + (found - low) % (high - low + 1)
        return np.asarray(found, array.dtype)

    def _lengths(self, array: np.ndarray) -> np.ndarray:
        """Lengths along the shortest axis, except that of the samples, in which they fit."""
        most = int(array.max(initial=0))
        fits = {a: n for a, n in self._old.items() if n >= most and a != self._batch}
        axis = min(fits, key=fits.__getitem__, default=None)
        if axis is None or axis not in self._new or not fits[axis]:
            return array
        scaled = -(-array.astype(np.int64) * self._new[axis] // fits[axis])
        return scaled.astype(array.dtype)


def _samples_axis(inputs: Sequence[TensorInfo]) -> str | None:
    """The axis that counts samples: that of the batch, if no input has it elsewhere, as a square
    mask has it."""
    axis = batch_axis(inputs)
    if not isinstance(axis, str) or any(axis in axes_of(info.shape[1:]) for info in inputs):
        return None
    return axis


def _counts(info: TensorInfo, name: re.Pattern[str]) -> bool:
    """Whether an input has integers with such a name."""
    return info.dtype.startswith("int") and name.search(info.name.lower()) is not None


def _is_tokens(info: TensorInfo) -> bool:
    return (info.dtype.startswith(("int", "uint")) or info.dtype == "bool") and not _is_picture(
        info
    )


def _is_picture(info: TensorInfo) -> bool:
    return len(info.shape) >= 4 and (info.dtype == "uint8" or info.dtype.startswith("float"))


def _counted_along(
    feed: Feed, specs: Sequence[InputSpec], axis: str, new: int, old: int
) -> str | None:
    """An input whose integers may be indices along an axis that becomes too short for them, such as
    the edges of a graph; None if there is none."""
    for spec in specs:
        info, values = spec.info, feed[spec.info.name]
        known = spec.range is not None or _counts(info, _LENGTHS) or not values.size
        if known or values.dtype.kind not in "iu" or axis in axes_of(info.shape):
            continue
        if values.min() >= 0 and new <= values.max() < old:
            return info.name
    return None


def _is_banded(array: np.ndarray, axes: Sequence[int]) -> bool:
    """Whether a square in the array depends only on the distance from its diagonal, as a causal
    mask does."""
    square = np.moveaxis(array, axes, (-2, -1))
    return square.shape[-1] > 0 and np.array_equal(square[..., 1:, 1:], square[..., :-1, :-1])


def _banded(array: np.ndarray, axes: Sequence[int], new: int) -> np.ndarray:
    """The square of a banded array at another size; beyond it the numbers at its ends."""
    square = np.moveaxis(array, axes, (-2, -1))
    most = square.shape[-1] - 1
    distance = np.clip(np.arange(new) - np.arange(new)[:, None], -most, most)
    found = square[..., np.maximum(-distance, 0), np.maximum(distance, 0)]
    return np.ascontiguousarray(np.moveaxis(found, (-2, -1), axes))
