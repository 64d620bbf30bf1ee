"""The files that a command writes beside its result."""

from __future__ import annotations

from pathlib import Path

from optkit.store import storage_errors, write_durably


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
