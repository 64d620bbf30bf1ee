"""Stages an ONNX model: the file and its external data become one folder of the store."""

from __future__ import annotations

import json
import mmap
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from optkit.errors import UnsafeFile
from optkit.stage.door import (
    Limits,
    copy_in,
    opened,
    opened_beneath,
    publish,
    scratch,
    show,
)
from optkit.stage.scan import External, Scan, check_trip_count
from optkit.stage.twins import Twins
from optkit.store import digest_json, digest_once, fsync_dir, storage_errors, write_durably

_MODEL = "model.onnx"
_ENTRY = "entry.json"  # what the folder holds; the store's gc dates a folder by it


@dataclass(frozen=True)
class StagedModel:
    """A checked model in the store. Opening `path` reads nothing outside its folder.

    `sha256` covers every file; `files` maps their names to (sha256, bytes).
    """

    path: Path
    sha256: str
    files: dict[str, tuple[str, int]]
    nodes: int
    tensors: int

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files.values())


def stage_onnx(path: Path, store_objects: Path, *, limits: Limits | None = None) -> StagedModel:
    """Check an ONNX file and copy it with its external data into a folder of the store.

    Raises UnsafeFile naming the file and the tensor, InputRefused (missing), StorageError.
    """
    limits, twins = limits or Limits(), Twins(store_objects)
    with scratch(store_objects) as folder:
        tree = folder / "model"
        tree.mkdir(mode=0o700)
        with opened(path) as source:
            limit = limits.proto_bytes
            files = {_MODEL: copy_in(source, tree / _MODEL, limit_bytes=limit, where=str(path))}
        try:
            scan = _scan(tree / _MODEL, limits)
            files |= _copy_data(scan.external, path.parent.resolve(), tree, limits, twins)
            for loop, reference in scan.trip_counts:
                check_trip_count(_read_int64(tree, reference), loop, limits)
        except UnsafeFile as error:
            where = f"{path}, {error.where}" if error.where else str(path)
            raise UnsafeFile(error.message, where=where, hint=error.hint) from error
        digest = digest_json({name: list(facts) for name, facts in files.items()})
        place = _publish(tree, files, store_objects, digest)
        twins.remember(place)
    return StagedModel(place / _MODEL, digest, files, scan.nodes, scan.tensors)


def _scan(path: Path, limits: Limits) -> Scan:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise UnsafeFile("the file is empty", hint="export the model again")
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            return Scan(data, limits)


def _copy_data(
    references: list[External], base: Path, tree: Path, limits: Limits, twins: Twins
) -> dict[str, tuple[str, int]]:
    by_location: dict[str, list[External]] = defaultdict(list)
    for reference in references:
        by_location[reference.location].append(reference)
    files: dict[str, tuple[str, int]] = {}
    left = limits.data_bytes
    for location, users in sorted(by_location.items()):
        if location.split("/")[0].lower() in (_MODEL, _ENTRY):
            raise UnsafeFile(f"{show(location)} is the model's own name", where=users[0].tensor)
        with opened_beneath(base, location, where=users[0].tensor) as source:
            _check_ranges(users, os.fstat(source).st_size)
            with storage_errors(tree):
                (tree / location).parent.mkdir(parents=True, exist_ok=True)
            files[location] = twins.bring(
                source, tree, location, limit_bytes=left, where=users[0].tensor
            )
        left -= files[location][1]
        _check_ranges(users, files[location][1])  # the copy counts: the source may have shrunk
    return files


def _check_ranges(users: list[External], size: int) -> None:
    for user in users:
        if user.offset + user.length > size:
            raise UnsafeFile(
                f"needs {user.length} bytes at {user.offset} of {show(user.location)}, "
                f"which has {size}",
                where=user.tensor,
                hint="the data file is cut or belongs to another model",
            )


def _read_int64(tree: Path, reference: External) -> int:
    with (tree / reference.location).open("rb") as file:
        file.seek(reference.offset)
        return int.from_bytes(file.read(8), "little", signed=True)


def _publish(
    tree: Path, files: dict[str, tuple[str, int]], store_objects: Path, digest: str
) -> Path:
    place = store_objects / digest[:2] / digest
    if place.exists():
        if _intact(place, files):
            os.utime(place / _ENTRY)  # least recently used goes first
            return place
        with storage_errors(place):
            place.rename(tree.parent / "corrupt")  # removed with the scratch folder
    with storage_errors(tree):
        write_durably(tree / _ENTRY, json.dumps({"files": files}, sort_keys=True).encode())
        for folder in (p for p in tree.rglob("*") if p.is_dir()):
            fsync_dir(folder)
    return publish(tree, store_objects, digest)


def _intact(place: Path, files: dict[str, tuple[str, int]]) -> bool:
    present = {
        p.relative_to(place).as_posix()
        for p in place.rglob("*")
        if p.is_symlink() or not p.is_dir()
    }
    return present == {*files, _ENTRY} and all(
        not (place / name).is_symlink() and digest_once(place / name) == sha256
        for name, (sha256, _) in files.items()
    )
