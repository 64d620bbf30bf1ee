"""Hostile safetensors headers and zip files."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
from typing import Any


def safetensors(header: Any, data: bytes = bytes(16), *, length: int | None = None) -> bytes:
    """A safetensors file of that header (an object, or its bytes), with that stated length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(start: int = 0, end: int = 16, **change: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [4], "data_offsets": [start, end], **change}


SAFETENSORS: dict[str, bytes] = {
    "empty": b"",
    "header_past_end": safetensors({"w": _entry()}, length=1 << 62),
    "header_too_long": safetensors(b"{" + b" " * 100_000_001 + b"}"),
    "no_json": safetensors(b"{'w': 1}"),
    "list": safetensors([1]),
    "deep": safetensors(b'{"w":' + b"[" * 200_000),
    "many_items": safetensors(b'{"w":[' + b"," * 10_000_001),
    "long_number": safetensors(b'{"w":' + b"9" * 5000 + b"}"),
    "twice": safetensors(
        b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
        b'"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    ),
    "past_end": safetensors({"w": _entry(0, 32, shape=[8])}),
    "overlap": safetensors({"a": _entry(0, 16), "b": _entry(8, 16, shape=[2])}),
    "hole": safetensors({"a": _entry(0, 4, shape=[1]), "b": _entry(8, 16, shape=[2])}),
    "left_over": safetensors({"a": _entry(0, 8, shape=[2])}),
    "backwards": safetensors({"w": _entry(16, 0)}),
    "negative": safetensors({"w": _entry(-16, 0)}),
    "shape_too_large": safetensors({"w": _entry(shape=[1 << 62, 1 << 62])}),
    "shape_wraps": safetensors({"w": _entry(shape=[1 << 32, 1 << 32, 4])}),
    "negative_shape": safetensors({"w": _entry(shape=[-2, -2])}),
    "float_shape": safetensors({"w": _entry(shape=[4.0])}),
    "bool_shape": safetensors({"w": _entry(shape=[True, 4])}),
    "high_rank": safetensors({"w": _entry(0, 4, shape=[1] * 33)}, bytes(4)),
    "unknown_dtype": safetensors({"w": _entry(dtype="OBJECT")}),
    "dtype_list": safetensors({"w": _entry(dtype=["F32"])}),
    "extra_key": safetensors({"w": _entry(code="os.system")}),
    "no_object": safetensors({"w": "F32"}),
    "metadata": safetensors({"__metadata__": {"a": [1]}, "w": _entry()}),
    "pickle": b"\x80\x04\x95\x1e" + bytes(7) + b"\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "endless_offsets": safetensors(
        b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,' + b"9" * 4000 + b"]}}"
    ),
}


def zip_file(*members: tuple[str | zipfile.ZipInfo, bytes], packed: bool = False) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as z:
        for name, data in members:
            z.writestr(name, data)
    return buffer.getvalue()


def _of_kind(kind: int) -> bytes:
    """A member that unpacks to something else than a file."""
    info = zipfile.ZipInfo("link")
    info.external_attr = (kind | 0o777) << 16
    return zip_file((info, b"/etc/passwd"))


def _many(count: int) -> bytes:
    """The list of a million empty members, which all are the same one; made without `zipfile`."""
    entry = b"PK\1\2" + bytes(24) + struct.pack("<H", 7) + bytes(16) + b"%07d"
    body = b"".join(entry % number for number in range(count))
    here = count & 0xFFFF
    return body + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, here, here, len(body), 0, 0)


def _named(name: str) -> bytes:
    """`zipfile` cleans some names when it writes, so the bytes are changed afterwards."""
    stand_in = "n" * len(name)
    return zip_file((stand_in, b"x")).replace(stand_in.encode(), name.encode())


def _overlap() -> bytes:
    """Two entries of the member list that share one member's bytes."""
    data = bytearray(zip_file(("a" * 300, bytes(4000))))
    start = data.rfind(b"PK\1\2")
    end = data.rfind(b"PK\5\6")
    entry = bytes(data[start:end])
    tail = bytearray(data[end:])
    struct.pack_into("<HHI", tail, 8, 2, 2, 2 * len(entry))
    return bytes(data[:start]) + entry + entry.replace(b"a" * 300, b"b" * 300) + bytes(tail)


def _flagged(offset: int, value: int) -> bytes:
    """One 16-bit field of the member list changed."""
    data = bytearray(zip_file(("a", b"x")))
    struct.pack_into("<H", data, data.rfind(b"PK\1\2") + offset, value)
    return bytes(data)


ZIPS: dict[str, bytes] = {
    "empty": b"",
    "no_zip": b"PK\3\4" + bytes(100),
    "cut": zip_file(("a", bytes(1000)))[:-30],
    "dotdot": zip_file(("../a", b"x")),
    "inner_dotdot": zip_file(("a/../../b", b"x")),
    "absolute": _named("/etc/cron.d/x"),
    "backslash": _named("..\\a"),
    "drive": _named("C:a"),
    "nul": _named("a\0b"),
    "link": _of_kind(stat.S_IFLNK),
    "character_device": _of_kind(stat.S_IFCHR),
    "block_device": _of_kind(stat.S_IFBLK),
    "pipe": _of_kind(stat.S_IFIFO),
    "socket": _of_kind(stat.S_IFSOCK),
    "bombs_in_a_bomb": zip_file(
        *((f"{i}.zip", zip_file(("a", bytes(1_000_000)), packed=True) * 400) for i in range(4)),
        packed=True,
    ),
    "million": _many(1_000_000),
    "bomb": zip_file(("a", bytes(10_000_000)), packed=True),
    "many": zip_file(*((str(i), b"") for i in range(10_001))),
    "long_list": zip_file(*((f"{i:060000}", b"") for i in range(150))),
    "twice": zip_file(("a", b"x"), ("c", b"y")).replace(b"c", b"a"),
    "overlap": _overlap(),
    "encrypted": _flagged(8, 1),
    "lzma": _flagged(10, 14),
}
