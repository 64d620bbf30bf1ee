"""The step that says how much each layer's quantization costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.steps.files import GRAPH, Inputs, Params, Progress, cpu

if TYPE_CHECKING:
    from optkit.benchmarking.layers import Compared, Layer, Likeness
    from optkit.benchmarking.sensitivity import Recorded
    from optkit.runtime import Feed


def compare_layers(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Fidelity of every quantized layer to the FP32 graph that was quantized, alone and with all
    others, and what the outputs gain where one layer is FP32 again.

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
                                   "values": []}  # fmt: skip
        return {"layers": {**known, **nothing}}

    def feeds() -> Iterable[Feed]:
        return (feed for feed, _ in spool.batches(params["batch"]))

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(pair.model, place, inline_limit=0)  # the runtime maps weights
        with cpu(place, level="basic", pooled=False) as session:
            found = pair.compare(session, feeds(), count)
    del pair
    weights = _weights(reference, candidate, found.layers)
    outputs, restored = _outputs(reference, candidate, found, feeds(), params, progress)
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
    values = [one.to_json() for one in found.clipping]
    return {
        "layers": {
            **known, "samples": found.samples, "sqnr_db": outputs, "reason": None, "rows": rows,
            "values": values,
        }
    }  # fmt: skip


def _weights(
    reference: Path, candidate: Path, layers: Iterable[Layer]
) -> dict[str, dict[str, Any]]:
    """How each weight is stored, and the SQNR that scales per output channel would give it."""
    from optkit import graph
    from optkit.quantization import stored

    ours = {str(node.name): node for node in graph.load(reference).graph}
    theirs = {str(node.name): node for node in graph.load(candidate).graph}
    return {
        layer.node: {
            "scales": stored.granularity(theirs[layer.node]),
            "by_channel_db": stored.by_channel_db(ours[layer.node], theirs[layer.node]),
        }
        for layer in layers
    }


def _outputs(
    reference: Path,
    candidate: Path,
    found: Compared,
    feeds: Iterable[Feed],
    params: Params,
    progress: Progress,
) -> tuple[float | None, dict[str, dict[str, float | None]]]:
    """SQNR in dB at the outputs (None: they are equal), as they are and by node where its group is
    FP32 again."""
    from optkit import graph
    from optkit.benchmarking.layers import restored
    from optkit.benchmarking.sensitivity import record

    groups = _noisiest(found, params["restored"])
    with cpu(reference, level="basic") as session:
        recorded = record(session, feeds, samples=params["samples"])
    with cpu(candidate, level="basic") as session:
        whole = recorded.deviation(session).sqnr_db
    gained: dict[str, dict[str, float | None]] = {}
    for index, group in enumerate(groups):
        progress(f"restoring layer {index + 1} of {len(groups)}", 0.5 + index / len(groups) / 2)
        model = restored(graph.load(reference), graph.load(candidate), group)
        with tempfile.TemporaryDirectory() as folder:
            graph.save(model, Path(folder) / GRAPH, inline_limit=0)
            found_db = {"sqnr_db": _sqnr(recorded, folder)}
        gained |= dict.fromkeys((one.node for one in group), found_db)
    return whole, gained


def _sqnr(recorded: Recorded, folder: str) -> float | None:
    with cpu(Path(folder) / GRAPH, level="basic") as session:
        return recorded.deviation(session).sqnr_db


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


def _json(likeness: Likeness | None) -> dict[str, Any] | None:
    return None if likeness is None else likeness.to_json()
