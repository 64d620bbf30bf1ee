"""Intake of foreign files: copy them into the store, hash them on the way, and check the copy.

No library opens a file before it has passed these checks. All later steps read only the copy in the
store, which nobody else writes. The checks read the copy as well, so a file that changes meanwhile
has no effect.

    files       opens without following links, copies and hashes
    wire        walks protobuf bytes without building objects
    fields      the numbers of its messages
    messages    reads these messages: names, dimensions, types
    stored_tensors  tensors: their sizes against their bytes, references to other files
    scan        the graphs, nodes and functions of an ONNX file, counted before they are expanded
    deduplication  does not copy a large data file that the store already has
    model       copies an ONNX file with its external data into one folder of the store
    model_folder  copies a Hugging Face folder, or the folder of an adapter: only known data files
    hub         downloads a model of the Hugging Face hub into such a folder
    tree        publishes several files as one folder of the store
    containers  safetensors and zip files (.pt2)
"""

from __future__ import annotations

from optkit.ground.intake.containers import stage_pt2, stage_ranges, stage_weights
from optkit.ground.intake.files import FileLimits
from optkit.ground.intake.hub import download
from optkit.ground.intake.model import StagedModel, check_onnx, stage_onnx
from optkit.ground.intake.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    COMPANIONS,
    StagedFolder,
    stage_adapter,
    stage_folder,
)

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "COMPANIONS",
    "FileLimits",
    "StagedFolder",
    "StagedModel",
    "check_onnx",
    "download",
    "stage_adapter",
    "stage_folder",
    "stage_onnx",
    "stage_pt2",
    "stage_ranges",
    "stage_weights",
]
