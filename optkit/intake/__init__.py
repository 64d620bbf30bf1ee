"""The one door for foreign files: checked, then copied into the store while they are hashed.

No library has opened a file that is refused here; everything later reads only the store's copy,
which nobody else writes. Checks run on that copy, so a file swapped meanwhile changes nothing.

    door        opens without following links, copies and hashes
    wire        walks protobuf bytes without building objects
    fields      the numbers of its messages
    scan        what an ONNX file holds: nodes, tensors, external data; counted before expanded
    twins       a large data file that the store has already is not copied again
    model       an ONNX file and its external data become one folder of the store
    folder      a Hugging Face folder, or an adapter's: what is known to be data, nothing else
    hub         a model of the Hugging Face hub becomes such a folder
    tree        several files as one folder of the store
    containers  safetensors and zip files (.pt2)
"""

from __future__ import annotations

from optkit.intake.containers import stage_pt2, stage_weights, zip_members
from optkit.intake.files import Limits, Staged, stage_file
from optkit.intake.folder import COMPANIONS, StagedFolder, stage_adapter, stage_folder
from optkit.intake.hub import download
from optkit.intake.model import StagedModel, check_onnx, stage_onnx

__all__ = [
    "COMPANIONS",
    "Limits",
    "Staged",
    "StagedFolder",
    "StagedModel",
    "check_onnx",
    "download",
    "stage_adapter",
    "stage_file",
    "stage_folder",
    "stage_onnx",
    "stage_pt2",
    "stage_weights",
    "zip_members",
]
