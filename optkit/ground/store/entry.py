"""One published step: its files, and the record that lists them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.errors import IntegrityError
from optkit.ground.store.digests import digest_json, digest_once, is_shallow
from optkit.ground.store.disk import open_regular
from optkit.ground.store.seal import is_sealed, sealed

ENTRY = "entry.json"
_SHA256 = re.compile("[0-9a-f]{64}")
_PART_BYTES, _NAME_BYTES = 255, 1024  # length of a file name that every file system allows


@dataclass(frozen=True)
class Entry:
    """A published step. `meta` is what the step returned; `digest` covers its files only."""

    key: str
    step: str
    path: Path
    files: Mapping[str, str]  # relative name → sha256
    meta: Mapping[str, object]
    seconds: float

    @property
    def digest(self) -> str:
        return digest_json(dict(self.files))

    def file(self, name: str) -> Path:
        return self.path / name

    def to_json(self) -> dict[str, object]:
        """The content of entry.json, with a checksum of itself."""
        body: dict[str, object] = {
            "key": self.key,
            "step": self.step,
            "files": dict(self.files),
            "meta": dict(self.meta),
            "seconds": round(self.seconds, 3),
        }
        return sealed(body)


def opened(body: object, key: str, path: Path) -> Entry:
    """The entry in the folder `path` that a record describes.

    Raises IntegrityError if the record is damaged, or if its checksum is correct but the record is
    not a valid entry (another program wrote it).
    """
    if not isinstance(body, dict) or not is_shallow(body):
        raise IntegrityError(f"its {ENTRY} is damaged")
    if not is_sealed(body) or body.get("key") != key:
        raise IntegrityError(f"its {ENTRY} is damaged")
    step, files, meta, seconds = (body.get(name) for name in ("step", "files", "meta", "seconds"))
    if (
        not isinstance(step, str)
        or not isinstance(files, dict)
        or not isinstance(meta, dict)
        or not isinstance(seconds, int | float)
        or not math.isfinite(seconds)
    ):
        raise IntegrityError(f"a field of its {ENTRY} is missing or wrong")
    check_files(files)
    if any(name.partition("/")[0] == ENTRY for name in files):
        raise IntegrityError(f"it lists {ENTRY} as one of its files")
    return Entry(key, step, path, files, meta, seconds)


def read(path: Path, key: str) -> Entry:
    """Raises OSError, and the errors of `opened`."""
    try:
        with open_regular(path / ENTRY) as file:
            body = json.load(file)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"its {ENTRY} is damaged") from error
    return opened(body, key, path)


def check_files(files: Mapping[str, object]) -> None:
    """Raise IntegrityError unless all of these names (relative name → sha256) can be files of one
    folder."""
    folders = {
        "/".join(parts[:depth])
        for parts in (name.split("/") for name in files)
        for depth in range(1, len(parts))
    }
    for name, sha256 in files.items():
        if (
            not name.isprintable()  # a control character, or half of a surrogate pair
            or len(name.encode()) > _NAME_BYTES
            or name in folders
            or any(
                part in ("", ".", "..") or len(part.encode()) > _PART_BYTES
                for part in name.split("/")
            )
        ):
            raise IntegrityError(f"{name[:80]!a} is not a valid name of a file")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise IntegrityError(f"file {name[:80]!a} has no sha256")


def verify(entry: Entry) -> None:
    """Raises IntegrityError unless the folder has exactly the files of the record, and OSError."""
    if entry.path.is_symlink() or (entry.path / ENTRY).is_symlink():
        raise IntegrityError("it is a link")
    present = {
        p.relative_to(entry.path).as_posix()
        for p in entry.path.rglob("*")
        if not p.is_dir() or p.is_symlink()
    }
    if present != {*entry.files, ENTRY}:
        raise IntegrityError("files are missing or were added")
    for name, sha in entry.files.items():
        path = entry.path / name
        if path.is_symlink() or digest_once(path) != sha:
            raise IntegrityError(f"{name} does not match its digest")
