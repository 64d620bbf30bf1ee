"""The artifact: a folder with `manifest.json`, written last, that stands alone.

    manifest.json     schema optkit.artifact/v1: files with sha256 and size, recipe, inputs, tool
                      versions, the result with its evidence, and a checksum of all that
    model.onnx, engine, baseline/, report.*, recipe.yaml, …   whatever the build put in
    encoder/, decoder/   of a model that is two graphs: an artifact each, instead of all these

Written aside and exchanged with the old one (`exchange`): a reader sees one of the two, whole.
"""

from __future__ import annotations

from optkit.artifact.manifest import (
    MANIFEST,
    MODEL,
    SAMPLES,
    SIMULATION,
    VNNI,
    EngineFile,
    File,
    Manifest,
)
from optkit.artifact.reader import Artifact, Running, SessionArguments
from optkit.artifact.writer import check_name, create, prepare, write

__all__ = [
    "MANIFEST",
    "MODEL",
    "SAMPLES",
    "SIMULATION",
    "VNNI",
    "Artifact",
    "EngineFile",
    "File",
    "Manifest",
    "Running",
    "SessionArguments",
    "check_name",
    "create",
    "prepare",
    "write",
]
