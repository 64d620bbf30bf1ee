"""Data files of a model: weights are written into them, or existing files are linked.

Only files that nobody may write (mode 0444) are hard-linked: files of the store, which do not
change.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.ground.graph.weights import ComputedTensor, MappedTensor, TensorGroup

_INLINE_BYTES = 1024  # a tensor up to this size is always in the model file
_ALIGNMENT = 4096  # alignment of each tensor in a data file: a page, so that a runtime can map it
_WORTH_A_LINK = 16 << 20  # a smaller data file is copied into the new one
# the least share of a linked file that is still read, because unused bytes are linked too
_USED = 0.9
_COPY_BYTES = 8 << 20
_WRITABLE, _READ_ONLY = 0o222, 0o444
# the errors of a disk without hard links
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def store(values: Sequence[ir.Value], path: Path) -> None:
    """Give the tensor of each value a place in data files next to the model `path`, in place.

    `<name>.<n>.data` are links to data files of which nearly all bytes are still used;
    `<name>.data` has the other tensors, in the order of the values. Both are read-only. Small
    tensors are loaded into memory, so that they are written into the model file.
    """
    large = [v for v in values if v.const_value is not None and _is_large(v.const_value)]
    inline(set(values) - set(large))
    linked = _link(large, path)
    places: dict[Hashable, int] = {}
    plan: list[tuple[int, ir.TensorProtocol]] = []
    groups: dict[TensorGroup, dict[int, int]] = defaultdict(dict)
    end = 0
    for tensor in _in_groups([v.const_value for v in large if v not in linked]):
        if (key := _identity(tensor)) in places:
            continue
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.nbytes
        places[key] = start
        if isinstance(tensor, ComputedTensor):
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
    """Load all tensors into memory, so that they are written into the model file. In place."""
    done: dict[TensorGroup, list[ir.Tensor[np.ndarray]]] = {}
    for value in values:
        tensor = value.const_value
        if isinstance(tensor, ComputedTensor):
            if tensor.group not in done:
                done[tensor.group] = tensor.group.tensors()
            value.const_value = done[tensor.group][tensor.index]
            value.const_value.name = value.name
        elif isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy().copy(), name=value.name)


def _link(values: Iterable[ir.Value], path: Path) -> dict[ir.Value, tuple[str, int]]:
    """Link the data files of which nearly all bytes are used: value → (file name, offset)."""
    readers: dict[str, list[tuple[ir.Value, MappedTensor]]] = defaultdict(list)
    for value in values:
        if isinstance(value.const_value, MappedTensor):
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
    temporary.unlink(missing_ok=True)  # renaming to another name of the same file has no effect


def _write(
    target: Path,
    size: int,
    plan: Iterable[tuple[int, ir.TensorProtocol]],
    groups: Mapping[TensorGroup, Mapping[int, int]],
) -> None:
    temporary = target.with_name(f".{target.name}.part")
    with temporary.open("wb", buffering=0) as file:
        file.truncate(size)
        for start, tensor in plan:
            if isinstance(tensor, MappedTensor):
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


def _copy(tensor: MappedTensor, file: io.FileIO, start: int) -> None:
    """Copy the bytes of the tensor to `start` of the file, inside the kernel if possible."""
    done, total = 0, tensor.nbytes
    with tensor.open() as source:
        with contextlib.suppress(OSError):  # not possible between these two file systems
            while done < total:
                copied = os.copy_file_range(
                    source.fileno(),
                    file.fileno(),
                    total - done,
                    (tensor.offset or 0) + done,
                    start + done,
                )
                if not copied:
                    break
                done += copied
        source.seek((tensor.offset or 0) + done)
        while done < total:
            block = np.empty(min(_COPY_BYTES, total - done), np.uint8)
            tensor.fill(block, source)
            _put(file, start + done, block)
            done += block.nbytes


def _put(file: io.FileIO, start: int, data: np.ndarray) -> None:
    view = data.data
    while view:
        written = os.pwrite(file.fileno(), view, start)
        view, start = view[written:], start + written


def _in_groups(tensors: Iterable[ir.TensorProtocol | None]) -> Iterator[ir.TensorProtocol]:
    """The values in order, but the members of a group follow directly after their first member."""
    stored = [tensor for tensor in tensors if tensor is not None]
    members: dict[TensorGroup, list[ir.TensorProtocol]] = defaultdict(list)
    for tensor in stored:
        if isinstance(tensor, ComputedTensor):
            members[tensor.group].append(tensor)
    for tensor in stored:
        if isinstance(tensor, ComputedTensor):
            yield from members.pop(tensor.group, ())
        else:
            yield tensor


def _identity(tensor: ir.TensorProtocol | None) -> Hashable:
    """Tensors with the same identity have the same bytes."""
    if isinstance(tensor, MappedTensor):
        return tensor.path, tensor.offset or 0, tensor.nbytes
    if isinstance(tensor, ComputedTensor):
        return tensor.group, tensor.index
    return id(tensor)


def _is_large(tensor: ir.TensorProtocol) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.nbytes > _INLINE_BYTES or isinstance(tensor, ComputedTensor)


def _refer(value: ir.Value, location: str, start: int, folder: Path) -> MappedTensor:
    tensor = value.const_value
    assert tensor is not None
    return MappedTensor(
        location,
        start,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=str(value.name),
        base_dir=folder,
    )
