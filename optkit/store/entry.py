"""One published step: its files, and the record that says what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optkit.errors import IntegrityError
from optkit.store.digests import digest_json, digest_once

ENTRY = "entry.json"


@dataclass(frozen=True)
class Entry:
    """A published step. `meta` is what the step returned; `digest` covers its files only."""

    key: str
    step: str
    path: Path
    files: Mapping[str, str]  # relative name → sha256
    meta: dict[str, Any]
    seconds: float

    @property
    def digest(self) -> str:
        return digest_json(dict(self.files))

    def file(self, name: str) -> Path:
        return self.path / name


def record(
    key: str, step: str, files: Mapping[str, str], meta: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """What entry.json says; it holds a check of itself."""
    body: dict[str, Any] = {
        "key": key,
        "step": step,
        "files": dict(files),
        "meta": dict(meta),
        "seconds": round(seconds, 3),
    }
    return {**body, "check": _check(body)}


def opened(body: Any, key: str, path: Path) -> Entry:
    """The entry in the folder `path` that a record tells of. Raises IntegrityError, KeyError."""
    if not isinstance(body, dict) or body.get("check") != _check(body) or body.get("key") != key:
        raise IntegrityError("its entry.json is damaged")
    return Entry(key, body["step"], path, body["files"], body["meta"], body["seconds"])


def read(path: Path, key: str) -> Entry:
    """Raises as `opened`, OSError and ValueError."""
    return opened(json.loads((path / ENTRY).read_bytes()), key, path)


def verify(entry: Entry) -> None:
    """Raises IntegrityError unless the folder holds the very files of the record, and OSError."""
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


def _check(body: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in body.items() if k != "check"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
