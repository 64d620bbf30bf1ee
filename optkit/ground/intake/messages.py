"""The messages of an ONNX file, read from its bytes, and the checks of all of them: the number of
fields, printable names, the depth of nested types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from optkit.facts.errors import UnsafeFile
from optkit.ground.intake import wire
from optkit.ground.intake.fields import MESSAGES
from optkit.ground.intake.files import FileLimits, show

_NAME_BYTES = 1 << 16
# Control characters (U+0000 to U+001F, U+007F to U+009F) and Unicode's own ends of lines, in UTF-8:
# a compiler that lists layers line by line would split such a name.
_UNPRINTABLE = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


class Messages:
    """The bytes of one file. A message is a range [start, end) of these bytes. Every method raises
    UnsafeFile if it refuses the content."""

    def __init__(self, data: memoryview, limits: FileLimits) -> None:
        self.data = data
        self.limits = limits
        self._fields = 0

    def walk(self, message: str, start: int, end: int) -> Iterator[tuple[str, int, int, int]]:
        """(name, wire type, a, b) of the known fields. Other fields contain no tensor or graph."""
        known = MESSAGES[message]
        seen = set()
        for number, kind, a, b in wire.fields(self.data, start, end):
            self._fields += 1
            if self._fields > self.limits.fields:
                raise UnsafeFile(f"the file has more than {self.limits.fields} protobuf fields")
            field = known.get(number)
            if field is None:
                continue
            if kind not in field.wires:
                raise UnsafeFile(f"{message} field {number} has the wrong wire type {kind}")
            if not field.many:
                if number in seen:
                    raise UnsafeFile(f"{message} field {number} occurs twice")
                seen.add(number)
            yield field.name, kind, a, b

    def name(self, a: int, b: int) -> bytes:
        """A printable name, in UTF-8."""
        name = self.text(a, b)
        try:
            name.decode()
        except UnicodeDecodeError:
            raise UnsafeFile(f"the name {show(name)} is not UTF-8") from None
        if _UNPRINTABLE.search(name):
            raise UnsafeFile(
                f"the name {show(name)} contains a control character",
                hint="rename it: tools that read names line by line would split it",
            )
        return name

    def text(self, a: int, b: int) -> bytes:
        if b - a > _NAME_BYTES:
            raise UnsafeFile(f"a name has more than {_NAME_BYTES} bytes")
        return bytes(self.data[a:b])

    def integer(self, kind: int, a: int, b: int) -> int:
        """A signed varint; 0 for a packed field that does not have exactly one element."""
        if kind == wire.VARINT:
            return wire.signed(a)
        if a == b:
            return 0
        value, at = wire.varint(self.data, a, b)
        return wire.signed(value) if at == b else 0

    def dims(self, dims: list[int], kind: int, a: int, b: int) -> None:
        if kind == wire.VARINT:
            dims.append(wire.signed(a))
        else:
            while a < b and len(dims) <= self.limits.rank:
                value, a = wire.varint(self.data, a, b)
                dims.append(wire.signed(value))
        self.check_rank(len(dims))

    def check_rank(self, rank: int) -> None:
        if rank > self.limits.rank:
            raise UnsafeFile(f"a tensor has more than {self.limits.rank} dimensions")

    def value(self, start: int, end: int) -> bytes:
        """Check the type of a value; return its name."""
        name = b""
        for field, _, a, b in self.walk("ValueInfoProto", start, end):
            if field == "name":
                name = self.name(a, b)
            else:
                self.type(a, b, 0)
        return name

    def type(self, start: int, end: int, depth: int) -> None:
        if depth > self.limits.nesting:
            raise UnsafeFile(f"types are nested deeper than {self.limits.nesting}")
        for field, _, a, b in self.walk("TypeProto", start, end):
            if field == "tensor":
                for _, _, c, d in self.walk("TypeProto.Tensor", a, b):
                    self._shape(c, d)
            else:
                message = "TypeProto.Map" if field == "map" else "TypeProto.Sequence"
                for _, _, c, d in self.walk(message, a, b):
                    self.type(c, d, depth + 1)

    def _shape(self, start: int, end: int) -> None:
        rank = 0
        for _, _, a, b in self.walk("TensorShapeProto", start, end):
            rank += 1
            for _, _, c, d in self.walk("TensorShapeProto.Dimension", a, b):
                self.name(c, d)
        self.check_rank(rank)
