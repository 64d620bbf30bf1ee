"""The values inside a captured program, computed by torch node by node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optkit.facts.tensors import Feed, InputSpec

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Inner:
    """The nodes of a program by the name of their value, in order, with the values that were
    computed. `outputs`: the nodes that the program returns."""

    nodes: dict[str, fx.Node]
    values: Feed
    outputs: list[fx.Node]

    def first_unlike(self, node: fx.Node, alike: Collection[str]) -> fx.Node:
        """Of a node and of all that it is computed from, the first one in the program that is not
        among the values that are `alike` elsewhere, nor computed before one of these."""
        found, open_ = {node}, [node]
        while open_:
            for one in open_.pop().all_input_nodes:
                if one.name in self.values and one.name not in alike and one not in found:
                    found.add(one)
                    open_.append(one)
        return next(one for one in self.nodes.values() if one in found)


def inner_values(program: ExportedProgram, feed: Feed, specs: Sequence[InputSpec]) -> Inner:
    """The values of the tensors in a program. `specs`: the inputs, in the order of the program."""
    import torch

    values: Feed = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.op == "call_function" and isinstance(value, torch.Tensor):
                # a copy, because a later node may write into it
                values[n.name] = _array(value)
            return value

    with torch.no_grad():
        Recorder(program.graph_module).run(
            *_arguments(program, feed, specs), enable_io_processing=False
        )
    nodes = {node.name: node for node in program.graph.nodes}
    kinds = torch.export.graph_signature.OutputKind
    outputs = [
        nodes[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind == kinds.USER_OUTPUT and getattr(spec.arg, "name", None) in nodes
    ]
    return Inner(nodes, values, outputs)


def _arguments(program: ExportedProgram, feed: Feed, specs: Sequence[InputSpec]) -> list[Tensor]:
    """Copies of weights, state and inputs, because the program may write into them."""
    from torch import from_numpy

    given = iter([from_numpy(feed[spec.info.name].copy()) for spec in specs])
    held = {**program.constants, **program.state_dict}
    names = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.target is not None
    }
    return [
        held[str(names[node.name])].clone() if node.name in names else next(given)
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]


def _array(value: Any) -> np.ndarray:
    import torch

    value = value.detach().clone()
    array: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array
