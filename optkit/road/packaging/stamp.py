"""What a finished ONNX file says besides its graph: what the user's file said, the program that
wrote it, the build, and the verdict of its gates.

Fields that are appended to a protobuf message are merged into it (Protocol Buffers, "Encoding":
last field wins, repeated fields are concatenated). So the file is copied unchanged, and no weight
is read. A second message `graph` would be merged too, but not by every reader, so the fields of the
graph are appended inside of it.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from optkit.craft.sources.export_log import OnnxOrigin

PREFIX = "optkit.build."

# fields of onnx.ModelProto, of onnx.GraphProto, then of onnx.StringStringEntryProto
_PRODUCER_NAME, _PRODUCER_VERSION, _DOMAIN, _MODEL_VERSION, _DOC = 2, 3, 4, 5, 6
_GRAPH, _METADATA = 7, 14
_GRAPH_NAME, _GRAPH_DOC, _GRAPH_METADATA = 2, 10, 16
_KEY, _VALUE = 1, 2
_VARINT, _LENGTH_DELIMITED = 0, 2
_UNSIGNED = (1 << 64) - 1


def stamp(
    source: Path,
    out: Path,
    version: str,
    metadata: Mapping[str, str | None],
    origin: OnnxOrigin | None = None,
) -> Path:
    """Copy an ONNX file to `out` with what the user's file said (`origin`), its producer, optkit of
    that version, and as metadata under `PREFIX` what is not None."""
    build = {
        f"{PREFIX}{key}": value for key, value in sorted(metadata.items()) if value is not None
    }
    origin = origin or OnnxOrigin()
    with source.open("rb") as file, out.open("wb") as target:
        _copy(file, target, _of_graph(origin))
        target.write(_field(_PRODUCER_NAME, b"optkit"))
        target.write(_field(_PRODUCER_VERSION, version.encode()))
        target.write(_texts({_DOMAIN: origin.domain, _DOC: origin.doc_string}))
        if origin.model_version:
            number = _varint(origin.model_version & _UNSIGNED)
            target.write(_varint(_MODEL_VERSION << 3 | _VARINT) + number)
        target.write(_entries(_METADATA, {**origin.metadata, **build}))
    return out


def _of_graph(origin: OnnxOrigin) -> bytes:
    texts = _texts({_GRAPH_NAME: origin.graph_name, _GRAPH_DOC: origin.graph_doc_string})
    return texts + _entries(_GRAPH_METADATA, origin.graph_metadata)


def _texts(fields: Mapping[int, str]) -> bytes:
    return b"".join(_field(number, text.encode()) for number, text in fields.items() if text)


def _entries(number: int, metadata: Mapping[str, str]) -> bytes:
    return b"".join(
        _field(number, _field(_KEY, key.encode()) + _field(_VALUE, value.encode()))
        for key, value in metadata.items()
    )


def _copy(source: BinaryIO, out: BinaryIO, more: bytes) -> None:
    """Copy a ModelProto that optkit wrote, with `more` at the end of its graph."""
    while more and (tag := _read(source)) is not None:
        number, kind = tag >> 3, tag & 7
        length = _read(source)
        assert length is not None
        out.write(_varint(tag))
        if kind == _VARINT:
            out.write(_varint(length))
            continue
        assert kind == _LENGTH_DELIMITED
        last = number == _GRAPH
        out.write(_varint(length + (len(more) if last else 0)))
        _copy_bytes(source, out, length)
        if last:
            out.write(more)
            break
    shutil.copyfileobj(source, out)


def _copy_bytes(source: BinaryIO, out: BinaryIO, length: int) -> None:
    while length:
        block = source.read(min(length, io.DEFAULT_BUFFER_SIZE << 6))
        out.write(block)
        length -= len(block)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _read(source: BinaryIO) -> int | None:
    """A varint; None at the end of the file."""
    number = shift = 0
    while byte := source.read(1):
        number |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return number
    return None


def _varint(number: int) -> bytes:
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
