"""Arrays from .npz or .safetensors: one per model input, with the samples on axis 0. An .npy holds
one array, without a name: it is for a model with one input.

For a model that is built for one sample at a time, a row may have all axes of the input, such as a
state [samples, layers, 1, width]; an array without axes is the value of an input without axes for
every sample.

They are read batch by batch, so memory does not grow with the file. Only an array in Fortran order,
whose samples are not contiguous, is read completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import IO, Protocol
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.lib import format as npy

from optkit.facts.errors import InputRefused, nearest
from optkit.facts.tensors import Feed, TensorInfo, batched
from optkit.ground.data import reading
from optkit.ground.data.checking import Item, item
from optkit.ground.data.reading import Inputs

LABEL = "label"
"""The array of labels, if a task names no other."""
_SUFFIX = ".npy"
_UNNAMED = "input"
"""The name of the array of an .npy, if no model names its input."""


def samples(path: Path, inputs: Inputs | None = None) -> Iterator[Feed]:
    """Feeds of the arrays with the names of the model's inputs, in the order of the file; other
    arrays are ignored.

    Raises InputRefused if an array is missing (with the nearest name), or if they differ in length.
    """
    with _opened(path, None if inputs is None else list(inputs)) as arrays:
        yield from _batches(arrays, path, inputs)


def labelled(
    path: Path,
    *,
    label: str,
    slice: str | None = None,
    group: str | None = None,
    inputs: Inputs | None,
) -> Iterator[Item]:
    """As `samples`, with the array `label`, [samples, …], and, if they are named, the arrays
    `slice` and `group`, [samples]."""
    given = {"label": label, "slice": slice, "group": group}
    beside = {arg: name for arg, name in given.items() if name is not None}
    with _opened(path, None if inputs is None else [*inputs, *beside.values()], beside) as arrays:
        for name in beside.values():
            if name not in arrays:
                raise _missing(name, arrays, path, beside)
        for feed in _batches(arrays, path, inputs):
            tags = {arg: feed.pop(name) for arg, name in beside.items()}
            yield item(feed, tags["label"], tags.get("slice"), tags.get("group"))


def declared(path: Path, required: Sequence[str] = ()) -> list[TensorInfo]:
    """The inputs that the arrays of a file are for, in its order: axis 0 is the batch, and all
    other sizes are fixed. An array of labels is no input, and float64, numpy's default, stands for
    float32. `required`: the inputs that the model requires, if its code shows them; they name the
    array of an .npy.

    Raises InputRefused for a file that cannot be read.
    """
    with _opened(path, list(required) or None if _is_alone(path) else None) as arrays:
        return [_info(name, array) for name, array in arrays.items() if name != LABEL]


def check_counts(path: Path) -> None:
    """Raise InputRefused unless all arrays of a file have the same number of samples."""
    with _opened(path, None) as arrays:
        rows_of = {name: array for name, array in arrays.items() if array.length is not None}
        _count(rows_of or arrays, path, None)


def _info(name: str, array: _Array) -> TensorInfo:
    dtype = array.take(0 if array.length else 1).dtype  # no row: one may be larger than the memory
    shape: tuple[int | str, ...] = () if array.length is None else ("batch", *array.shape[1:])
    return TensorInfo(name, "float32" if dtype == np.float64 else dtype.name, shape)


def check_names(path: Path, inputs: Iterable[str], args: Mapping[str, str]) -> None:
    """Check that a file has the arrays of these inputs, without reading them, and those that args
    of the recipe name (arg → array). Raises the InputRefused of `samples`."""
    path = reading.existing(path, "arrays")
    names = [*inputs, *args.values()]
    with _readable(path):
        if _is_alone(path):
            _check_alone(path, names, args)
        else:
            known = _archived(path) if path.suffix.lower() == ".npz" else _named(path)
            _chosen(known, names, path, args)


def shapes(path: Path, inputs: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The shape of the array of each input, with the samples as axis 0. Raises the InputRefused of
    `samples`."""
    with _opened(path, list(inputs)) as arrays:
        return {name: array.shape for name, array in arrays.items()}


class _Array(Protocol):
    """One array of a file with `length` samples (None: it has no axes), which is read from the
    first sample on."""

    shape: tuple[int, ...]
    length: int | None

    def take(self, count: int) -> np.ndarray:
        """The next samples, [count, …]; of an array without axes, its value."""


