"""Checks safetensors weights and zip files (.pt2) and copies them into the store; refuses pickles.

safetensors: u64 header length | JSON header | bytes, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from optkit.facts.dtypes import DTYPES
from optkit.facts.errors import UnsafeFile
from optkit.ground.intake.files import (
    FileLimits,
    StagedFile,
    copy_in,
    located,
    opened,
    publish,
    show,
)
from optkit.ground.store import scratch

PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib", ".npy", ".npz"})

_BITS = {dtype.stored: dtype.bits for dtype in DTYPES.values() if dtype.stored} | {
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "C64": 64,  # optkit computes in none
}
_RANGES_BYTES = 64 << 20  # a file of ranges: some tens of bytes for each tensor
_DIRECTORY_BYTES = 8 << 20  # a zip's list of members
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def stage_weights(
    path: Path, store_objects: Path, *, limits: FileLimits | None = None
) -> StagedFile:
    """Check a safetensors file and copy it into the store.

    Raises UnsafeFile for a pickle (by its suffix), and for a file that is not valid safetensors.
    """
    if path.suffix.lower() in PICKLES:
        raise UnsafeFile(
            f"pickles are refused: a {path.suffix} file can run code when it is loaded",
            where=str(path),
            hint="save the weights with safetensors.torch.save_file(model.state_dict(), ...)",
        )
    return _stage(path, store_objects, limits or FileLimits(), _check_safetensors)


def stage_pt2(path: Path, store_objects: Path, *, limits: FileLimits | None = None) -> StagedFile:
    """Check a torch.export archive (a zip file) and copy it into the store. Opens no member."""
    return _stage(path, store_objects, limits or FileLimits(), _check_members)


def stage_ranges(path: Path, store_objects: Path) -> StagedFile:
    """Copy a text file with ranges of activations into the store. What it says is checked when it
    is read."""
    return _stage(
        path, store_objects, FileLimits(data_bytes=_RANGES_BYTES), lambda file, limits: None
    )


def check_weights(path: Path, *, limits: FileLimits | None = None) -> None:
    """Raise UnsafeFile if `path`, a copy in the store, is not a valid safetensors file."""
    with path.open("rb") as file:
        _check_safetensors(file, limits or FileLimits())


_Check = Callable[[BinaryIO, FileLimits], None]


def _stage(path: Path, store_objects: Path, limits: FileLimits, check: _Check) -> StagedFile:
    with opened(path) as source, scratch(store_objects.parent) as folder:
        copy = folder / "file"
        sha256, size = copy_in(source, copy, limit_bytes=limits.data_bytes, where=str(path))
        with located(path), copy.open("rb") as file:
            check(file, limits)
        place = publish(copy, store_objects, sha256)
    return StagedFile(place, sha256, size)


def _check_safetensors(file: BinaryIO, limits: FileLimits) -> None:
    total = file.seek(0, io.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(total - 8, limits.header_bytes):
        raise UnsafeFile("not a safetensors file, or its header is truncated")
    header = file.read(length)
    if header[:1] != b"{" or sum(map(header.count, (b"{", b"[", b","))) > limits.header_items:
        raise UnsafeFile("not a safetensors file, or its header is too large")
    try:
        tensors = json.loads(header, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UnsafeFile("the safetensors header is not valid JSON") from error
    metadata = tensors.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
        raise UnsafeFile("the safetensors metadata has values that are not text")
    spans = sorted(_span(name, facts) for name, facts in tensors.items())
    end = 0
    for start, stop, name in spans:
        if start != end:
            raise UnsafeFile(
                "its bytes overlap with another tensor, or leave a gap before it",
                where=f"tensor {show(name)}",
            )
        end = stop
    if end != total - 8 - length:
        raise UnsafeFile(f"the tensors take {end} bytes, but the file has {total - 8 - length}")


_FACTS = ("dtype", "shape", "data_offsets")


def _span(name: str, facts: object) -> tuple[int, int, str]:
    """(first byte, end, name) of one tensor, its size checked against its shape."""
    where = f"tensor {show(name)}"
    if not isinstance(facts, dict) or set(facts) != set(_FACTS):
        raise UnsafeFile("it must have exactly dtype, shape and data_offsets", where=where)
    dtype, shape, offsets = (facts[name] for name in _FACTS)
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise UnsafeFile(f"unknown dtype {show(str(dtype))}", where=where)
    if not _counts(shape) or not _counts(offsets) or len(shape) > 32 or len(offsets) != 2:
        raise UnsafeFile("shape and data_offsets must be lists of integers ≥ 0", where=where)
    start, stop = offsets
    if (stop - start) * 8 != prod(shape) * bits:
        raise UnsafeFile(f"{stop - start} bytes do not fit shape {shape} of {dtype}", where=where)
    return start, stop, name


def _counts(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnsafeFile("the safetensors header has the same key twice")
    return members


class _Bounded(io.BufferedReader):
    """Refuses a member list that would need much memory, before `zipfile` reads it."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY_BYTES:
            raise UnsafeFile(
                f"the member list of the zip file has {size} bytes, which is too large"
            )
        return super().read(size)


def _check_members(file: BinaryIO, limits: FileLimits) -> None:
    """Raise UnsafeFile if a zip file has too many members, would unpack to too many bytes, or has a
    member that is a link, encrypted, overlapping, or named outside the archive."""
    total = file.seek(0, io.SEEK_END)
    try:
        raw = io.FileIO(file.fileno(), closefd=False)
        with _Bounded(raw) as bounded, zipfile.ZipFile(bounded) as archive:
            members = archive.infolist()
    except UnsafeFile:
        raise
    except Exception as error:  # zipfile lets struct, Unicode and arithmetic errors through
        raise UnsafeFile("not a readable zip file", hint="save the file again") from error
    if len(members) > limits.members:
        raise UnsafeFile(f"the zip file has {len(members)} members; the limit is {limits.members}")
    packed = sum(m.compress_size for m in members)
    unpacked = sum(m.file_size for m in members)
    if packed > total:
        raise UnsafeFile("members of the zip file overlap")
    if unpacked > min(limits.ratio * total, limits.data_bytes):
        raise UnsafeFile(f"the zip file has {total} bytes and would unpack to {unpacked} bytes")
    names = [m.filename for m in members]
    if len(set(names)) != len(names):
        raise UnsafeFile("two members of the zip file have the same name")
    for member in members:
        _check_member(member)


def _check_member(member: zipfile.ZipInfo) -> None:
    name, where = member.orig_filename, f"member {show(member.orig_filename)}"
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or set(name) & set("\\\0:"):
        raise UnsafeFile("its name leads to a place outside the archive", where=where)
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UnsafeFile("not a regular file", where=where)
    if member.flag_bits & 1 or member.compress_type not in _PACKINGS:
        raise UnsafeFile("it is encrypted, or compressed with an unknown method", where=where)
