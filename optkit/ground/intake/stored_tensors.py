"""Tensors of an ONNX file: their sizes compared with their bytes, and references to other files.
Only the values of single integers are read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from optkit.facts.errors import UnsafeFile
from optkit.ground.intake import wire
from optkit.ground.intake.fields import STORAGE, Storage
from optkit.ground.intake.files import show
from optkit.ground.intake.messages import Messages

_INT64, _STRING = 7, 8

_EXTERNAL_KEYS = frozenset({"location", "offset", "length", "checksum"})
_LOCATION_BYTES = 255
_COUNT = re.compile(r"[0-9]{1,19}", re.ASCII)
# Control characters, backslash and what Windows forbids in names (a drive's colon among them). ONNX
# Runtime reads the location `*/_ORT_MEM_ADDR_/*` as an address in its memory.
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\<>:"|?*]')


@dataclass(frozen=True)
class External:
    """One tensor's bytes in another file: [offset, offset + length) of `location`."""

    tensor: str  # for messages
    location: str
    offset: int
    length: int


Scalar = int | External
"""The value of a tensor with one int64, or a reference to it."""


@dataclass
class _Tensor:
    """One TensorProto of the file."""

    name: bytes = b""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    location: int = 0  # 1: in another file
    raw: tuple[int, int] | None = None
    entries: Counter[str] = field(default_factory=Counter)  # of float_data, int32_data, ...
    integer: int = 0  # int64_data, when that is one number
    external: list[tuple[int, int]] = field(default_factory=list)


