"""A graph that is already ONNX: it is checked, converted to opset ≥ 21, and compared with the
declared inputs. Where a recipe names an axis and the file fixes its size, the axis is opened: some
files have only the sizes of one example, and run at any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from optkit.craft.sources import declared_outputs, open_axes, program_to_onnx
from optkit.craft.sources.custom_operators import CustomOperators
from optkit.craft.sources.dynamic_axes import Dimension, declare
from optkit.craft.sources.export_log import ExportLog, OnnxOrigin
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec
from optkit.ground import graph

_OWN = "optkit."  # the prefix of metadata that belongs to a graph or to the file of one build


def export(
    model_path: Path,
    specs: Sequence[InputSpec],
    out: Path,
    operators: CustomOperators | None = None,
) -> ExportLog:
    """Write the graph to `out`. The file was staged: its external data is beside it.

    specs: may be empty; then the inputs of the graph are used, and the axes 0 that have no name, or
    a number of the exporter, are one axis.

    Raises InputRefused for an invalid graph, NaN or infinity in a weight, an opset that cannot be
    converted, or inputs that differ.
    """
    model = graph.load(model_path)
    origin = _origin(model)
    before = model.opset_imports.get("", 0)
    notes: tuple[str, ...] = ()
    try:
        model, opened = _declared(model, specs)
    except InputRefused:
        model = graph.load(model_path)
        shapes = declared_outputs.forget(model)
        model, opened = _declared(model, specs)
        notes = declared_outputs.restore(model, shapes)
    if operators is not None:
        operators.declare(model, specs)
    program_to_onnx.write(model, out)
    inputs, outputs = program_to_onnx.describe(model)
    opset = model.opset_imports[""]
    converted = before if before != opset else None
    return ExportLog(
        "onnx",
        inputs,
        outputs,
        opset,
        len(model.graph),
        converted_from=converted,
        origin=origin,
        warnings=(*notes, *(open_axes.warnings(model, specs, opened) if opened else ())),
    )


def _declared(
    model: ir.Model, specs: Sequence[InputSpec]
) -> tuple[ir.Model, dict[str, tuple[Dimension, ...]]]:
    """The graph in the opset of a build, with the declared inputs, and the axes that were
    opened."""
    model = graph.upgrade(model, program_to_onnx.OPSET)
    opened = open_axes.opened(model, specs)
    if specs:
        declare(model, specs)
    else:
        open_axes.settle(model)
    open_axes.forget(model)
    graph.infer_shapes(model)
    return model, opened


def _origin(model: ir.Model) -> OnnxOrigin:
    return OnnxOrigin(
        metadata=_foreign(model.metadata_props),
        doc_string=model.doc_string or "",
        domain=model.domain or "",
        model_version=model.model_version or 0,
        graph_name=model.graph.name or "",
        graph_doc_string=model.graph.doc_string or "",
        graph_metadata=_foreign(model.graph.metadata_props),
    )


def _foreign(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith(_OWN)}
