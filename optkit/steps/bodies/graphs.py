"""What is said of every graph that a step writes."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from optkit import graph
from optkit.steps.graph import Argument, Row
from optkit.tensors import TensorInfo


class Signature(NamedTuple):
    """Inputs, outputs and number of parameters; of inputs that are arguments, not data, what they
    are."""

    arguments: dict[str, Argument]
    inputs: tuple[Row, ...]
    outputs: tuple[Row, ...]
    parameters: int


def signature(model: ir.Model) -> Signature:
    """Of the graph as it is now."""
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
    )


def _row(spec: TensorInfo) -> Row:
    return spec.name, spec.dtype, tuple(spec.shape)
