"""GPTQ of a model larger than memory: part after part, each with the inputs that the quantized
parts before it compute (Frantar et al. 2022, arXiv:2210.17323, section 4).

    part ── run on all samples ──► second moments ──► codes ──► data file
      └──── with quantized weights, run on the same inputs ──► inputs of the next part

The numbers are those of `choose_qparams`. A weight whose moments do not fit in memory is rounded to
nearest in pieces. This module runs no graph: its caller passes each part with its statistics, and
runs the quantized part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.out_of_core.awq_parts import Fold, scale_salient
from optkit.craft.quantization.out_of_core.coded_graph import CodedNode, Codings, unsimulated
from optkit.craft.quantization.out_of_core.streamed import Weight
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.expert_formats import expert_formats
from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.placement.weighted_nodes import constant
from optkit.craft.quantization.qdq import insertion as qdq
from optkit.craft.quantization.qdq.coded_experts import quantize_experts
from optkit.craft.quantization.qdq.insertion import QuantLog
from optkit.craft.quantization.rescaling.rescale import RescaleSettings
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.facts.assignment import Assignment
from optkit.facts.codec import from_json, to_json
from optkit.ground import graph
from optkit.ground.recipe import Quantization
from optkit.ground.statistics import Statistics, Tap

# Peak bytes for solving a weight [K, N], with the moments of its input: per K², and per K · N.
_PER_MOMENT, _PER_NUMBER = 32, 26


_HELD = 8  # bytes per K²: moments that wait until their weights are solved
_FOLD = "*"  # no weight has this name: for data that belongs to no codes


@dataclass(frozen=True)
class _Coded:
    """The codes of one weight. `span`: its smallest and largest scale."""

    tensors: tuple[ir.TensorProtocol, ...]
    span: tuple[float, float]
    clamped: int


@dataclass(frozen=True)
class _Note:
    """The data in a file of a part besides the codes. `keys`: name of a node → key of its codes;
    `found`: key → number of tensors, smallest and largest scale, scales that were clamped; `folds`:
    node and input of each fold."""

    keys: dict[str, str]
    found: dict[str, tuple[int, tuple[float, float], int]]
    folds: list[tuple[str, int]]
    warnings: list[str]


@dataclass
class LayerwiseQuantization:
    """The results so far for `assignment`, whose precisions quantize weights in blocks.

    `carrier`: the dtype of scales and float weights. `memory_bytes`: the memory that a solver may
    use. `folder`: where codes are stored until the result of `apply` is saved.
    """

    assignment: Assignment
    rules: Rules
    settings: Quantization
    carrier: np.dtype
    memory_bytes: int
    folder: Path
    shared: frozenset[str] = frozenset()  # constants that several parts read
    _folds: list[Fold] = field(default_factory=list)
    # node → its weight, and how the weight is read
    _keys: dict[str, str] = field(default_factory=dict)
    _coded: dict[str, _Coded] = field(default_factory=dict)
    _warnings: dict[str, None] = field(default_factory=dict)

    def taps(self, part: ir.Model) -> list[Tap]:
        """The values of a part that calibration must observe, and what it must observe of each."""
        learning = self._only(node for batch in self._batches(part) for node in batch)
        taps = qdq.taps(part, learning, self.rules, moments=True)
        return [replace(tap, moments=False) for tap in taps] if self._scales_salient else taps

    def quantize(self, part: ir.Model, statistics: Statistics | None, index: int) -> None:
        """Quantize the weights of part number `index`, and let its nodes read the codes, in place.
        `statistics`: of the taps; None if there are none.

        Raises InputRefused for a weight that is not finite.
        """
        fresh: dict[str, _Coded] = {}
        folds: list[Fold] = []
        warnings: list[str] = []
        nodes = self._codings.nodes(part)
        learned = {node for batch in self._batches(part) for node in batch}
        if statistics is not None:
            warnings += statistics.warnings()
            if self._scales_salient:
                folds = self._scale_salient(part, statistics)
            else:
                warnings += self._solve(part, statistics, fresh)
        streams: dict[str, Weight] = {}
        for node in nodes:
            key = self._key(node)
            if key not in fresh.keys() | self._coded.keys():
                weight = Weight.of(node, self._codings.of(node), "mse")
                streams[key] = weight
                fresh[key] = _Coded(tuple(weight.tensors()), (0.0, 0.0), 0)
                if node not in learned:
                    warnings.append(self._why_rounded(node))
        self._keep(index, fresh, folds)
        for key, weight in streams.items():
            seen = weight.seen
            fresh[key] = replace(fresh[key], span=seen.span, clamped=seen.clamped)
            warnings += [f"weight {weight.name!r} {odd}"] if (odd := seen.remark()) else []
        places = [(fold.node, fold.place) for fold in folds]
        keys = {str(node.name): self._key(node) for node in nodes}
        self._note(index, keys, fresh, places, warnings)
        self.resume(index)
        self._write(part)

    def resume(self, index: int) -> None:
        """Read the results of an earlier `quantize` of part number `index`."""
        note = from_json(_Note, json.loads(self._place(index, "json").read_text()))
        kept = graph.load(self._place(index, "onnx")).graph.initializers
        self._keys |= note.keys
        self._warnings |= dict.fromkeys(note.warnings)
        for key, (count, span, clamped) in note.found.items():
            values = [kept[f"{key}/{number}"] for number in range(count)]
            tensors = tuple(value.const_value for value in values if value.const_value is not None)
            self._coded[key] = _Coded(tensors, span, clamped)
        for number, (node, place) in enumerate(note.folds):
            numbers = graph.array(kept[f"{_FOLD}/{number}"])
            assert numbers is not None
            self._folds.append(Fold(node, place, numbers))

    def apply(self, carrier: ir.Model) -> QuantLog:
        """Let the assigned nodes of the carrier graph read their codes, in place."""
        coded = self._write(carrier, self._folds)
        nodes = {
            name: node.logged(self._coded[self._keys[name]].span) for name, node in coded.items()
        }
        clamped = sum(weight.clamped for weight in self._coded.values())
        formats = expert_formats(self.assignment, self.rules)
        experts = quantize_experts(carrier, formats, ExpertRounding(self.settings))
        warnings = (*self._warnings, *unsimulated(self.carrier))
        return QuantLog(nodes, {}, clamped, warnings, experts=experts)

    @property
    def _codings(self) -> Codings:
        return Codings(self.assignment, self.rules, self.settings.block_size, self.carrier)

    @property
    def _scales_salient(self) -> bool:
        return self.settings.weights == "awq"

    def _scale_salient(self, part: ir.Model, statistics: Statistics) -> list[Fold]:
        wanted = RescaleSettings(
            alpha="off",
            equalize="off",
            salient=True,
            block_size=self.settings.block_size,
            carrier=self.carrier,
        )
        learning = self._only(node for batch in self._batches(part) for node in batch)
        codes = {str(node.name) for node in self._codings.nodes(part)}
        return scale_salient(
            part, statistics, learning, self.rules, wanted, codes=codes, shared=self.shared
        )

    def _solve(
        self, part: ir.Model, statistics: Statistics, fresh: dict[str, _Coded]
    ) -> Iterator[str]:
        """Add the codes of all weights that can be solved to `fresh`. Yields warnings."""
        values = dict(statistics.values)
        waiting = list(self._batches(part))
        while waiting:
            batch = waiting.pop(0)
            qparams = choose_qparams(
                part,
                self._only(batch),
                replace(statistics, values=values),
                self.rules,
                self.settings,
                method="minmax",
                percentile=100.0,
                carrier=self.carrier,
            )
            yield from qparams.warnings
            for node in batch:
                numbers = qparams.weights[str(node.name)]
                codes, scale, zero_point = (array.T for array in numbers.by_rows())
                arrays = self._codings.of(node).parts(codes, scale, zero_point)
                tensors = tuple(ir.Tensor(np.ascontiguousarray(array)) for array in arrays)
                fresh[self._key(node)] = _Coded(tensors, numbers.span, numbers.scale.clamped)
            if not any(others[0].inputs[0] is batch[0].inputs[0] for others in waiting):
                source = _source(batch[0])  # the moments are no longer needed
                values[source] = replace(values[source], moments=None)

    def _batches(self, part: ir.Model) -> Iterator[list[ir.Node]]:
        """The nodes whose weights are solved together: they multiply one value. The memory must
        suffice for the solution and for the moments of the values that come later (the smallest
        first). Weights that are already known, and those that do not fit, are left out."""
        groups: dict[ir.Value | None, dict[str, ir.Node]] = {}
        for node in self._codings.nodes(part):
            key = self._key(node)
            if key not in self._coded and self._need(node) <= self.memory_bytes:
                groups.setdefault(node.inputs[0], {}).setdefault(key, node)
        ordered = sorted((list(group.values()) for group in groups.values()), key=_summed)
        held = sum(_HELD * _summed(group) ** 2 for group in ordered)
        for group in ordered:
            held -= _HELD * _summed(group) ** 2
            batch: list[ir.Node] = []
            for node in group:
                if held + self._need(*batch, node) > self.memory_bytes and batch:
                    yield batch
                    batch = []
                if held + self._need(node) <= self.memory_bytes:
                    batch.append(node)
            if batch:
                yield batch

    def _need(self, *nodes: ir.Node) -> int:
        """The bytes for solving these weights together."""
        sizes = [self._codings.of(node).size for node in nodes]
        moments = 0 if self._scales_salient else _PER_MOMENT * sizes[0][0] ** 2
        return moments + _PER_NUMBER * sum(k * n for k, n in sizes)

    def _why_rounded(self, node: ir.Node) -> str:
        needed, free = self._need(node) / 2**30, self.memory_bytes / 2**30
        rounded = f"weight {constant(node).name!r} is rounded to nearest: {self.settings.weights}"
        return f"{rounded} takes {needed:.3g} GiB for it, {free:.3g} are free"

    def _write(self, model: ir.Model, folds: Sequence[Fold] = ()) -> dict[str, CodedNode]:
        """Let the nodes with known codes read them, and other nodes their folded constants."""
        return self._codings.write(
            model,
            lambda node: self._keys[str(node.name)],
            lambda node, place: self._coded[self._keys[str(node.name)]].tensors,
            folds,
        )

    def _keep(self, index: int, fresh: dict[str, _Coded], folds: list[Fold]) -> None:
        """Save codes and folded constants as the constants of a graph without nodes."""
        holder = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="codes")
        kept = {key: coded.tensors for key, coded in fresh.items()}
        kept[_FOLD] = tuple(ir.Tensor(fold.numbers) for fold in folds)
        for key, tensors in kept.items():
            for number, tensor in enumerate(tensors):
                tensor.name = f"{key}/{number}"
                graph.add_tensor(holder, tensor)
        graph.save(ir.Model(holder, ir_version=10), self._place(index, "onnx"), inline_limit=0)

    def _note(
        self,
        index: int,
        keys: dict[str, str],
        fresh: dict[str, _Coded],
        folds: list[tuple[str, int]],
        warnings: list[str],
    ) -> None:
        coded = {key: (len(c.tensors), c.span, c.clamped) for key, c in fresh.items()}
        note = _Note(keys, coded, folds, warnings)
        path = self._place(index, "json")
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(json.dumps(to_json(note)))
        temporary.replace(path)

    def _place(self, index: int, ending: str) -> Path:
        return self.folder / f"codes-{index}.{ending}"

    def _only(self, nodes: Iterable[ir.Node]) -> Assignment:
        return Assignment({str(n.name): self.assignment.nodes[str(n.name)] for n in nodes})

    def _key(self, node: ir.Node) -> str:
        """The identity of a weight that is read in one way."""
        coding = self._codings.of(node)
        layout = weighted_nodes.is_turned(node), weighted_nodes.summed_axis(node)
        return f"{constant(node).name}/{coding.format.dtype}/{coding.block}/{layout}"


def _source(node: ir.Node) -> str:
    assert node.inputs[0] is not None
    return str(weighted_nodes.uncast(node.inputs[0]).name)


def _summed(group: list[ir.Node]) -> int:
    return weighted_nodes.summed(group[0])
