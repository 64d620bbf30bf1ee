"""Why a graph differs from its model: found by running the model again, only after a mismatch.

Each cause has its evidence. Randomness and state: the model gives other answers for the same
inputs. Rounding: the model's own result is as far from float64 as that of the graph. Ties: the
model returns what the graph does if it takes nearly equal values in the graph's order. An error of
the translation: the first value inside the model that the graph computes otherwise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from optkit.craft.sources import export_failures
from optkit.craft.sources.export_check import ComparedRun, OutputMismatch, Reference, difference
from optkit.craft.sources.inner_values import inner_values, orders, outputs_in_order
from optkit.facts.errors import ExportFailed, OptkitError
from optkit.facts.tensors import Feed, InputSpec
from optkit.ground import graph
from optkit.ground.graph.activation_bytes import Activations
from optkit.ground.runtimes import Session

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

_ROUNDINGS = 8.0  # the graph may be this many times as far from float64 as torch is
_HALF_ROUNDINGS = 2.0  # the same where 16 bits round, which is a larger loss
_BYTES = 2 << 30  # of the values of a model in which the first one that differs is looked for
_OTHERWISE = "write this line with other operators of torch: its translation to ONNX is wrong here"
_HALVES = (
    "if the model enlarges the rounding of its parts in 16 bits, which torch and the graph do at "
    "other places, compute these parts in float32; otherwise"
)
_INPUT = "make what changes an input and an output: "


@dataclass(frozen=True)
class Witness:
    """The model, to be asked again.

    `specs`: the inputs, in the order of the program; `run`: the model on a feed; `exact`: the same
    in float64, None if it cannot; `captured`: the program; `translated`: it as the exporter
    translates it; `changes`: what a run changes in the model, in words; `graph`: its file.
    """

    specs: Sequence[InputSpec]
    run: Reference
    exact: Callable[[Feed], Feed | None]
    captured: ExportedProgram
    translated: Callable[[], ExportedProgram]
    changes: Callable[[Feed], Sequence[str]]
    graph: Path
    session: Callable[[Path], Session]

    def judge(self, case: ComparedRun, returned: Feed, mismatch: OutputMismatch) -> str:
        """Why a mismatch is no error of the export. Raises ExportFailed with the cause."""
        self._check_repeats(case, mismatch)
        note = self._of_ties(case, returned, mismatch)  # says more: rounding may hide rows
        note = note or self._of_rounding(case, returned, mismatch)
        if note is not None:
            return note
        raise self._place(case, mismatch)

    def _check_repeats(self, case: ComparedRun, mismatch: OutputMismatch) -> None:
        """Raise if the model gives other answers for the same inputs."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            first = self.run(case.feed)
            torch.manual_seed(0)
            second = self.run(case.feed)
            torch.manual_seed(1)
            third = self.run(case.feed)
        name = mismatch.output
        if _problem(case, first[name], second[name]) or (
            not _problem(case, second[name], third[name])
            and _problem(case, first[name], case.outputs[name])
        ):
            changed = self.changes(case.feed)
            told = f" It changes {', '.join(changed)}." if changed else ""
            raise ExportFailed(
                f"output {name!r}: torch itself gives two answers for the same inputs, because the "
                f"model keeps a state between calls.{told}",
                where=f"at {case.where}",
                hint=f"{_INPUT}forward(x, state) returns its result and the new state. A graph has "
                "no memory between runs",
            )
        if _problem(case, second[name], third[name]):
            lines = [export_failures.module_and_line(n)[1] for n in _random_nodes(self.captured)]
            raise ExportFailed(
                f"output {name!r}: torch itself gives two answers for the same inputs, because the "
                "model draws random numbers",
                where="; ".join(dict.fromkeys(filter(None, lines))) or f"at {case.where}",
                hint="make the noise an input, forward(x, noise), or leave it out in eval mode: "
                "`if self.training:`",
            )

    def _of_rounding(
        self, case: ComparedRun, returned: Feed, mismatch: OutputMismatch
    ) -> str | None:
        """What float64 says, if torch is about as far from it as the graph is, in all slices."""
        name = mismatch.output
        expected, found = case.outputs[name], returned[name]
        if expected.dtype.kind != "f" or expected.shape != found.shape:
            return None
        exact = (self.exact(case.feed) or {}).get(name)
        if exact is None or exact.shape != found.shape or not np.isfinite(exact).all():
            return None
        torchs, graphs = (np.abs(x.astype(np.float64) - exact) for x in (expected, found))
        wide = found.astype(np.float64)
        noise = (_HALF_ROUNDINGS if case.halves else _ROUNDINGS) * torchs
        if difference(exact, wide, halves=case.halves, noise=noise)[1] is not None:
            return None
        return (
            f"output {name!r} rounds: beside float64 torch is off by {torchs.max():.3g} and the "
            f"graph by {graphs.max():.3g}; the largest value is {np.abs(exact).max():.3g}"
        )

    def _of_ties(self, case: ComparedRun, returned: Feed, mismatch: OutputMismatch) -> str | None:
        """What torch says with the graph's order of nearly equal values (the queries of a detector
        that takes the best places of a picture), if it then returns what the graph does."""
        name, model, program = mismatch.output, graph.load(self.graph), self.translated()
        named = {str(value.name) for node in model.graph for value in node.outputs}
        taken = {op: value for op, value in orders(program).items() if value in named}
        if not taken:
            return None
        given = self._values(model, list(taken.values()), case.feed)
        indices = {op: given[value] for op, value in taken.items()}

        def alike(a: np.ndarray, b: np.ndarray) -> bool:
            return _problem(case, a, b) is None

        found = outputs_in_order(program, case.feed, self.specs, indices, alike)
        values = dict(zip(case.outputs, found.values(), strict=False)).get(name)
        if values is None or len(found) != len(case.outputs) or not alike(values, returned[name]):
            return None
        return (
            f"output {name!r} follows the order of scores that are equal but for rounding, and "
            "torch and the graph order some of them otherwise; in the same order their values agree"
        )

    def _place(self, case: ComparedRun, mismatch: OutputMismatch) -> ExportFailed:
        """The error that says where the graph begins to differ."""
        told = f"output {mismatch.output!r} {mismatch.message}"
        try:
            found = self._first_difference(case, mismatch)
        except Exception as error:  # of an operator, of a graph that is too large
            reason = export_failures.first_line(error)
            told = f"{told}. The cause was not found ({reason})"
            return ExportFailed(told, where=f"at {case.where}")
        if found is None:
            return ExportFailed(
                f"{told}. The program that torch.export captured differs from the module too: in "
                "this call forward takes another way than in the capture",
                where=f"at {case.where}",
            )
        node, what = found
        module, line = export_failures.module_and_line(node)
        return ExportFailed(
            f"{told}. It begins at {node.name!r} ({node.target}) in {module}: {what}",
            where=f"{line}, at {case.where}" if line else f"at {case.where}",
            hint=f"{_HALVES} {_OTHERWISE}" if case.halves else _OTHERWISE,
        )

    def _first_difference(
        self, case: ComparedRun, mismatch: OutputMismatch
    ) -> tuple[fx.Node, str] | None:
        """The first node that the graph computes otherwise, and the difference in words; None if
        the captured program differs from the module. Raises if they cannot be compared."""
        model = graph.load(self.graph)
        if Activations(model).at(case.trial.sizes).all > _BYTES:
            raise OptkitError(f"its values exceed {_BYTES >> 30} GiB")
        names = [
            str(value.name)
            for node in model.graph
            for value in node.outputs
            if value.dtype != ir.DataType.BFLOAT16
        ]
        translated = inner_values(self.translated(), case.feed, self.specs)
        given = self._values(model, [n for n in names if n in translated.values], case.feed)
        for name in names:
            if name in given and (problem := _problem(case, translated.values[name], given[name])):
                return translated.nodes[name], f"its value {problem}"
        captured = inner_values(self.captured, case.feed, self.specs)
        values = {**translated.values}
        alike: list[str] = []
        for name, array in captured.values.items():
            if name not in values:
                continue
            if problem := _problem(case, array, values[name]):
                return captured.first_unlike(
                    captured.nodes[name], alike
                ), f"behind it the value {problem}"
            alike.append(name)
        node = captured.outputs[list(case.outputs).index(mismatch.output)]
        if _problem(case, case.outputs[mismatch.output], captured.values[node.name]):
            return None
        return captured.first_unlike(node, alike), f"behind it the value {mismatch.message}"

    def _values(self, model: ir.Model, names: Sequence[str], feed: Feed) -> Feed:
        """These values of the graph."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / self.graph.name
            graph.save(graph.expose(model, names, alone=True), file)
            with self.session(file) as runner:
                return runner.run({info.name: feed[info.name] for info in runner.inputs})


def _problem(case: ComparedRun, a: np.ndarray, b: np.ndarray) -> str | None:
    """What is more than rounding between two values."""
    return difference(a, b, halves=case.halves)[1]


def _random_nodes(program: ExportedProgram) -> Iterator[fx.Node]:
    import torch

    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags:
            yield node
