"""Weights that may be larger than memory: they are read by rows, and computed when they are
written.

    data file ── MappedTensor ──► rows ──► pieces ── ComputedTensor ──► data file of the next graph
        └────────────── unchanged: a hard link, no byte is read ──────────►

At most one piece of one weight is in memory. `data_files` writes and links the files.
"""

from __future__ import annotations

import io
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from optkit.facts.errors import OptkitError

_THREADS = min(4, os.cpu_count() or 1)
_PIECE_BYTES = 8 << 20  # bytes of a weight that are multiplied at a time

T = TypeVar("T")
R = TypeVar("R")
Piece = Sequence[np.ndarray | None]
Compute = Callable[[], Iterable[Piece]]


class TensorForm(NamedTuple):
    """The dtype and shape of a tensor that will be computed."""

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]


class MappedTensor(ir.ExternalTensor):
    """A tensor in a data file. Every `numpy()` maps the file again, and the object keeps nothing,
    so the pages leave memory together with the array. The file was checked when the model was
    loaded."""

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

    def named(self, name: str) -> MappedTensor:
        """The same numbers under another name."""
        return MappedTensor(
            self.location,
            self.offset,
            self.nbytes,
            self.dtype,
            shape=self.shape,
            name=name,
            base_dir=self.base_dir,
        )

    def __array__(self, dtype: npt.DTypeLike | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def tobytes(self) -> bytes:
        with self.open() as file:
            file.seek(self.offset or 0)
            return file.read(self.nbytes)

    def tofile(self, file: BinaryIO) -> None:
        file.write(self.tobytes())

    def open(self) -> io.BufferedReader:
        """Open the data file without following a link."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return os.fdopen(descriptor, "rb")

    def fill(self, block: np.ndarray, file: io.BufferedReader) -> None:
        """Read the next bytes of its opened data file into `block`."""
        data = block.reshape(-1).view(np.uint8)
        if file.readinto(data.data) != data.nbytes:
            raise _cut_short(self)


class ComputedTensor(ir.LazyTensor):
    """A tensor whose numbers are computed when they are needed, together with those of its
    group."""

    __slots__ = ("group", "index")

    def __init__(self, group: TensorGroup, index: int) -> None:
        form = group.forms[index]
        super().__init__(
            lambda: group.tensors()[index], form.dtype, ir.Shape(form.shape), name=form.name
        )
        self.group = group
        self.index = index


def computed(forms: Sequence[TensorForm], compute: Compute) -> list[ir.TensorProtocol]:
    """One tensor per form, none of them in memory: `compute` yields their numbers in pieces.

    A piece has one array per form (None: nothing for this form); the pieces of a form, in C order,
    are its numbers. Four-bit numbers may already be packed (uint8, low half first); then each piece
    except the last has an even number of them. `compute` runs once while a model is saved and once
    for every `numpy()`, and gives the same bytes each time.

    Raises OptkitError with the name of the tensor if pieces do not fit their form.
    """
    group = TensorGroup(tuple(forms), compute)
    return [ComputedTensor(group, index) for index in range(len(group.forms))]


def scaled(tensor: ir.TensorProtocol, factor: np.ndarray) -> ir.TensorProtocol:
    """The numbers times a factor (float64, of a shape that broadcasts with theirs), in their dtype.
    If they are not in memory, and keep their shape, the products are not either."""

    def times(block: np.ndarray, part: np.ndarray) -> np.ndarray:
        product: np.ndarray = (block.astype(np.float64) * part).astype(block.dtype)
        return product

    dims = tuple(tensor.shape.numpy())
    stored = isinstance(tensor, MappedTensor | ComputedTensor)
    if not stored or not dims or np.broadcast_shapes(dims, factor.shape) != dims:
        return ir.Tensor(times(tensor.numpy(), factor), name=tensor.name)
    along = np.broadcast_to(factor, dims)
    count = max(_PIECE_BYTES * dims[0] // max(tensor.nbytes, 1), 1)

    def pieces() -> Iterator[Piece]:
        for number, block in enumerate(rows(tensor, count)):
            yield (times(block, along[number * count : (number + 1) * count]),)

    return computed([TensorForm(str(tensor.name), tensor.dtype, dims)], pieces)[0]


def rows(value: ir.Value | ir.TensorProtocol, count: int) -> Iterator[np.ndarray]:
    """A constant in blocks of `count` rows of its first axis, in its own dtype.

    Tensors in a data file are read, not mapped: one block is in memory. A scalar is one block.
    """
    tensor = value.const_value if isinstance(value, ir.Value) else value
    assert tensor is not None
    shape = tensor.shape.numpy()
    if not isinstance(tensor, MappedTensor) or not shape or tensor.dtype.bitwidth < 8:
        array = tensor.numpy()
        starts = range(0, shape[0], count) if shape else ()
        yield from (array[at : at + count] for at in starts) if shape else (array,)
        return
    dtype, row = _raw_dtype(tensor.dtype), shape[1:]
    with tensor.open() as file:
        file.seek(tensor.offset or 0)
        for at in range(0, shape[0], count):
            block = np.empty((min(count, shape[0] - at), *row), dtype)
            tensor.fill(block, file)
            os.posix_fadvise(file.fileno(), file.tell(), block.nbytes, os.POSIX_FADV_WILLNEED)
            yield block


def blocks(value: ir.Value | ir.TensorProtocol, most_bytes: int) -> Iterator[np.ndarray]:
    """A constant in blocks of rows, of about this many bytes each; see `rows`."""
    tensor = value.const_value if isinstance(value, ir.Value) else value
    assert tensor is not None
    dims = tensor.shape.numpy()
    row = tensor.nbytes // dims[0] if dims and dims[0] else 0
    return rows(tensor, max(most_bytes // max(row, 1), 1))


def columns(value: ir.Value | ir.TensorProtocol, count: int) -> Iterator[np.ndarray]:
    """A constant matrix in blocks of `count` columns, in its own dtype. Like in `rows`, tensors in
    a data file are read, not mapped: from each row only the part that belongs to the block."""
    tensor = value.const_value if isinstance(value, ir.Value) else value
    assert tensor is not None
    height, width = tensor.shape.numpy()
    if not isinstance(tensor, MappedTensor) or tensor.dtype.bitwidth < 8:
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
    """The results of `work` for the items, in order. Several threads work; only a few items are in
    memory at once."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class TensorGroup:
    """Tensors that are computed together."""

    def __init__(self, forms: tuple[TensorForm, ...], compute: Compute) -> None:
        self.forms = forms
        self._compute = compute

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the form, its next bytes). Raises OptkitError if they do not fit."""
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
        """All tensors, in memory."""
        buffers = [np.empty(_nbytes(form), np.uint8) for form in self.forms]
        at = [0] * len(self.forms)
        for index, data in self.pieces():
            buffers[index][at[index] : at[index] + data.nbytes] = data
            at[index] += data.nbytes
        return [
            ir.Tensor(_decoded(raw, form.dtype, form.shape), form.dtype, name=form.name)
            for raw, form in zip(buffers, self.forms, strict=True)
        ]


def _cut_short(tensor: ir.TensorProtocol) -> OptkitError:
    return OptkitError("its data file was cut", where=f"tensor {tensor.name!r}")


def _nbytes(form: TensorForm) -> int:
    return -(-prod(form.shape) * form.dtype.bitwidth // 8)


def _raw_dtype(dtype: ir.DataType) -> np.dtype:
    """The dtype of the bytes in a file; numbers of less than a byte are packed."""
    return np.dtype(np.uint8 if dtype.bitwidth < 8 else dtype.numpy())


def _encoded(array: np.ndarray, form: TensorForm) -> np.ndarray:
    """The bytes of a piece in the form of a file."""
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


def _misfit(form: TensorForm, what: str) -> OptkitError:
    return OptkitError(f"computed numbers do not fit: {what}", where=f"tensor {form.name!r}")