class Tensors:
    """All tensors of a file. `count`: how many were read; `external`: their references to other
    files; their text is checked, the files are not."""

    def __init__(self, messages: Messages) -> None:
        self.count = 0
        self.external: list[External] = []
        self._messages = messages
        self._limits = messages.limits

    def dense(self, start: int, end: int) -> tuple[bytes, Scalar | None]:
        """Compare the size of a tensor with its bytes; return (name, its value if one int64)."""
        self.count += 1
        if self.count > self._limits.tensors:
            raise UnsafeFile(f"the model has more than {self._limits.tensors} tensors")
        tensor = self._read(start, end)
        where = f"tensor {show(tensor.name)}" if tensor.name else "a tensor without a name"
        storage = STORAGE.get(tensor.data_type)
        if storage is None:
            raise UnsafeFile(f"unknown element type {tensor.data_type}", where=where)
        elements = _elements(tensor.dims, where)
        for reason, refused in _REFUSED:
            if refused(tensor):
                raise UnsafeFile(reason, where=where)
        scalar = self._scalar(tensor, storage, elements, where)
        return tensor.name, scalar if (tensor.data_type, elements) == (_INT64, 1) else None

    def _scalar(self, tensor: _Tensor, storage: Storage, elements: int, where: str) -> Scalar:
        """The first element, read as int64. Raises UnsafeFile if the bytes do not fit the shape."""
        size = (elements * storage.bits + 7) // 8
        if tensor.external:
            reference = self._external(tensor.external, size, where)
            self.external.append(reference)
            return reference
        if tensor.raw is not None:
            a, b = tensor.raw
            if b - a != size:
                raise UnsafeFile(f"{b - a} bytes do not fit {elements} elements", where=where)
            data = self._messages.data[a : min(b, a + 8)]
            return int.from_bytes(data, "little", signed=True)
        expected = -(-elements * storage.entries // storage.per_entry)
        if tensor.entries[storage.typed] != expected:
            raise UnsafeFile(f"its data does not have {elements} elements", where=where)
        return tensor.integer

    def sparse(self, start: int, end: int) -> bytes:
        """Check a sparse tensor; return its name, which is the name of its values."""
        dims: list[int] = []
        name = b""
        for part, kind, a, b in self._messages.walk("SparseTensorProto", start, end):
            if part == "dims":
                self._messages.dims(dims, kind, a, b)
            else:
                tensor, _ = self.dense(a, b)
                name = tensor if part == "values" else name
        if _elements(dims, "sparse tensor") > self._limits.proto_bytes:  # runtimes make it dense
            raise UnsafeFile(f"a sparse tensor has {prod(dims)} elements, which is too many")
        return name

    def _read(self, start: int, end: int) -> _Tensor:
        tensor = _Tensor()
        for name, kind, a, b in self._messages.walk("TensorProto", start, end):
            if name == "dims":
                self._messages.dims(tensor.dims, kind, a, b)
            elif name == "name":
                tensor.name = self._messages.name(a, b)
            elif name == "data_type":
                tensor.data_type = a
            elif name == "data_location":
                tensor.location = a
            elif name == "raw_data":
                tensor.raw = (a, b)
            elif name == "external":
                tensor.external.append((a, b))
                if len(tensor.external) > len(_EXTERNAL_KEYS):
                    raise UnsafeFile("a tensor has too many external_data entries")
            elif name == "segment":
                raise UnsafeFile("tensors that are stored in segments are not supported")
            else:
                tensor.entries[name] += self._entries(name, kind, a, b)
                if name == "int64_data":
                    tensor.integer = max(tensor.integer, self._messages.integer(kind, a, b))
        return tensor

    def _external(self, entries: list[tuple[int, int]], length: int, where: str) -> External:
        values: dict[str, str] = {}
        for start, end in entries:
            pair = {"key": "", "value": ""}
            for name, _, a, b in self._messages.walk("StringStringEntryProto", start, end):
                try:
                    pair[name] = self._messages.text(a, b).decode()
                except UnicodeDecodeError as error:
                    raise UnsafeFile("external_data is not UTF-8", where=where) from error
            key, value = pair.values()
            if key not in _EXTERNAL_KEYS or key in values:
                raise UnsafeFile(
                    f"external_data key {show(key)} is unknown, or occurs twice", where=where
                )
            values[key] = value
        location = values.get("location", "")
        _check_location(location, where)
        offset = _count(values.get("offset", "0"), "offset", where)
        if _count(values.get("length", str(length)), "length", where) != length:
            raise UnsafeFile(
                f"external_data length is {show(values['length'])}, but the shape needs {length}",
                where=where,
            )
        return External(where, location, offset, length)

    def _entries(self, name: str, kind: int, a: int, b: int) -> int:
        """The number of entries in one field of typed data."""
        if kind != wire.LENGTH or name == "string_data":
            return 1
        size = {"float_data": 4, "double_data": 8}.get(name)
        if size is None:
            return wire.count_varints(self._messages.data, a, b)
        if (b - a) % size:
            raise UnsafeFile(f"{name} ends inside an element")
        return (b - a) // size


_REFUSED: tuple[tuple[str, Callable[[_Tensor], bool]], ...] = (
    (
        "external_data and data_location disagree",
        lambda t: t.location not in (0, 1) or (t.location == 1) != bool(t.external),
    ),
    (
        "the tensor stores its data twice",
        lambda t: bool(t.external) + (t.raw is not None) + len(t.entries) > 1,
    ),
    (
        "strings must be in string_data",
        lambda t: t.data_type == _STRING and bool(t.external or t.raw),
    ),
)


def _check_location(location: str, where: str) -> None:
    """Raise UnsafeFile if a location is not a portable relative path below the model's folder."""
    parts = location.split("/")
    if (
        not 0 < len(location.encode()) <= _LOCATION_BYTES
        or _FORBIDDEN.search(location)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise UnsafeFile(
            f"external data location {show(location)} is not a plain relative path",
            where=where,
            hint="keep the data in the model's folder: onnx.save(..., location='weights.bin')",
        )


def _count(text: str, what: str, where: str) -> int:
    if not _COUNT.fullmatch(text):
        raise UnsafeFile(f"external_data {what} {show(text)} is not a number of bytes", where=where)
    return int(text)


def _elements(dims: list[int], where: str) -> int:
    if any(d < 0 for d in dims):
        raise UnsafeFile(f"the shape {dims} has a negative dimension", where=where)
    if prod(max(d, 1) for d in dims) >> 59:  # libraries ignore zeros when they check this
        raise UnsafeFile(f"a tensor of shape {dims} is too large for any memory", where=where)
    return prod(dims)
