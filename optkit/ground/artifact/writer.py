"""Writes an artifact into a temporary folder, and then replaces an older artifact by it in one
operation."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from optkit.facts.errors import UsageError
from optkit.facts.printable import is_text
from optkit.ground import trust
from optkit.ground.artifact.manifest import (
    MANIFEST,
    NAME,
    SAMPLES,
    SIGNATURE,
    File,
    Manifest,
    is_safe,
)
from optkit.ground.artifact.reader import Artifact
from optkit.ground.artifact.roles import role_of
from optkit.ground.exchange import replacing
from optkit.ground.intake.files import copy_in, show
from optkit.ground.store import OUT_OPTION, digest_file, make_folder, storage_errors, write_durably


def prepare(out: Path, name: str, kind: str = "artifact", marker: str = MANIFEST) -> None:
    """Check, before any work, that an artifact `name` can be written into folder `out` (or another
    folder of that `kind`, which has the file `marker`).

    The check leaves nothing behind. Raises StorageError (not writable), UsageError (the name, or a
    folder of this name that is not an artifact and would be lost).
    """
    check_name(kind, name)
    if not is_text(str(out.absolute())):
        raise UsageError(
            f"the folder {str(out)!a} is not UTF-8, so no report can name it",
            where=OUT_OPTION,
            hint="choose a folder whose name, and those above it, are UTF-8",
        )
    place = out / name
    with storage_errors(out, OUT_OPTION):
        try:
            with tempfile.TemporaryFile(dir=_existing(out)):
                pass
        except OSError as error:
            error.filename = str(out)
            raise
        taken = place.is_symlink() or place.exists()
        if taken and (place.is_symlink() or not (place / marker).is_file()):
            raise UsageError(
                f"it exists and is not an optkit {kind}",
                where=str(place),
                hint="move it away, or choose another --out",
            )


def create(out: Path) -> None:
    """The folder for artifacts. A new or empty one gets a .gitignore, one with other content does
    not change. Raises StorageError."""
    with storage_errors(out, OUT_OPTION):
        make_folder(out)
        if not any(out.iterdir()):
            (out / ".gitignore").write_text("*\n")


def _existing(out: Path) -> Path:
    """The folder itself if it exists, otherwise the nearest parent that exists."""
    return next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())


def check_name(kind: str, name: str, where: str | None = None) -> None:
    """Raise UsageError unless `name` is a safe file name on every system. `where`: the option that
    gave it."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{show(name)} cannot be the name of {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
            where=where,
            hint="use only letters, digits, '.', '_' and '-', and begin with a letter or a digit; "
            "a name has at most 128 characters",
        )


def write(out: Path, manifest: Manifest, files: Mapping[str, Path | bytes]) -> Artifact:
    """Write the artifact `out/<name>`. It replaces an older one of this name in one operation.

    `files`: name in the artifact (may have folders) → the file to copy, or its bytes. After an
    error nothing is visible and the older artifact stays. Raises StorageError, UsageError.
    """
    check_name("target", manifest.target)
    prepare(out, manifest.name)
    create(out)
    place = out / manifest.name
    with replacing(place) as folder:
        facts = {
            name: replace(_put(folder, name, files[name]), role=role_of(name, manifest.parts))
            for name in sorted(files)
        }
        manifest = replace(manifest, files=facts)
        write_durably(folder / MANIFEST, manifest.encoded())
    for known in (manifest.contents, *(facts[name].sha256 for name in manifest.compiled)):
        trust.know(known)
    return Artifact(place, manifest)


def share(artifacts: Iterable[Artifact]) -> None:
    """Make equal files of evaluation samples one file on the disk, with several names. A file
    system that cannot do this keeps them as they are."""
    first: dict[str, Path] = {}
    for artifact in artifacts:
        for name, file in artifact.manifest.files.items():
            if PurePosixPath(name).name != SAMPLES:
                continue
            path = artifact.path / name
            original = first.setdefault(file.sha256, path)
            if original is not path:
                with contextlib.suppress(OSError):
                    _link(original, path)


def _link(original: Path, path: Path) -> None:
    """Replace a file by a second name of another one, in one operation."""
    link = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    os.link(original, link)
    link.replace(path)


def _put(folder: Path, name: str, content: Path | bytes) -> File:
    """Write one file durably."""
    if not is_safe(name) or name in (MANIFEST, SIGNATURE):
        raise UsageError(f"{show(name)} cannot name a file of an artifact")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        write_durably(target, content)
        return File(digest_file(target), len(content))
    with content.open("rb") as source:
        limit = os.fstat(source.fileno()).st_size
        sha256, size = copy_in(source.fileno(), target, limit_bytes=limit, where=str(content))
    target.chmod(0o644)
    return File(sha256, size)
