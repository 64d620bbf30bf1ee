"""The facts about every graph that a step writes."""

from __future__ import annotations

import onnx_ir as ir

from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.trained_scales import KEY
from optkit.road.steps.graph import GraphArgument, Row, Signature


def signature(model: ir.Model) -> Signature:
    return Signature(
        {
            name: GraphArgument(
                argument.what, None if argument.numbers is None else argument.numbers.tolist()
            )
            for name, argument in graph.arguments(model).items()
        },
        tuple(map(_row, graph.inputs(model))),
        tuple(map(_row, graph.outputs(model))),
        graph.parameters(model),
        KEY in model.metadata_props,
    )


def _row(spec: TensorInfo) -> Row:
    return spec.name, spec.dtype, tuple(spec.shape)
