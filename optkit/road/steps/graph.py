"""The graph that a step has written, and the ranges of its random feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.execute.step import StepResult, always
from optkit.road.steps.file_names import GRAPH, SIMULATION

Row = tuple[str, str, tuple[int | str, ...]]
"""Name, dtype and shape of an input or output."""


def infos(rows: Sequence[Row]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in rows)


@dataclass(frozen=True)
class GraphArgument:
    """An input that is a shape, an axis or an index, not data: `what` it is in the graph, and its
    numbers if the graph determines them."""

    what: str
    numbers: Sequence[object] | int | float | None


@dataclass(frozen=True)
class Signature:
    """The inputs that are arguments instead of data; inputs, outputs and number of parameters; and
    whether the metadata has the scales of a quantization-aware training."""

    arguments: Mapping[str, GraphArgument] = field(default_factory=dict)
    inputs: tuple[Row, ...] = ()
    outputs: tuple[Row, ...] = ()
    parameters: int = 0
    trained: bool = False


@dataclass(frozen=True, kw_only=True)
class Graph(Signature, StepResult):
    """`model.onnx`, and the facts about it that later steps need."""

    warnings: tuple[str, ...] = always(())

    @property
    def simulation(self) -> str:
        """The file that ONNX Runtime runs for accuracy."""
        return SIMULATION if SIMULATION in self.files else GRAPH


@dataclass(frozen=True, kw_only=True)
class Rewritten(Graph):
    """A graph that a step has rewritten. `log`: the rewrites, as JSON for the report."""

    log: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomInputs:
    """The ranges of random feeds: the inputs with their ranges, the ranges of named axes, and the
    inputs that are arguments."""

    inputs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisRange]
    arguments: Mapping[str, GraphArgument] = field(default_factory=dict)
