"""The step that says how much each layer's quantization costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.steps.files import GRAPH, Inputs, Params, Progress, cpu

if TYPE_CHECKING:
    import onnx_ir as ir

    from optkit.benchmarking.layers import Clipping, Compared, Layer, Likeness
    from optkit.quantization.placement.weight_layout import Use
    from optkit.runtimes import Level
    from optkit.tensors import Feed

_ALONE = 4  # pairs of one fault that are looked at one by one
_WORTH_DB = 0.5  # what all pairs of a fault have to cost for that


def compare_layers(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Fidelity of every quantized layer to the FP32 graph that was quantized, alone and with all
    others, and what the outputs gain where one layer is FP32 again, or without the Q/DQ pairs that
    have a fault.

    params: file (of the graph), nodes (node → quantized precision), samples, batch; restored: how
    many groups of layers, those with the most noise of their own, are made FP32 again.
    """
    from optkit import graph
    from optkit.benchmarking.layers import KINDS, side_by_side
    from optkit.data.spool import Spool

    reference, candidate = inputs["reference"] / GRAPH, inputs["graph"] / params["file"]
    progress("comparing the layers", 0.1)
    pair = side_by_side(graph.load(reference), graph.load(candidate), list(params["nodes"]))
    spool, count = Spool(inputs["samples"]), params["samples"]
    known: dict[str, Any] = {"evidence": "simulated", "reference": "fp32"}
    if not pair.model.graph.outputs:
        reason = "no node that is computed in few bits leaves a value of the FP32 graph"
        nothing: dict[str, Any] = {"samples": 0, "sqnr_db": None, "reason": reason, "rows": [],
                                   "values": [], "faults": []}  # fmt: skip
        return {"layers": {**known, **nothing}}

    def feeds() -> Iterable[Feed]:
        return (feed for feed, _ in spool.batches(params["batch"]))

    # from `basic` on ONNX Runtime makes one pair of two, which rounds once
    level: Level = "none" if any(one.again for one in pair.pairs) else "basic"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(pair.model, place, inline_limit=0)  # the runtime maps weights
        with cpu(place, level=level, pooled=False) as session:
            found = pair.compare(session, feeds(), count)
    del pair
    weights = _weights(reference, candidate, found.layers)
    outputs = _Outputs(reference, candidate, feeds(), params["samples"], level)
    restored = outputs.restored(_noisiest(found, params["restored"]), progress)
    faults, without = outputs.without(found)
    rows = [
        {
            "node": layer.node,
            "op": layer.op,
            "module": graph.module_of(layer.node),
            "precision": params["nodes"][layer.node],
            "tensor": layer.tensor,
            "reads": list(layer.reads),
            **{kind: _json(found.likeness[kind, layer.node]) for kind in KINDS},
            **weights[layer.node],
            "restored": restored.get(layer.node),
        }
        for layer in found.layers
    ]
    values = [{**one.to_json(), "without": without.get(one.pair)} for one in found.clipping]
    return {
        "layers": {
            **known, "samples": found.samples, "sqnr_db": outputs.sqnr_db, "reason": None,
            "rows": rows, "values": values, "faults": faults,
        }
    }  # fmt: skip


def _weights(
    reference: Path, candidate: Path, layers: Iterable[Layer]
) -> dict[str, dict[str, Any]]:
    """How each weight is stored, and the SQNR that scales per output channel would give it."""
    from optkit import graph
    from optkit.quantization.placement import weight_layout as stored

    ours = {str(node.name): node for node in graph.load(reference).graph}
    theirs = {str(node.name): node for node in graph.load(candidate).graph}
    return {
        layer.node: {
            "scales": stored.granularity(theirs[layer.node]),
            "by_channel_db": stored.by_channel_db(ours[layer.node], theirs[layer.node]),
            "codes": _asdict(stored.use_of_codes(theirs[layer.node])),
        }
        for layer in layers
    }


_Db = dict[str, float | None]  # {"sqnr_db": of the outputs, None: they are equal}


