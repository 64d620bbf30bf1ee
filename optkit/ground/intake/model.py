"""Copies an ONNX model: the file and its external data become one folder of the store."""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.errors import UnsafeFile
from optkit.ground.intake.deduplication import StoredCopies
from optkit.ground.intake.files import FileLimits, copy_in, located, opened, opened_beneath, show
from optkit.ground.intake.scan import Scan, check_trip_count
from optkit.ground.intake.stored_tensors import External
from optkit.ground.intake.tree import ENTRY, Files, publish_tree
from optkit.ground.store import scratch, storage_errors

_MODEL = "model.onnx"
_LFS = b"version https://git-lfs.github.com/"


@dataclass(frozen=True)
class StagedModel:
    """A checked model in the store. Opening `path` reads nothing outside its folder.

    `sha256` covers every file; `files` maps their names to (sha256, bytes).
    """

    path: Path
    sha256: str
    files: Files
    nodes: int
    tensors: int

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files.values())


def stage_onnx(path: Path, store_objects: Path, *, limits: FileLimits | None = None) -> StagedModel:
    """Check an ONNX file and copy it with its external data into a folder of the store.

    Raises UnsafeFile naming the file and the tensor, InputRefused (missing), StorageError.
    """
    limits, copies = limits or FileLimits(), StoredCopies(store_objects)
    with scratch(store_objects.parent) as folder, storage_errors(folder):
        tree = folder / "model"
        tree.mkdir(mode=0o700)
        with opened(path) as source:
            limit = limits.proto_bytes
            files = {_MODEL: copy_in(source, tree / _MODEL, limit_bytes=limit, where=str(path))}
        with located(path):
            scan = _scan(tree / _MODEL, limits)
            files |= _copy_data(scan.external, path.parent.resolve(), tree, limits, copies)
            _check_trip_counts(scan, tree, limits)
        place, digest = publish_tree(tree, files, store_objects)
        copies.remember(place)
    return StagedModel(place / _MODEL, digest, files, scan.nodes, scan.tensors)


def check_onnx(path: Path, *, limits: FileLimits | None = None) -> None:
    """Check an ONNX file and its external data in place, like `stage_onnx` checks its copies.

    The result is valid until somebody changes the files. Raises UnsafeFile, InputRefused (missing).
    """
    limits, base = limits or FileLimits(), path.parent.resolve()
    with opened(path):
        pass
    with located(path):
        scan = _scan(path, limits)
        for location, users in _by_location(scan.external).items():
            with opened_beneath(base, location, where=users[0].tensor) as source:
                _check_ranges(users, os.fstat(source).st_size)
        _check_trip_counts(scan, base, limits)


def _scan(path: Path, limits: FileLimits) -> Scan:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise UnsafeFile("the file is empty", hint="export the model again")
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            if mapped[: len(_LFS)] == _LFS:
                raise UnsafeFile(
                    "it is a pointer of Git LFS, without the content of the file",
                    hint="run `git lfs pull` in the folder of the model",
                )
            return Scan(data, limits)


def _copy_data(
    references: list[External], base: Path, tree: Path, limits: FileLimits, copies: StoredCopies
) -> Files:
    files: Files = {}
    left = limits.data_bytes
    for location, users in sorted(_by_location(references).items()):
        if location.split("/")[0].lower() in (_MODEL, ENTRY):
            raise UnsafeFile(
                f"its external data has the name of the model file, {show(location)}",
                where=users[0].tensor,
            )
        with opened_beneath(base, location, where=users[0].tensor) as source:
            _check_ranges(users, os.fstat(source).st_size)
            with storage_errors(tree):
                (tree / location).parent.mkdir(parents=True, exist_ok=True)
            files[location] = copies.bring(
                source, tree, location, limit_bytes=left, where=users[0].tensor
            )
        left -= files[location][1]
        _check_ranges(users, files[location][1])  # the copy counts: the source may have shrunk
    return files


def _by_location(references: list[External]) -> dict[str, list[External]]:
    users: dict[str, list[External]] = defaultdict(list)
    for reference in references:
        users[reference.location].append(reference)
    return users


def _check_ranges(users: list[External], size: int) -> None:
    for user in users:
        if user.offset + user.length > size:
            raise UnsafeFile(
                f"it needs {user.length} bytes at offset {user.offset} of {show(user.location)}, "
                f"which has {size}",
                where=user.tensor,
                hint="the data file is truncated, or belongs to another model",
            )


def _check_trip_counts(scan: Scan, folder: Path, limits: FileLimits) -> None:
    for loop, reference in scan.trip_counts:
        with (folder / reference.location).open("rb") as file:
            file.seek(reference.offset)
            count = int.from_bytes(file.read(8), "little", signed=True)
        check_trip_count(count, loop, limits)
