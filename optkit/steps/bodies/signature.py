"""The facts about every graph that a step writes."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from optkit import graph
from optkit.steps.graph import Argument, Row
from optkit.tensors import TensorInfo
from optkit.trained_scales import KEY


class Signature(NamedTuple):
    """Inputs, outputs and number of parameters; the inputs that are arguments instead of data; and
    whether the metadata has trained scales."""

    arguments: dict[str, Argument]
    inputs: tuple[Row, ...]
    outputs: tuple[Row, ...]
    parameters: int
    trained: bool


def signature(model: ir.Model) -> Signature:
    """The signature of the graph."""
    return Signature(
        {
            name: Argument(
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
