"""The values inside a captured program, computed by torch node by node; and its outputs where an
order among nearly equal values is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
    return Inner(nodes, values, [nodes[name] for name in _outputs(program) if name in nodes])


def orders(program: ExportedProgram) -> dict[str, str]:
    """Name of each operator that puts values in order → name of the indices that it returns."""
    import torch

    aten, found = torch.ops.aten, {}
    for node in program.graph.nodes:
        if node.target in (aten.topk.default, aten.sort.default, aten.sort.stable):
            for user in node.users:
                if user.args[1:] == (1,):
                    found[node.name] = user.name
    return found


def outputs_in_order(
    program: ExportedProgram,
    feed: Feed,
    specs: Sequence[InputSpec],
    indices: Feed,
    alike: Callable[[np.ndarray, np.ndarray], bool],
) -> dict[str, np.ndarray]:
    """The outputs of a program, by the names of their nodes, if its operators of `orders` return
    these `indices` (by the names of the operators). Indices that do not put the values in order are
    not taken: they must be different, and what they take `alike` to what the operator returns."""
    import torch

    taken: dict[str, np.ndarray] = {}

    class InOrder(torch.fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.name in indices:
                own, places = value
                value = self._ordered(n, own, places, torch.from_numpy(indices[n.name]))
            if n.name in wanted:
                taken[n.name] = _array(value)
            return value

        def _ordered(self, n: fx.Node, values: Tensor, own: Tensor, given: Tensor) -> Any:
            (x, *rest), named = self.fetch_args_kwargs_from_env(n)
            place = 1 if n.target == torch.ops.aten.topk.default else 0
            place += n.target == torch.ops.aten.sort.stable
            axis = named.get("dim", rest[place] if len(rest) > place else -1)
            if given.shape != own.shape or given.min() < 0 or given.max() >= x.shape[axis]:
                return values, own
            if (given.sort(dim=axis).values.diff(dim=axis) == 0).any():
                return values, own
            found = x.gather(axis, given)
            return (found, given) if alike(_array(values), _array(found)) else (values, own)

    wanted = set(_outputs(program))
    with torch.no_grad():
        InOrder(program.graph_module).run(
            *_arguments(program, feed, specs), enable_io_processing=False
        )
    return taken


def _outputs(program: ExportedProgram) -> list[str]:
    """The names of the nodes that the user gets, in their order."""
    import torch

    kinds = torch.export.graph_signature.OutputKind
    specs = (s for s in program.graph_signature.output_specs if s.kind == kinds.USER_OUTPUT)
    return [str(getattr(spec.arg, "name", "")) for spec in specs]


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
