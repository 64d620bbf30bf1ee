"""Weights that need not fit in memory: read by rows, computed while they are written, linked.

    data file ── Stored ──► rows ──► pieces ── Computed ──► data file of the next graph
                    └────────────── untouched: a hard link, no byte is read ──────────►

At most one piece of one weight is in memory. Hard links join only files that nobody may write
(mode 0444): the store's own, which stay as they are for as long as they exist.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx_ir as ir

from optkit.errors import OptkitError

INLINE_BYTES = 1024
"""A tensor up to this size stands in the model file, whatever the others weigh."""

_ALIGNMENT = 4096  # of each tensor in a data file: a page, so that a runtime can map it
_WORTH_A_LINK = 16 << 20  # a smaller data file is copied into the new one
_USED = 0.9  # share of a linked file that must still be read: dead bytes travel with it
_COPY_BYTES = 8 << 20
_THREADS = min(4, os.cpu_count() or 1)
_WRITABLE, _READ_ONLY = 0o222, 0o444
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # this place knows none

T = TypeVar("T")
R = TypeVar("R")
Piece = Sequence[np.ndarray | None]
Compute = Callable[[], Iterable[Piece]]


class Form(NamedTuple):
    """What a computed tensor will be."""

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]


class Stored(ir.ExternalTensor):
    """A tensor in a data file. Every `numpy()` maps it anew and nothing is kept: the pages leave
    memory together with the array. The file was checked when the model was loaded."""

    __slots__ = ()

    def numpy(self) -> np.ndarray:
        start, size, dims = self.offset or 0, self.nbytes, self.shape.numpy()
        if not size:
            return np.empty(dims, self.dtype.numpy())
        first = start - start % mmap.ALLOCATIONGRANULARITY
        with self.open() as file:
            mapped = mmap.mmap(
                file.fileno(), start + size - first, access=mmap.ACCESS_READ, offset=first
            )
        return _decoded(np.frombuffer(mapped, np.uint8, size, start - first), self.dtype, dims)

    def __array__(self, dtype: Any = None) -> np.ndarray:
        return self.numpy().__array__(dtype)

    def tobytes(self) -> bytes:
        with self.open() as file:
            file.seek(self.offset or 0)
            return file.read(self.nbytes)

    def tofile(self, file: Any) -> None:
        file.write(self.tobytes())

    def open(self) -> io.BufferedReader:
        """The data file, following no link."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return os.fdopen(descriptor, "rb")


class Computed(ir.LazyTensor):
    """A tensor whose numbers are computed when they are asked for, with those of its group."""

    __slots__ = ("group", "index")

    def __init__(self, group: _Group, index: int) -> None:
        form = group.forms[index]
        super().__init__(
            lambda: group.tensors()[index], form.dtype, ir.Shape(form.shape), name=form.name
        )
        self.group = group
        self.index = index


def computed(forms: Sequence[Form], compute: Compute) -> list[ir.TensorProtocol]:
    """One tensor per form, none of them in memory: `compute` makes their numbers piece by piece.

    A piece holds one array per form (None: nothing of that form in it); the pieces of a form in C
    order are its numbers. Four-bit numbers may be packed already (uint8, low half first); then each
    piece but the last holds an even number of them. `compute` runs once while a model is saved and
    once for every `numpy()`; it gives the same bytes each time. Pieces that do not fit their form
    raise OptkitError naming the tensor.
    """
    group = _Group(tuple(forms), compute)
    return [Computed(group, index) for index in range(len(group.forms))]


def rows(value: ir.Value | ir.TensorProtocol, count: int) -> Iterator[np.ndarray]:
    """A constant in blocks of `count` rows of its first axis, in its own dtype.

    What lies in a data file is read, not mapped: one block is in memory. A scalar is one block.
    """
    tensor = value.const_value if isinstance(value, ir.Value) else value
    assert tensor is not None
    shape = tensor.shape.numpy()
    if not isinstance(tensor, Stored) or not shape or tensor.dtype.bitwidth < 8:
        array = tensor.numpy()
        starts = range(0, shape[0], count) if shape else ()
        yield from (array[at : at + count] for at in starts) if shape else (array,)
        return
    dtype, row = _raw_dtype(tensor.dtype), shape[1:]
    with tensor.open() as file:
        file.seek(tensor.offset or 0)
        for at in range(0, shape[0], count):
            block = np.empty((min(count, shape[0] - at), *row), dtype)
            _fill(file, block, tensor)
            os.posix_fadvise(file.fileno(), file.tell(), block.nbytes, os.POSIX_FADV_WILLNEED)
            yield block


