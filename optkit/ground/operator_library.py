"""Shared libraries with the operators of a graph that its runtime lacks: those for ONNX Runtime,
and plugins of TensorRT.

Whoever opens one runs its code. So a graph names the library by its digest, and it is opened only
if this user has trusted it on this machine: it was then copied beside the store.

    root/operators/<sha256>/<file name>

This needs no library of ONNX: programs that only serve an artifact call it too.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from optkit.facts.errors import InputRefused, UnsafeFile
from optkit.ground.intake import wire
from optkit.ground.store import default_root, digest_file, digest_once, storage_errors

OPTION = "--trust"
NOTE = "optkit.operators"
"""The key of a graph's metadata for the library that ONNX Runtime opens."""

PLUGINS_NOTE = "optkit.plugins"
"""The key for the library that TensorRT opens."""

_ELF = b"\x7fELF"
_FILE = re.compile(r"\w[\w.+-]{0,254}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_METADATA, _KEY, _VALUE = 14, 1, 2  # of ModelProto, and of the entries (onnx.proto)


@dataclass(frozen=True)
class OperatorLibrary:
    """A library: the name of its file, and the digest of its bytes."""

    file: str
    sha256: str

    @classmethod
    def trust(cls, path: Path) -> Self:
        """The library of a file that the user trusts, copied beside the store. Raises InputRefused
        for a file that is missing or no shared library, StorageError."""
        try:
            with path.open("rb") as file:
                start = file.read(len(_ELF))
        except OSError as error:
            raise InputRefused(f"it cannot be read: {error.strerror}", where=str(path)) from error
        if not _FILE.fullmatch(path.name):
            raise InputRefused(
                "its name has characters that a graph cannot note",
                where=str(path),
                hint="rename it to letters, digits, _, ., + and -",
            )
        if start != _ELF:
            raise InputRefused(
                "it is not a shared library of Linux",
                where=str(path),
                hint="name the .so file with the operators",
            )
        found = cls(path.name, digest_file(path))
        found._keep(path)
        return found

    @classmethod
    def of(cls, model: Path, note: str = NOTE) -> Self | None:
        """The library that an ONNX file names in its metadata, under the key `note`; None if it
        names none. Raises UnsafeFile for a note that no build has written."""
        text = _metadata(model).get(note)
        if text is None:
            return None
        try:
            return cls(**{key: str(value) for key, value in json.loads(text).items()})._checked()
        except (ValueError, TypeError, AttributeError) as error:
            raise UnsafeFile(f"its note {note} is not of a build", where=str(model)) from error

    def _checked(self) -> Self:
        """Raise ValueError unless both can name a file below a folder."""
        if not _DIGEST.fullmatch(self.sha256) or not _FILE.fullmatch(self.file):
            raise ValueError(self)
        return self

    @property
    def note(self) -> str:
        """The value in a graph's metadata."""
        return json.dumps({"file": self.file, "sha256": self.sha256})

    @property
    def place(self) -> Path:
        return default_root() / "operators" / self.sha256 / self.file

    def open_path(self, where: str) -> Path:
        """The file to open for the graph `where`. Raises UnsafeFile unless this user has trusted
        these bytes on this machine."""
        if not self.place.is_file() or digest_once(self.place) != self.sha256:
            raise UnsafeFile(
                f"its operators are in the library {self.file}, which is not opened: nobody has "
                "trusted it on this machine, and opening it runs its code",
                where=where,
                hint=f"if you know and trust its author: build with {OPTION}; or open an artifact "
                "once with optkit.load(path, trusted=True).session(): then all commands open it; "
                "or, if it is signed: optkit verify ARTIFACT --key FILE --trust",
            )
        return self.place

    def _keep(self, path: Path) -> None:
        place = self.place
        with storage_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = place.with_name(f".{os.getpid()}.part")
            part.write_bytes(path.read_bytes())
            part.replace(place)


def _metadata(model: Path) -> dict[str, str]:
    """What an ONNX file says about its model, by key, without the library onnx."""
    found: dict[str, str] = {}
    with (
        model.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        for number, kind, start, end in wire.fields(data, 0, len(data)):
            if (number, kind) == (_METADATA, wire.LENGTH):
                entry = {
                    inner: str(data[a:b], "utf-8", "replace")
                    for inner, form, a, b in wire.fields(data, start, end)
                    if form == wire.LENGTH
                }
                found[entry.get(_KEY, "")] = entry.get(_VALUE, "")
    return found
