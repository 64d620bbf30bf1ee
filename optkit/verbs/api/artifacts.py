"""`load` opens an artifact. It imports as little as possible, so that a server starts fast."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.artifact import Artifact


def load(path: str | Path, *, trusted: bool = False) -> Artifact:
    """Open an artifact folder and validate its manifest. `verify()` hashes every file again.

    trusted: you know the author of an artifact from another machine. Its engine, which can run
        code, is opened in this process, and its graph is not first run in a child process
        (docs/reference/artifact.md).

    Raises InputRefused (not an artifact, or of another version), IntegrityError (damaged).
    """
    return Artifact.load(Path(path), trusted=trusted)
