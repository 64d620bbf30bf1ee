"""A graph that is already ONNX: it is checked, converted to opset ≥ 21, and compared with the
declared inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from optkit import graph
from optkit.sources import translation
from optkit.sources.axes import declare
from optkit.sources.log import ExportLog
from optkit.tensors import InputSpec


def export(model_path: Path, specs: Sequence[InputSpec], out: Path) -> ExportLog:
    """Write the graph to `out`. The file was staged: its external data is beside it.

    specs: may be empty; then the inputs of the graph are used, and a first axis without a name
    becomes "batch".

    Raises InputRefused for an invalid graph, NaN or infinity in a weight, an opset that cannot be
    converted, or inputs that differ.
    """
    model = graph.load(model_path)
    before = model.opset_imports.get("", 0)
    model = graph.upgrade(model, translation.OPSET)
    if specs:
        declare(model, specs)
    else:
        _name_batch(model)
    graph.infer_shapes(model)
    translation.write(model, out)
    inputs, outputs = translation.describe(model)
    opset = model.opset_imports[""]
    converted = before if before != opset else None
    return ExportLog("onnx", inputs, outputs, opset, len(model.graph), converted_from=converted)


def _name_batch(model: ir.Model) -> None:
    """Without a name, the first axes of two inputs would count as two different ones."""
    inputs = [value for value in model.graph.inputs if value.shape and not value.is_initializer()]
    if any(dim == ir.SymbolicDim("batch") for value in inputs for dim in value.shape or ()):
        return
    for value in inputs:
        dims = list(value.shape or ())
        if dims[0] == ir.SymbolicDim(None):
            value.shape = ir.Shape([ir.SymbolicDim("batch"), *dims[1:]])
