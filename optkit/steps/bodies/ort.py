from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from optkit import graph
from optkit.artifact import VNNI
from optkit.decoder import IN_PLACE
from optkit.execute.step import Progress
from optkit.fusion.ort import to_ort
from optkit.steps.bodies.signature import signature
from optkit.steps.file_names import GRAPH
from optkit.steps.ort import OrtGraph, ToOrt


def run(step: ToOrt, out: Path, progress: Progress) -> OrtGraph:
    model = graph.load(step.graph.path / GRAPH)
    return written(model, to_ort(model, step.opset).to_json(), out)


def written(model: ir.Model, log: Mapping[str, object], out: Path) -> OrtGraph:
    """Write a graph in ONNX Runtime's operators into the folder, and check the file."""
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return OrtGraph(
        log=log,
        in_place=tuple(json.loads(model.metadata_props.get(IN_PLACE, "[]"))),
        instruction_set=VNNI if graph.assumes_vnni(model) else None,
        **vars(signature(model)),
    )
