"""The artifact: a folder with `manifest.json`, written last, that needs no other file.

    manifest.json     schema optkit.artifact/v1: files with sha256 and size, recipe, inputs, tool
                      versions, the result with its evidence, and a checksum of all that
    model.onnx, engine, tokenizer, …      the files that serve (`roles`)
    adapters/NAME.onnx_adapter            adapters that a session may use, one at a time
    operators/        the library of the operators of the graph that ONNX Runtime lacks
    baseline/, report.*, recipe.yaml, …   the files that prove its figures; a slim copy has none
    model.sig         the signature, if it is signed (`packaging.signing`)
    encoder/, decoder/   for a model of two graphs: an artifact each, instead of all these

It is written to a temporary folder and exchanged with the old one (`exchange`), so a reader sees
either of the two, complete.
"""

from __future__ import annotations

from optkit.ground.artifact.manifest import (
    BASELINE,
    MANIFEST,
    MODEL,
    OPERATORS,
    PLUGINS,
    SAMPLES,
    SIGNATURE,
    SIMULATION,
    VNNI,
    EngineFile,
    File,
    Manifest,
    adapter_file,
)
from optkit.ground.artifact.reader import Artifact, SessionArguments
from optkit.ground.artifact.running import Running
from optkit.ground.artifact.writer import check_name, create, prepare, share, write

__all__ = [
    "BASELINE",
    "MANIFEST",
    "MODEL",
    "OPERATORS",
    "PLUGINS",
    "SAMPLES",
    "SIGNATURE",
    "SIMULATION",
    "VNNI",
    "Artifact",
    "EngineFile",
    "File",
    "Manifest",
    "Running",
    "SessionArguments",
    "adapter_file",
    "check_name",
    "create",
    "prepare",
    "share",
    "write",
]
