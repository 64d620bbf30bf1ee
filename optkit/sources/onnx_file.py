"""A graph that is ONNX already: checked, brought to opset ≥ 21, its inputs as declared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optkit import graph
from optkit.recipe import InputSpec
from optkit.sources import translation
from optkit.sources.axes import declare
from optkit.sources.log import ExportLog


def export(model_path: Path, specs: Sequence[InputSpec], out: Path) -> ExportLog:
    """Write the graph to `out`. The file has been staged: its external data is beside it.

    `specs` may be empty: then the graph's own inputs stand. Raises InputRefused for an invalid
    graph, NaN or infinity in a weight, an opset that cannot be converted, or inputs that differ.
    """
    model = graph.load(model_path)
    before = model.opset_imports.get("", 0)
    model = graph.upgrade(model, translation.OPSET)
    if specs:
        declare(model, specs)
        graph.infer_shapes(model)
    translation.write(model, out)
    inputs, outputs = translation.describe(model)
    opset = model.opset_imports[""]
    converted = before if before != opset else None
    return ExportLog("onnx", inputs, outputs, opset, len(model.graph), converted_from=converted)