def columns(value: ir.Value | ir.TensorProtocol, count: int) -> Iterator[np.ndarray]:
    """A constant matrix in blocks of `count` columns, in its own dtype. As `rows`, what lies in a
    data file is read, not mapped: of each row the piece that belongs to the block."""
    tensor = value.const_value if isinstance(value, ir.Value) else value
    assert tensor is not None
    height, width = tensor.shape.numpy()
    if not isinstance(tensor, Stored) or tensor.dtype.bitwidth < 8:
        array = tensor.numpy()
        yield from (array[:, at : at + count] for at in range(0, width, count))
        return
    dtype, start = _raw_dtype(tensor.dtype), tensor.offset or 0
    with tensor.open() as file:
        for at in range(0, width, count):
            block = np.empty((height, min(count, width - at)), dtype)
            for index, row in enumerate(block.view(np.uint8)):
                place = start + (index * width + at) * dtype.itemsize
                if os.preadv(file.fileno(), [row.data], place) != row.nbytes:
                    raise _cut_short(tensor)
            yield block


def spread(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`work` of each item, in order, on several threads: a few items are in memory at once."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def store(values: Sequence[ir.Value], path: Path) -> None:
    """Give each value's tensor a place in data files beside the model `path`, and refer to it.

    `<name>.<n>.data` are links to data files that are still used almost whole, `<name>.data` holds
    the rest in the order of the values. Both are read-only. Small ones come into memory, so that
    they are written into the model file. Values are changed in place.
    """
    large = [v for v in values if v.const_value is not None and _is_large(v.const_value)]
    inline(set(values) - set(large))
    linked = _link(large, path)
    places: dict[Hashable, int] = {}
    plan: list[tuple[int, ir.TensorProtocol]] = []
    groups: dict[_Group, dict[int, int]] = defaultdict(dict)
    end = 0
    for tensor in _in_groups([v.const_value for v in large if v not in linked]):
        if (key := _identity(tensor)) in places:
            continue
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.nbytes
        places[key] = start
        if isinstance(tensor, Computed):
            groups[tensor.group][tensor.index] = start
        else:
            plan.append((start, tensor))
    name = f"{path.name}.data"
    if places:
        _write(path.with_name(name), end, plan, groups)
    for value in large:
        location, start = linked.get(value) or (name, places[_identity(value.const_value)])
        value.const_value = _refer(value, location, start, path.parent)


def inline(values: Iterable[ir.Value]) -> None:
    """Bring into memory what is not, so that it is written into the model file. In place."""
    done: dict[_Group, list[ir.Tensor[np.ndarray]]] = {}
    for value in values:
        tensor = value.const_value
        if isinstance(tensor, Computed):
            if tensor.group not in done:
                done[tensor.group] = tensor.group.tensors()
            value.const_value = done[tensor.group][tensor.index]
            value.const_value.name = value.name
        elif isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy().copy(), name=value.name)


class _Group:
    """Tensors that are computed together."""

    def __init__(self, forms: tuple[Form, ...], compute: Compute) -> None:
        self.forms = forms
        self._compute = compute

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the form, its next bytes). Raises OptkitError where they do not fit."""
        left = [_nbytes(form) for form in self.forms]
        for piece in self._compute():
            for index, (form, array) in enumerate(zip(self.forms, piece, strict=True)):
                if array is None:
                    continue
                data = _encoded(array, form)
                left[index] -= data.nbytes
                if left[index] < 0:
                    raise _misfit(form, f"{-left[index]} bytes more than its shape holds")
                yield index, data
        for form, missing in zip(self.forms, left, strict=True):
            if missing:
                raise _misfit(form, f"{missing} bytes of its shape are missing")

    def tensors(self) -> list[ir.Tensor[np.ndarray]]:
        """All of them, in memory."""
        buffers = [np.empty(_nbytes(form), np.uint8) for form in self.forms]
        at = [0] * len(self.forms)
        for index, data in self.pieces():
            buffers[index][at[index] : at[index] + data.nbytes] = data
            at[index] += data.nbytes
        return [
            ir.Tensor(_decoded(raw, form.dtype, form.shape), form.dtype, name=form.name)
            for raw, form in zip(buffers, self.forms, strict=True)
        ]


def _link(values: Iterable[ir.Value], path: Path) -> dict[ir.Value, tuple[str, int]]:
    """Link the data files that stay almost whole: value → (file name, offset)."""
    readers: dict[str, list[tuple[ir.Value, Stored]]] = defaultdict(list)
    for value in values:
        if isinstance(value.const_value, Stored):
            readers[value.const_value.path].append((value, value.const_value))
    linked: dict[ir.Value, tuple[str, int]] = {}
    count = 0
    for source, uses in readers.items():
        info = os.lstat(source)
        used = sum(size for _, size in {(t.offset or 0, t.nbytes) for _, t in uses})
        if info.st_size < _WORTH_A_LINK or info.st_mode & _WRITABLE or used < _USED * info.st_size:
            continue
        name = f"{path.name}.{count}.data"
        _link_file(Path(source), path.with_name(name))
        linked.update({value: (name, tensor.offset or 0) for value, tensor in uses})
        count += 1
    return linked


def _link_file(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, temporary, follow_symlinks=False)
        temporary.chmod(_READ_ONLY)
    temporary.replace(target)
    temporary.unlink(missing_ok=True)  # renaming onto another name of the same file does nothing


def _write(
    target: Path,
    size: int,
    plan: Iterable[tuple[int, ir.TensorProtocol]],
    groups: Mapping[_Group, Mapping[int, int]],
) -> None:
    temporary = target.with_name(f".{target.name}.part")
    with temporary.open("wb", buffering=0) as file:
        file.truncate(size)
        for start, tensor in plan:
            if isinstance(tensor, Stored):
                _copy(tensor, file, start)
            else:
                _put(file, start, np.frombuffer(tensor.tobytes(), np.uint8))
        for group, starts in groups.items():
            at = dict(starts)
            for index, data in group.pieces():
                if index in at:
                    _put(file, at[index], data)
                    at[index] += data.nbytes
    temporary.chmod(_READ_ONLY)
    temporary.replace(target)


def _copy(tensor: Stored, file: io.FileIO, start: int) -> None:
    """The tensor's bytes to `start` of the file, inside the kernel where it can."""
    done, total = 0, tensor.nbytes
    with tensor.open() as source:
        with contextlib.suppress(OSError):  # not between these two file systems
            while done < total:
                copied = os.copy_file_range(
                    source.fileno(), file.fileno(), total - done, (tensor.offset or 0) + done,
                    start + done,
                )  # fmt: skip
                if not copied:
                    break
                done += copied
        source.seek((tensor.offset or 0) + done)
        while done < total:
            block = np.empty(min(_COPY_BYTES, total - done), np.uint8)
            _fill(source, block, tensor)
            _put(file, start + done, block)
            done += block.nbytes


