"""Publishes a folder of several files under one digest, and uses it again while it is intact."""

from __future__ import annotations

import json
from pathlib import Path

from optkit.facts.errors import StorageError
from optkit.ground.intake.files import publish
from optkit.ground.store import (
    Lease,
    digest_json,
    digest_once,
    fsync_tree,
    is_scarce,
    storage_errors,
)

ENTRY = "entry.json"  # lists the files; the store's gc takes the age of the folder from it

Files = dict[str, tuple[str, int]]
"""Name → (sha256, bytes)."""


def publish_tree(tree: Path, files: Files, store_objects: Path) -> tuple[Path, str]:
    """Move `tree`, which has exactly `files`, into the store; returns (path, digest)."""
    digest = digest_json({name: list(facts) for name, facts in files.items()})
    place = store_objects / digest[:2] / digest
    if place.exists():
        with storage_errors(place):
            Lease(store_objects.parent).use(place / ENTRY)  # first: now nobody removes it
        if _intact(place, files):
            return place, digest
        with storage_errors(place):
            place.rename(tree.parent / "corrupt")  # removed with the scratch folder
    with storage_errors(tree):
        (tree / ENTRY).write_text(json.dumps({"files": files}, sort_keys=True))
        fsync_tree(tree)
    try:
        return publish(tree, store_objects, digest), digest
    except StorageError:
        if _intact(place, files):  # another thread or process was faster
            return place, digest
        raise


def _intact(place: Path, files: Files) -> bool:
    present = {
        p.relative_to(place).as_posix()
        for p in place.rglob("*")
        if p.is_symlink() or not p.is_dir()
    }
    with storage_errors(place):
        try:
            return present == {*files, ENTRY} and all(
                not (place / name).is_symlink() and digest_once(place / name) == sha256
                for name, (sha256, _) in files.items()
            )
        except OSError as error:
            if is_scarce(error):
                raise
            return False
