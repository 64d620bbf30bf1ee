from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import onnx_ir as ir

from optkit.craft.benchmarking.layer_comparison import (
    FAULTS,
    ComparedNode,
    NodeFidelity,
    TensorLikeness,
    restored,
    side_by_side,
    without,
)
from optkit.craft.benchmarking.sensitivity import record
from optkit.craft.quantization.placement import weight_layout
from optkit.facts.documents.report import (
    CodeUse,
    FaultFidelity,
    LayerFidelity,
    LayerFidelityRow,
    OutputFidelity,
    PairFidelity,
    TensorFidelity,
)
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Level
from optkit.road.steps.bodies.float_weights import dequantize_weights
from optkit.road.steps.bodies.sessions import cpu, folded
from optkit.road.steps.compare_layers import CompareLayers, LayerComparison, uncompared
from optkit.road.steps.file_names import GRAPH

_ALONE = 4  # pairs of one fault that are removed one by one
_WORTH_DB = 0.5  # the gain from removing all pairs of a fault that makes this worthwhile


def run(step: CompareLayers, out: Path, progress: Progress) -> LayerComparison:
    reference, candidate = step.reference.path / GRAPH, step.graph.path / step.file
    progress("comparing the layers", 0.1)
    pair = side_by_side(graph.load(reference), graph.load(candidate), list(step.nodes))
    if not pair.model.graph.outputs:
        reason = "no node that is computed in few bits leaves a value of the FP32 graph"
        return LayerComparison(layers=uncompared(reason))

    # single ones, where that may be: inner values of a few graphs are alive together
    feeds = list(Spool(step.samples.path).spread(step.count))
    # from level `basic` on, ONNX Runtime merges two such pairs into one, which rounds once
    level: Level = "none" if any(one.again for one in pair.pairs) else "basic"
    with folded(pair.model, level, pooled=False) as session:
        compared = pair.compare(session, feeds)
    del pair
    with tempfile.TemporaryDirectory() as folder:
        outputs = _Outputs(reference, candidate, feeds, level, Path(folder))
        gains = outputs.restored(_noisiest(compared, step.restored), progress)
        faults, alone = outputs.without(compared)
    return LayerComparison(
        layers=LayerFidelity(
            evidence=Evidence.SIMULATED,
            reference="fp32",
            samples=compared.samples,
            sqnr_db=outputs.sqnr_db,
            rows=_rows(step, compared, gains),
            values=tuple(replace(one, without=alone.get(one.pair)) for one in compared.clipping),
            faults=tuple(faults),
        )
    )


def _rows(
    step: CompareLayers, compared: NodeFidelity, gains: dict[str, OutputFidelity]
) -> tuple[LayerFidelityRow, ...]:
    ours = {str(node.name): node for node in graph.load(step.reference.path / GRAPH).graph}
    theirs = {str(node.name): node for node in graph.load(step.graph.path / step.file).graph}
    likeness = compared.likeness
    return tuple(
        LayerFidelityRow(
            node=layer.node,
            op=layer.op,
            module=graph.module_of(layer.node),
            precision=str(step.nodes[layer.node]),
            tensor=layer.tensor,
            reads=layer.reads,
            propagated=_tensor(likeness["propagated", layer.node]),
            isolated=_tensor(likeness["isolated", layer.node]),
            weights=_tensor(likeness["weights", layer.node]),
            scales=weight_layout.granularity(theirs[layer.node]),
            by_channel_db=weight_layout.by_channel_db(ours[layer.node], theirs[layer.node]),
            codes=_codes(theirs[layer.node]),
            restored=gains.get(layer.node),
        )
        for layer in compared.layers
    )


def _codes(node: ir.Node) -> CodeUse | None:
    use = weight_layout.use_of_codes(node)
    return None if use is None else CodeUse(**use._asdict())


def _tensor(likeness: TensorLikeness | None) -> TensorFidelity | None:
    return None if likeness is None else TensorFidelity.from_object(likeness)