def _batches(arrays: Mapping[str, _Array], path: Path, inputs: Inputs | None) -> Iterator[Feed]:
    axes = {name: len(info.shape) for name, info in (inputs or {}).items()}
    values, rows_of = _parted(arrays, axes)
    whole = {name for name, array in rows_of.items() if len(array.shape) - 1 == axes.get(name)}
    numbers = range(_count(rows_of or arrays, path, inputs))
    one_by_one = any(axes[name] for name in whole)
    groups = reading.groups(numbers, 1) if one_by_one else reading.grouped(numbers, inputs)
    for rows in groups:
        feed = dict(values)
        for name, array in rows_of.items():
            taken = array.take(len(rows))
            feed[name] = taken[0] if name in whole and len(rows) == 1 else taken
        yield {name: feed[name] for name in arrays}


def _parted(
    arrays: Mapping[str, _Array], axes: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, _Array]]:
    """The values of arrays without axes whose inputs have none either, and the arrays of
    samples. `axes`: the number of axes of each input."""
    values, rows_of = {}, {}
    for name, array in arrays.items():
        if array.length is None and axes.get(name) == 0:
            values[name] = array.take(1)
        else:
            rows_of[name] = array
    return values, rows_of


@contextmanager
def _opened(
    path: Path, names: list[str] | None, args: Mapping[str, str] = {}
) -> Iterator[dict[str, _Array]]:
    """The arrays by name; None: all of them. `args`: the args of the recipe that name some of them.
    Raises InputRefused, also for damage that is found during a read."""
    path = reading.existing(path, "arrays")
    with _readable(path), ExitStack() as stack:
        if path.suffix.lower() == ".npz":
            yield _members(path, names, args, stack)
        elif _is_alone(path):
            (name,) = _check_alone(path, names, args)
            yield {name: _Member(stack.enter_context(path.open("rb")), path, name)}
        else:
            yield _tensors(path, names, args)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputRefused:
        raise
    except Exception as error:  # zipfile, numpy and safetensors raise different exceptions
        reason = f"not arrays that can be read: {error}"
        hint = "write numeric arrays with numpy.savez or safetensors.numpy.save_file"
        raise InputRefused(reason, where=str(path), hint=hint) from error


def _is_alone(path: Path) -> bool:
    return path.suffix.lower() == _SUFFIX


def _check_alone(path: Path, names: list[str] | None, args: Mapping[str, str]) -> list[str]:
    """The one input for which an .npy is. Raises InputRefused if other arrays are needed too."""
    beside = list(args.values())
    needed = [*([name for name in names or () if name not in beside] or [_UNNAMED]), *beside]
    if len(needed) > 1:
        arrays = ", ".join(f"{name!r}: ..." for name in needed)
        raise InputRefused(
            f"an .npy holds one array, and {len(needed)} are needed: "
            f"{', '.join(map(repr, needed))}",
            where=str(path),
            hint="give an .npz with an array for each of these names: "
            f"numpy.savez('{path.stem}.npz', **{{{arrays}}})",
        )
    return needed


def _members(
    path: Path, names: list[str] | None, args: Mapping[str, str], stack: ExitStack
) -> dict[str, _Array]:
    known = _archived(path)
    archive = stack.enter_context(ZipFile(path))
    return {
        name: _Member(stack.enter_context(archive.open(f"{name}{_SUFFIX}")), path, name)
        for name in _chosen(known, names, path, args)
    }


def _archived(path: Path) -> list[str]:
    """The names of the arrays in an .npz."""
    if not is_zipfile(path):
        raise ValueError("not an .npz archive")
    with ZipFile(path) as archive:
        names = archive.namelist()
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]


