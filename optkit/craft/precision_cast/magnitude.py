"""The magnitudes of the values of a graph, measured on samples.

The graph measures itself: a few nodes after each value compute one scalar, so no value leaves the
runtime, and a measurement takes the memory of a plain forward pass.

    v ── Abs ── without NaN and Inf ─┬─ ReduceMax ──► largest
                                     └─ without zeros ── ReduceMin ──► least
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.facts.tensors import Feed, count_samples
from optkit.ground import graph
from optkit.ground.runtimes import Session

_FLOAT = ir.DataType.FLOAT
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class Magnitude(NamedTuple):
    """Magnitudes of the finite numbers of a value: the largest (0 if there are none), and the least
    of those that are not zero (inf if it was not measured, or all are zero)."""

    largest: float = 0.0
    least: float = np.inf


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes by value, and the samples of the measurement ("32 calibration samples")."""

    values: Mapping[str, Magnitude]
    on: str

    def of(self, value: ir.Value | None) -> Magnitude | None:
        """The magnitudes of a value; None for constants, and for values that are not FP32 or
        FP64."""
        return None if value is None else self.values.get(str(value.name))


Outputs = Mapping[str, tuple[str, str | None]]
"""Value → the outputs with its largest and its least magnitude."""


def magnitude_graph(model: ir.Model, least: Collection[str] = ()) -> tuple[ir.Model, Outputs]:
    """A copy of the graph whose only outputs are the magnitudes of its FP32 and FP64 values: graph
    inputs and results of nodes, except in subgraphs. `least`: the values whose least magnitude is
    also measured."""
    copy = model.clone()
    names = graph.value_names(copy)
    owner = copy.graph
    zero = graph.add_constant(owner, graph.claim_name("watch.zero", names), np.array(0, np.float32))
    beyond = graph.add_constant(
        owner, graph.claim_name("watch.inf", names), np.array(np.inf, np.float32)
    )
    outputs: dict[str, tuple[str, str | None]] = {}
    scalars: list[ir.Value] = []

    def add(op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        name = graph.claim_name(f"watch.{op}", names)
        result = ir.Value(name=name)
        owner.append(ir.node(op, inputs, attributes, outputs=[result], name=name))
        return result

    def scalar(value: ir.Value) -> str:
        value.type, value.shape = ir.TensorType(_FLOAT), ir.Shape([])
        scalars.append(value)
        return str(value.name)

    for value in [*owner.inputs, *(v for node in list(owner) for v in node.outputs)]:
        if not isinstance(value.type, ir.TensorType) or value.dtype not in _WIDE or not value.name:
            continue
        single = value if value.dtype == _FLOAT else add("Cast", value, to=_FLOAT.value)
        magnitude = add("Abs", single)
        finite = add("Where", add("Less", magnitude, beyond), magnitude, zero)
        largest, smallest = scalar(add("ReduceMax", finite, keepdims=0)), None
        if value.name in least:
            nonzero = add("Where", add("Greater", finite, zero), finite, beyond)
            smallest = scalar(add("ReduceMin", nonzero, keepdims=0))
        outputs[value.name] = largest, smallest
    owner.outputs[:] = scalars
    return copy, outputs


def measure(
    session: Session, feeds: Iterable[Feed], outputs: Outputs, *, samples: int, what: str
) -> Magnitudes:
    """Run a `magnitude_graph` on feeds until at least `samples` samples were used.

    `what`: a description of the samples ("calibration samples").
    """
    values = dict.fromkeys(outputs, Magnitude())
    seen = 0
    for feed in feeds:
        results = session.run(feed)
        for name, (largest, least) in outputs.items():
            high, low = float(results[largest]), float(results[least]) if least else np.inf
            values[name] = Magnitude(max(values[name].largest, high), min(values[name].least, low))
        seen += count_samples(feed)
        if seen >= samples:
            break
    return Magnitudes(values, f"{seen} {what}")
