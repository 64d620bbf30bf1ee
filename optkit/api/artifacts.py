"""Artifacts opened: `load`, which imports as little as it can, for a server that starts."""

from __future__ import annotations

from pathlib import Path

from optkit.artifact import Artifact


def load(path: str | Path, *, trusted: bool = False) -> Artifact:
    """Open an artifact folder; its manifest is validated, `verify()` rehashes every file.

    trusted: its engine may run code in this process and its graph need not be tried in a child
        first, although it was not written on this machine (docs/artifact.md).

    Raises InputRefused (no artifact, or one of another version), IntegrityError (damaged).
    """
    return Artifact.load(Path(path), trusted=trusted)