class _Outputs:
    """SQNR of the candidate's outputs, as it is (`sqnr_db`) and with parts of it changed."""

    def __init__(
        self, reference: Path, candidate: Path, feeds: Iterable[Feed], samples: int, level: Level
    ) -> None:
        from optkit.benchmarking.sensitivity import record

        self._reference, self._candidate, self._level = reference, candidate, level
        with cpu(reference, level="basic") as session:
            self._recorded = record(session, feeds, samples=samples)
        self.sqnr_db = self._of(candidate)

    def restored(self, groups: list[list[Layer]], progress: Progress) -> dict[str, _Db]:
        """By node, where its group of layers is FP32 again."""
        from optkit import graph
        from optkit.benchmarking.layers import restored

        gained: dict[str, _Db] = {}
        for index, group in enumerate(groups):
            progress(f"restoring layer {index + 1} of {len(groups)}", 0.5 + index / len(groups) / 2)
            changed = restored(graph.load(self._reference), graph.load(self._candidate), group)
            gained |= dict.fromkeys((one.node for one in group), self._changed(changed))
        return gained

    def without(self, found: Compared) -> tuple[list[dict[str, Any]], dict[str, _Db]]:
        """Of each suspected fault without all its pairs, and by pair without that alone: the few
        with the most noise, where together they are worth it."""
        from optkit.benchmarking.layers import FAULTS

        pairs = found.clipping
        rows: list[dict[str, Any]] = []
        alone: dict[str, _Db] = {}
        for fault in FAULTS:
            named = [one.pair for one in sorted(pairs, key=_noise) if one.fault == fault]
            if not named:
                continue
            together = self._without(named, found)
            rows.append({"fault": fault, "pairs": named, "without": together})
            if self._gained(together) < _WORTH_DB:
                continue
            few = named[:_ALONE]
            alone |= {
                one: together if len(named) == 1 else self._without([one], found) for one in few
            }
        return rows, alone

    def _gained(self, changed: _Db) -> float:
        if self.sqnr_db is None:
            return 0.0
        return inf if changed["sqnr_db"] is None else changed["sqnr_db"] - self.sqnr_db

    def _without(self, named: list[str], found: Compared) -> _Db:
        """Without these pairs. Products that read their codes are FP32 again: weights are rounded
        so that they make good what a bad range does, and do not fit another."""
        from optkit import graph
        from optkit.benchmarking.layers import restored, without

        values = {one.value for one in found.clipping if one.pair in named and not one.again}
        layers = [layer for layer in found.layers if values.intersection(layer.reads)]
        model = restored(graph.load(self._reference), graph.load(self._candidate), layers)
        return self._changed(without(model, named))

    def _changed(self, model: ir.Model) -> _Db:
        from optkit import graph

        with tempfile.TemporaryDirectory() as folder:
            graph.save(model, Path(folder) / GRAPH, inline_limit=0)
            return {"sqnr_db": self._of(Path(folder) / GRAPH)}

    def _of(self, path: Path) -> float | None:
        with cpu(path, level=self._level) as session:
            return self._recorded.deviation(session).sqnr_db


def _noise(pair: Clipping) -> float:
    """Less for a pair with more noise."""
    return inf if pair.sqnr_db is None else pair.sqnr_db


def _noisiest(found: Compared, count: int) -> list[list[Layer]]:
    """The groups of layers that read the same values in codes, those with the most noise of their
    own first."""
    groups: dict[Any, list[Layer]] = {}
    noise: dict[Any, float] = {}
    for layer in found.layers:
        own, group = found.likeness["isolated", layer.node], layer.reads or layer.node
        if own is not None and own.sqnr_db is not None:
            groups.setdefault(group, []).append(layer)
            noise[group] = max(noise.get(group, -inf), -own.sqnr_db)
    return [groups[group] for group in sorted(groups, key=lambda one: -noise[one])[:count]]


def _asdict(use: Use | None) -> dict[str, float] | None:
    return None if use is None else use._asdict()


def _json(likeness: Likeness | None) -> dict[str, Any] | None:
    return None if likeness is None else likeness.to_json()
