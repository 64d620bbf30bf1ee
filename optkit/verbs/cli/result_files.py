"""The files that a command writes beside its result."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from optkit.facts.errors import StorageError
from optkit.ground.store import file_in_the_way, storage_errors, write_durably


def check(file: Path, option: str) -> None:
    """Raise StorageError if the file of an option cannot be written. This is known before the work
    whose result it gets. Leaves nothing behind."""
    place = file.resolve()
    folder = next(one for one in (*place.parents, place) if one.exists())
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if place.is_file() or not place.exists():  # otherwise a pipe or a device
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        problem = file_in_the_way(error, file) or error.strerror
        raise StorageError(
            f"it cannot be written: {problem}",
            where=f"{option} {file}",
            hint="name a file in a folder that you may write to, "
            f"for example: {option} {file.name or 'page.html'}",
        ) from error


def write(file: Path, content: str | bytes) -> None:
    """Write a file as a whole or not at all. This comes before the result is printed: with --json a
    command prints one object, and a failed write changes this object into an error. Raises
    StorageError."""
    data = content.encode() if isinstance(content, str) else content
    place = file.resolve()
    with storage_errors(file):
        if place.exists() and not place.is_file():
            place.write_bytes(data)  # a pipe or a device, which must not be replaced
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, data)
