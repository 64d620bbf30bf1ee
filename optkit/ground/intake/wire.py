"""Protobuf's wire format, read in place: numbers and byte ranges, without message objects.

https://protobuf.dev/programming-guides/encoding: a message is a sequence of (tag, payload); the tag
is the field number and the wire type. This reader is stricter than parsers, so that no parser reads
other content: it refuses groups, field number 0 and varints of more than 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from optkit.facts.errors import UnsafeFile

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

_HIGH = bytes(range(0x80, 0x100))
_CHUNK = 1 << 20
_MASK = (1 << 64) - 1


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, a, b) of each field in data[start:end].

    A varint's value is in `a` (unsigned, b = 0); any other payload is data[a:b].
    Raises UnsafeFile if the bytes are not a protobuf message.
    """
    at = start
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _malformed(at)
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield number, wire, value, 0
            continue
        if wire == LENGTH:
            size, at = varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise _malformed(at)
        if size > end - at:
            raise _malformed(at)
        yield number, wire, at, at + size
        at += size


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(unsigned value, position after it) of the varint at data[at]."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MASK:
                break
            return value, at
        shift += 7
    raise _malformed(at)


def signed(value: int) -> int:
    """An int64 from its unsigned varint (two's complement)."""
    return value - (1 << 64) if value >> 63 else value


def count_varints(data: memoryview, start: int, end: int) -> int:
    """The number of varints in a packed payload: its bytes without the continuation bit."""
    last_bytes = 0
    for at in range(start, end, _CHUNK):
        last_bytes += len(bytes(data[at : min(at + _CHUNK, end)]).translate(None, _HIGH))
    return last_bytes


def _malformed(at: int) -> UnsafeFile:
    return UnsafeFile(
        f"not a protobuf message at byte {at}",
        hint="the file is damaged or incomplete, or not an ONNX model; copy it or export it again",
    )
