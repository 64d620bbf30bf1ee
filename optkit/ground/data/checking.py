"""Checks the items of a sample source against the model's inputs, before they are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from optkit.facts.dtypes import DTYPES
from optkit.facts.errors import InputRefused, nearest
from optkit.facts.tensors import Feed, TensorInfo, axes_of, batch_axis, batched, size_of
from optkit.ground.data import sequences

STORABLE = frozenset(n for n, dtype in DTYPES.items() if dtype.stored and hasattr(np, n))
"""Dtypes that safetensors returns as numpy arrays."""

Given = Mapping[str, object]
Item = (
    Given
    | tuple[Given, object]
    | tuple[Given, object, object]
    | tuple[Given, object, object, object]
)
"""A feed; a pair of feed and labels; both and the name of the slice of each sample; or these (None
for no slices) and the name of the group to which each sample belongs, such as its clip. Values are
objects that `np.asarray` accepts."""


class Checker:
    """Checks the items of one source in their order. `fixed`: the batch size of the model, if it
    has only one; `label_kind`: dtype and shape of a label, after the first one; `not_finite`:
    inputs with NaN or infinities, and the first sample with them. Whether the model takes these,
    only a run shows."""

    def __init__(self, inputs: Sequence[TensorInfo], optional: Collection[str]) -> None:
        """Raises InputRefused for an input of a dtype that cannot be stored."""
        for info in inputs:
            if info.dtype not in STORABLE:
                raise InputRefused(
                    f"samples of dtype {info.dtype} cannot be stored", where=f"input {info.name!r}"
                )
        self.inputs = {info.name: info for info in inputs}
        self.batched = batched(inputs)
        self.fixed = fixed_batch(inputs)
        self.labelled: bool | None = None
        self._named: dict[str, bool] = {}  # "slices", "groups" → whether the source names them
        self.label_kind: tuple[str, tuple[int, ...]] | None = None
        self.not_finite: dict[str, int] = {}
        self._optional = frozenset(optional)
        # axes that may be empty, except that of the samples
        self._empty = {0, *optional} - {batch_axis(inputs)}
        self._last = False  # there was an incomplete batch, so no further batch may come

    def feed(self, given: Given, sample: int) -> tuple[Feed, int]:
        """A feed that the model takes, and its number of samples. The number is smaller than the
        fixed batch of the model if samples had to be repeated. `sample`: the number of its first
        sample, for errors. Raises InputRefused."""
        whole, short = self._filled(given, sample)
        feed = self._checked(whole, sample)
        return feed, short or count_of(feed, self.batched)

    def labels(self, given: object, count: int, sample: int) -> np.ndarray | None:
        """Labels as an array with one row for each of the `count` samples; None if there are none.
        Raises InputRefused."""
        where = f"sample {sample}"
        if self.labelled is None:
            self.labelled = given is not None
        if self.labelled != (given is not None):
            hint = "yield labels with every batch, or with none"
            raise InputRefused("some samples have labels and others do not", where=where, hint=hint)
        if given is None:
            return None
        labels = np.atleast_1d(_asarray(given, where))
        if labels.dtype.name not in STORABLE:
            raise InputRefused(
                f"labels of dtype {labels.dtype} cannot be stored",
                where=where,
                hint="labels are numbers, one row per sample",
            )
        if len(labels) != count:
            hint = "give one label for each sample, in the same order"
            message = f"{len(labels)} labels for a batch of {count}"
            raise InputRefused(message, where=where, hint=hint)
        kind = (labels.dtype.name, labels.shape[1:])
        if self.label_kind not in (None, kind):
            (was, its), (dtype, shape) = self.label_kind, kind
            raise InputRefused(
                f"a label is {dtype} of shape {list(shape)}, those before are {was} of shape "
                f"{list(its)}",
                where=where,
                hint="give all labels one dtype and one shape",
            )
        self.label_kind = kind
        return labels.astype(kind[0], copy=False)  # in the byte order of this machine

    def names(self, what: str, given: object, count: int, sample: int) -> list[str]:
        """`what` ("slices" or "groups"): the one of each of the `count` samples; empty if the
        source names none. Raises InputRefused."""
        array = np.atleast_1d(np.asanyarray([] if given is None else given))
        names = [str(name) for name in array.tolist()]
        named = self._named.setdefault(what, bool(names))
        if len(names) != (count if named else 0):
            raise InputRefused(
                f"{len(names)} {what} for a batch of {count}",
                where=f"sample {sample}",
                hint="yield feed, labels, slices, groups (None for no slices): one name per "
                "sample, of all samples or of none",
            )
        return names

    def _filled(self, given: Given, sample: int) -> tuple[Given, int]:
        """A feed with fewer samples than the model's fixed batch, with its samples repeated, and
        the number of samples before. Any other feed unchanged, and 0."""
        where = f"sample {sample}"
        if self.fixed is None:
            return given, 0
        batched = {n: _asarray(given[n], where) for n in given if n in self.batched}
        counts = {len(array) if array.ndim else 0 for array in batched.values()}
        count = counts.pop() if len(counts) == 1 else 0
        if not 0 < count < self.fixed:
            return given, 0
        if self._last:
            raise InputRefused(
                f"two batches have fewer samples than the model's fixed batch of {self.fixed}",
                where=where,
                hint=f"yield batches of {self.fixed}; only the last batch may have fewer samples",
            )
        self._last = True
        turns = np.arange(self.fixed) % count
        return {**given, **{name: array[turns] for name, array in batched.items()}}, count

    def _checked(self, given: Given, sample: int) -> Feed:
        for name in given:
            if name not in self.inputs:
                close, known = nearest(str(name), self.inputs), ", ".join(self.inputs)
                raise InputRefused(
                    f"the model has no input {name!r}",
                    where=f"sample {sample}",
                    hint=f"did you mean {close[0]!r}?"
                    if close
                    else f"give each array under the name of an input: {known}",
                )
        given = sequences.completed(given, self.inputs, self._optional)
        feed: Feed = {}
        for name, info in self.inputs.items():
            if name not in given:
                raise InputRefused(
                    f"the feed lacks input {name!r}",
                    where=f"sample {sample}",
                    hint=f"it has {', '.join(map(str, given)) or 'nothing'}; give an array under "
                    f"the name {name!r} too",
                )
            feed[name] = _array(given[name], info, sample)
        self._check_axes(feed, sample)
        for name, array in feed.items():
            self._note_not_finite(name, array, sample)
        return feed

    def _check_axes(self, feed: Feed, sample: int) -> None:
        """A named axis must have one size in all inputs, a sum of axes must be their sum, and only
        axes that may be empty are empty."""
        where = f"sample {sample}"
        sizes: dict[str, tuple[int, str]] = {}
        for name, info in self.inputs.items():
            for axis, size in zip(info.shape, feed[name].shape, strict=True):
                if not size and axis not in self._empty:
                    hint = f"give it at least one element along axis {axis!r}"
                    raise InputRefused(f"input {name!r} is empty", where=where, hint=hint)
                if isinstance(axis, str) and sizes.setdefault(axis, (size, name))[0] != size:
                    other, first = sizes[axis]
                    raise InputRefused(
                        f"axis {axis!r} is {other} in input {first!r} and {size} in {name!r}",
                        where=where,
                        hint="give both inputs the same size along this axis",
                    )
        known = {axis: size for axis, (size, _) in sizes.items()}
        for axis, (size, name) in sizes.items():
            parts = axes_of([axis])
            if known.keys() >= set(parts) and size_of(axis, known) != size:
                sizes_of_parts = " and ".join(f"{part!r} is {known[part]}" for part in parts)
                raise InputRefused(
                    f"axis {axis!r} of input {name!r} is {size}, {sizes_of_parts}",
                    where=where,
                    hint=f"give it the size {size_of(axis, known)}",
                )

    def _note_not_finite(self, name: str, array: np.ndarray, sample: int) -> None:
        if array.dtype.kind == "f" and name not in self.not_finite:
            finite = np.isfinite(array)
            if not finite.all():
                row = int(np.argwhere(~finite)[0][0]) if name in self.batched else 0
                self.not_finite[name] = sample + row


def _kind(item: object) -> str:
    """Its type; for a tuple also those of its parts."""
    parts = f" ({', '.join(type(each).__name__ for each in item)})" if type(item) is tuple else ""
    return f"{type(item).__name__}{parts}"


def item(feed: Given, labels: object, slices: object, groups: object) -> Item:
    """An item with the parts that it has: slices and groups are None if there are none."""
    if groups is not None:
        return feed, labels, slices, groups
    return (feed, labels) if slices is None else (feed, labels, slices)


def parted(item: object, sample: int) -> tuple[Given, object, object, object]:
    """Feed, labels, slices and groups of an item; None for those that it does not have. Raises
    InputRefused."""
    parts = item if isinstance(item, tuple) and len(item) in (2, 3, 4) else (item,)
    feed, labels, slices, groups = (*parts, None, None, None)[:4]
    if not isinstance(feed, Mapping):
        raise InputRefused(
            f"a sample source yields {_kind(item)}, not a feed",
            where=f"sample {sample}",
            hint="yield {input name: array}, for a task ({input name: array}, labels)",
        )
    return feed, labels, slices, groups


def _array(value: object, info: TensorInfo, sample: int) -> np.ndarray:
    """The value as an array that fits the input. Raises InputRefused otherwise."""
    where = f"sample {sample}, input {info.name!r}"
    array = _asarray(value, where)
    if array.dtype.name != info.dtype:
        raise InputRefused(
            f"its dtype is {array.dtype.name}, but the model takes {info.dtype}",
            where=where,
            hint=f"convert it where it is made or saved: array.astype('{info.dtype}')",
        )
    if not _fits(array.shape, info.shape):
        raise InputRefused(
            f"its shape is {list(array.shape)}, but the model takes "
            f"[{', '.join(map(str, info.shape))}]",
            where=where,
            hint=_shape_hint(array.shape, info),
        )
    return array.astype(info.dtype, copy=False)  # in the byte order of this machine


def _fits(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    """Whether a shape is the wanted one; a named axis has any size."""
    return len(shape) == len(wanted) and all(
        isinstance(want, str) or want == size for want, size in zip(wanted, shape, strict=True)
    )


def _shape_hint(shape: tuple[int, ...], info: TensorInfo) -> str:
    """How to correct a shape that does not fit: give the axes of another size names, and the batch
    if the file has the sizes of an example of several samples."""
    if not info.shape:
        return "it has no axes: give one number, once for all samples"
    batch = "axis 0 is the batch, also for a single sample"
    if len(shape) != len(info.shape):
        return batch
    if len(shape) > 2 and _fits((shape[0], shape[-1], *shape[1:-1]), info.shape):
        order = ", ".join(map(str, (0, len(shape) - 1, *range(1, len(shape) - 1))))
        return f"its channels are the last axis, the model's are axis 1: array.transpose({order})"
    pairs = enumerate(zip(info.shape, shape, strict=True))
    other = [i for i, (want, size) in pairs if isinstance(want, int) and want != size]
    if other[0] == 0:
        return batch
    names = {i: f"axis{i}" for i in other}
    axes = ", ".join(f"{name}: {{min: ..., opt: ..., max: ...}}" for name in names.values())
    if isinstance(info.shape[0], int) and info.shape[0] > 1:
        names[0] = "batch"
    declared = ", ".join(str(names.get(i, size)) for i, size in enumerate(info.shape))
    sized = " and ".join(f"axis {i} has one size, {info.shape[i]}" for i in other)
    return (
        f"{sized}: give all samples that size (pad them alike), or name what is free where inputs "
        f"are declared, shape: [{declared}], with axes: {{{axes}}}"
    )


def _asarray(value: object, where: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except Exception as error:  # __array__ of a foreign class may raise any exception
        reason = f"{type(value).__name__} is no array: {error}"
        raise InputRefused(reason, where=where, hint="yield numpy arrays") from error


def fixed_batch(inputs: Sequence[TensorInfo]) -> int | None:
    """The batch size of the model, if it has only one."""
    axis = batch_axis(inputs)
    return axis if isinstance(axis, int) else None


def count_of(feed: Feed, batched: Collection[str]) -> int:
    """The number of samples in a feed, from the inputs whose axis 0 counts them."""
    return next((len(feed[name]) for name in feed if name in batched), 1)


def rows_of(feed: Feed, batched: Collection[str], rows: slice | Sequence[int] | np.ndarray) -> Feed:
    """Some samples of a feed. Inputs without a batch axis do not change."""
    return {name: a[rows] if name in batched else a for name, a in feed.items()}