def _put(file: io.FileIO, start: int, data: np.ndarray) -> None:
    view = data.data
    while view:
        written = os.pwrite(file.fileno(), view, start)
        view, start = view[written:], start + written


def _fill(file: io.BufferedReader, block: np.ndarray, tensor: Stored) -> None:
    data = block.reshape(-1).view(np.uint8)
    if file.readinto(data.data) != data.nbytes:
        raise _cut_short(tensor)


def _cut_short(tensor: ir.TensorProtocol) -> OptkitError:
    return OptkitError("its data file was cut", where=f"tensor {tensor.name!r}")


def _in_groups(tensors: Iterable[ir.TensorProtocol | None]) -> Iterator[ir.TensorProtocol]:
    """In order, but the members of a group where the first of them stands."""
    stored = [tensor for tensor in tensors if tensor is not None]
    members: dict[_Group, list[ir.TensorProtocol]] = defaultdict(list)
    for tensor in stored:
        if isinstance(tensor, Computed):
            members[tensor.group].append(tensor)
    for tensor in stored:
        if isinstance(tensor, Computed):
            yield from members.pop(tensor.group, ())
        else:
            yield tensor


def _identity(tensor: ir.TensorProtocol | None) -> Hashable:
    """Tensors that are alike in this have the same bytes."""
    if isinstance(tensor, Stored):
        return tensor.path, tensor.offset or 0, tensor.nbytes
    if isinstance(tensor, Computed):
        return tensor.group, tensor.index
    return id(tensor)


def _is_large(tensor: ir.TensorProtocol) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.nbytes > INLINE_BYTES or isinstance(tensor, Computed)


def _refer(value: ir.Value, location: str, start: int, folder: Path) -> Stored:
    tensor = value.const_value
    assert tensor is not None
    return Stored(
        location, start, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()),
        name=str(value.name), base_dir=folder,
    )  # fmt: skip


def _nbytes(form: Form) -> int:
    return -(-prod(form.shape) * form.dtype.bitwidth // 8)


def _raw_dtype(dtype: ir.DataType) -> np.dtype:
    """How its bytes lie in a file: numbers of less than a byte are packed."""
    return np.dtype(np.uint8 if dtype.bitwidth < 8 else dtype.numpy())


def _encoded(array: np.ndarray, form: Form) -> np.ndarray:
    """The bytes of a piece, as they stand in a file."""
    if form.dtype.bitwidth == 4 and array.dtype == np.uint8:
        return np.ascontiguousarray(array).reshape(-1)
    if array.dtype != form.dtype.numpy():
        raise _misfit(form, f"{array.dtype} where {form.dtype.name} was said")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if form.dtype.bitwidth >= 8:
        return flat
    if form.dtype.bitwidth < 4:
        return np.frombuffer(ir.Tensor(array, form.dtype).tobytes(), np.uint8)
    pairs = np.append(flat, np.uint8(0)).view("<u2") if flat.size % 2 else flat.view("<u2")
    return ((pairs & 0x0F) | (pairs >> 4 & 0xF0)).astype(np.uint8)


def _decoded(raw: np.ndarray, dtype: ir.DataType, dims: Sequence[int]) -> np.ndarray:
    """The numbers in the bytes of a file."""
    if dtype.bitwidth < 8:
        return ir.PackedTensor(raw, dtype, shape=dims).numpy()
    return raw.view(_raw_dtype(dtype)).reshape(dims)


def _misfit(form: Form, what: str) -> OptkitError:
    return OptkitError(f"computed numbers do not fit: {what}", where=f"tensor {form.name!r}")