class _Outputs:
    """SQNR of the candidate's outputs, unchanged (`sqnr_db`) and with some parts changed.

    `folder` gets both graphs with their weights in data files, those of the candidate as values.
    The files of a changed graph are links to these, so each weight is computed and written once.
    """

    def __init__(
        self, reference: Path, candidate: Path, feeds: Sequence[Feed], level: Level, folder: Path
    ) -> None:
        self._level = level
        with cpu(reference, level="basic") as session:
            self._recorded = record(session, feeds, samples=len(feeds))
        self._reference, self._candidate = folder / "reference.onnx", folder / "candidate.onnx"
        graph.save(graph.load(reference), self._reference, inline_limit=0)
        model = graph.load(candidate)
        dequantize_weights(model)
        graph.save(model, self._candidate, inline_limit=0)
        self.sqnr_db = self._changed(graph.load(self._candidate)).sqnr_db

    def restored(
        self, groups: list[list[ComparedNode]], progress: Progress
    ) -> dict[str, OutputFidelity]:
        """The fidelity by node, with the node's group of layers in FP32."""
        gained: dict[str, OutputFidelity] = {}
        for index, group in enumerate(groups):
            progress(f"restoring layer {index + 1} of {len(groups)}", 0.5 + index / len(groups) / 2)
            changed = restored(graph.load(self._reference), graph.load(self._candidate), group)
            gained |= dict.fromkeys((one.node for one in group), self._changed(changed))
        return gained

    def without(self, found: NodeFidelity) -> tuple[list[FaultFidelity], dict[str, OutputFidelity]]:
        """For each suspected fault, the fidelity without all its pairs. If this gains enough, also
        the fidelity without each single pair, for the few pairs with the most noise."""
        pairs = found.clipping
        rows: list[FaultFidelity] = []
        alone: dict[str, OutputFidelity] = {}
        for fault in FAULTS:
            named = [one.pair for one in sorted(pairs, key=_noise) if one.fault == fault]
            if not named:
                continue
            together = self._without(named, found)
            rows.append(FaultFidelity(fault=fault, pairs=tuple(named), without=together))
            if self._gained(together) < _WORTH_DB:
                continue
            few = named[:_ALONE]
            alone |= {
                one: together if len(named) == 1 else self._without([one], found) for one in few
            }
        return rows, alone

    def _gained(self, changed: OutputFidelity) -> float:
        if self.sqnr_db is None:
            return 0.0
        return inf if changed.sqnr_db is None else changed.sqnr_db - self.sqnr_db

    def _without(self, named: list[str], found: NodeFidelity) -> OutputFidelity:
        """The fidelity without these pairs. Products that read their codes are FP32 again,
        because the rounding of their weights compensates for the wrong range and does not fit
        another one."""
        values = {one.value for one in found.clipping if one.pair in named and not one.again}
        layers = [layer for layer in found.layers if values.intersection(layer.reads)]
        model = restored(graph.load(self._reference), graph.load(self._candidate), layers)
        return self._changed(without(model, named))

    def _changed(self, model: ir.Model) -> OutputFidelity:
        with folded(model, self._level) as session:
            return OutputFidelity(sqnr_db=self._recorded.deviation(session).sqnr_db)


def _noise(pair: PairFidelity) -> float:
    """A sort key: smaller for a pair with more noise."""
    return inf if pair.sqnr_db is None else pair.sqnr_db


def _noisiest(found: NodeFidelity, count: int) -> list[list[ComparedNode]]:
    """The groups of layers that read the same quantized values. The groups with the most noise of
    their layers alone come first."""
    groups: dict[str | tuple[str, ...], list[ComparedNode]] = {}
    noise: dict[str | tuple[str, ...], float] = {}
    for layer in found.layers:
        own, group = found.likeness["isolated", layer.node], layer.reads or layer.node
        if own is not None and own.sqnr_db is not None:
            groups.setdefault(group, []).append(layer)
            noise[group] = max(noise.get(group, -inf), -own.sqnr_db)
    return [groups[group] for group in sorted(groups, key=lambda one: -noise[one])[:count]]
