from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from optkit.craft.fusion.ort import to_ort
from optkit.ground import graph
from optkit.ground.artifact import VNNI
from optkit.ground.decoder import IN_PLACE
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.ort import OrtGraph, ToOrt


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
