"""Metadata in a finished ONNX file: the program that wrote it, the build, and the verdict of its
gates.

Fields that are appended to a protobuf message are merged into it (Protocol Buffers, "Encoding":
last field wins, repeated fields are concatenated). So the file is copied unchanged, and no weight
is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

PREFIX = "optkit.build."

# fields of onnx.ModelProto, then of onnx.StringStringEntryProto
_PRODUCER_NAME, _PRODUCER_VERSION, _METADATA = 2, 3, 14
_KEY, _VALUE = 1, 2
_LENGTH_DELIMITED = 2


def stamp(source: Path, out: Path, version: str, metadata: Mapping[str, str | None]) -> Path:
    """Copy an ONNX file to `out` with its producer, optkit of that version, and as metadata under
    `PREFIX` what is not None."""
    entries = b"".join(
        _field(_METADATA, _field(_KEY, f"{PREFIX}{key}".encode()) + _field(_VALUE, value.encode()))
        for key, value in sorted(metadata.items())
        if value is not None
    )
    shutil.copyfile(source, out)
    with out.open("ab") as file:
        producer = _field(_PRODUCER_NAME, b"optkit") + _field(_PRODUCER_VERSION, version.encode())
        file.write(producer + entries)
    return out


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