def _named(path: Path) -> list[str]:
    """The names of the arrays in a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return list(file.keys())


class _Member:
    """One array of an .npz, which may be compressed, or that of an .npy."""

    def __init__(self, stream: IO[bytes], path: Path, name: str) -> None:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, columns_first, self._dtype = header(stream)
        if self._dtype.hasobject:
            rows = "numpy.stack(rows).astype('float32')"
            raise InputRefused(
                "its dtype is object: it holds Python objects as a pickle, and optkit never loads "
                "pickles",
                where=str(path) if _is_alone(path) else f"{path}, array {name!r}",
                hint="write numbers: give all rows the same shape (pad or cut them), then "
                + (
                    f"numpy.save('{path.stem}-numbers.npy', {rows})"
                    if _is_alone(path)
                    else f"numpy.savez('{path.stem}-numbers.npz', {name}={rows}), with the other "
                    "arrays of the file"
                )
                + ", and give the new file",
            )
        self.shape: tuple[int, ...] = shape
        self.length = shape[0] if shape else None
        self._stream = stream
        self._at = 0
        self._columns_first = columns_first

    @cached_property
    def _whole(self) -> np.ndarray | None:
        """The array, if its samples are not contiguous."""
        if not self._columns_first:
            return None
        return self._read(prod(self.shape)).reshape(self.shape, order="F")

    def take(self, count: int) -> np.ndarray:
        if self.length is None:
            return self._read(1).reshape(())
        if not count:
            return np.empty((0, *self.shape[1:]), self._dtype)
        self._at += count
        if self._whole is not None:
            return self._whole[self._at - count : self._at]
        row = self.shape[1:]
        return self._read(count * prod(row)).reshape(count, *row)

    def _read(self, count: int) -> np.ndarray:
        data = self._stream.read(count * self._dtype.itemsize)
        if len(data) < count * self._dtype.itemsize:
            raise ValueError("the file ends before its last value")
        return np.frombuffer(data, self._dtype, count)


def _tensors(path: Path, names: list[str] | None, args: Mapping[str, str]) -> dict[str, _Array]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        known = list(file.keys())
        shapes = {name: file.get_slice(name).get_shape() for name in known}
    return {name: _Tensor(path, name, shapes[name]) for name in _chosen(known, names, path, args)}


class _Tensor:
    """One array of a safetensors file. It is mapped only during a read, because mapped pages that
    were read count as memory."""

    def __init__(self, path: Path, name: str, shape: list[int]) -> None:
        self.shape = tuple(shape)
        self.length = shape[0] if shape else None
        self._path, self._name = path, name
        self._at = 0

    def take(self, count: int) -> np.ndarray:
        from safetensors import safe_open

        with safe_open(self._path, framework="numpy") as file:
            if self.length is None:
                value: np.ndarray = file.get_tensor(self._name)
                return value
            self._at += count
            samples: np.ndarray = file.get_slice(self._name)[self._at - count : self._at]
        return samples


def _chosen(
    known: list[str], names: list[str] | None, path: Path, args: Mapping[str, str]
) -> list[str]:
    missing = [name for name in names or () if name not in known]
    if missing:
        raise _missing(missing[0], known, path, args)
    return known if names is None else names


def _count(arrays: Mapping[str, _Array], path: Path, inputs: Inputs | None) -> int:
    counts = {name: array.length or 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
        raise InputRefused(
            f"the arrays have different numbers of samples: {listed}",
            where=str(path),
            hint=f"axis 0 counts the samples: {_remedy(inputs or {})}",
        )
    return next(iter(counts.values()))


def _remedy(inputs: Inputs) -> str:
    """How to give all arrays one row for each sample."""
    rows = batched(inputs.values())
    if all(name in rows for name, info in inputs.items() if info.shape):
        return "give each array one row for each sample"
    return (
        "the model takes one sample at a time, so stack the inputs of all samples: "
        "numpy.savez(FILE, **{name: numpy.stack([sample[name] for sample in samples]) "
        f"for name in ({', '.join(map(repr, inputs))})}})"
    )


def _missing(name: str, known: Iterable[str], path: Path, args: Mapping[str, str]) -> InputRefused:
    """The error for an array that a file does not have: one that an arg of the task names, or else
    an input of the model."""
    there = list(known)
    close = nearest(name, there)
    old = close[0] if close else there[0] if len(there) == 1 else "OTHER"
    arg = next((arg for arg, value in args.items() if value == name), None)
    if arg is not None:
        need, remedy = f"the task reads as {arg}", f"give --set eval.args.{arg}={old}"
    else:
        need, remedy = "is an input of the model", _renaming(path, old, name)
    return InputRefused(
        f"no array {name!r}, which {need}; the file has {', '.join(map(repr, there)) or 'none'}",
        where=str(path),
        hint=f"did you mean {close[0]!r}? If so, {remedy}" if close else remedy,
    )


def _renaming(path: Path, old: str, new: str) -> str:
    """How to write a file of arrays again with another name of one array."""
    file = f"{path.stem}-renamed{path.suffix}"
    if path.suffix.lower() == ".npz":
        load, save = "import numpy as np; a = dict(np.load({0!r}))", "np.savez({0!r}, **a)"
    else:
        load = "import safetensors.numpy as st; a = st.load_file({0!r})"
        save = "st.save_file(a, {0!r})"
    return (
        f"give {file}, a new file in which {old!r} has the name {new!r}; write it in Python:\n"
        f"{load.format(str(path))}; a[{new!r}] = a.pop({old!r}); {save.format(file)}"
    )
