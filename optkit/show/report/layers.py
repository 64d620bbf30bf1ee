"""The tables of a report by layer: fused layers as the compiler lists them, and every considered
node with its precision, where it runs, and the cost of quantizing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from re import Pattern

from optkit.facts.documents.report import (
    LayerFidelity,
    LayerFidelityRow,
    NodeDecision,
    OutputFidelity,
    Report,
    TensorFidelity,
)
from optkit.facts.engines import FusedLayer, LandingRow
from optkit.show.report import figures

# Shades of a heat map, 0 to 4. At 20 dB the error is a tenth of the signal, at 40 dB a hundredth.
_NOISY = (50.0, 40.0, 30.0, 20.0)
_GAINS = (0.1, 0.3, 1.0, 3.0)  # dB at the model's outputs
_CLIPS = (1e-4, 1e-3, 1e-2, 1e-1)  # of the elements


@dataclass(frozen=True)
class LayerRow:
    """A fused layer, as the report shows it."""

    name: str
    work: str  # what it does, in words; of ONNX Runtime, the operator
    kind: str  # the compiler's word
    dtypes: str  # "int8 → float16"
    computes: str | None  # dtype of what it multiplies
    nodes: tuple[str, ...]
    products: tuple[str, ...]  # those among them that it multiplies
    moved: int | None
    weights: int | None


def layers(rows: Sequence[FusedLayer], moves_data: Pattern[str] | None = None) -> list[LayerRow]:
    """`moves_data`: the trait of the backend; None: the backend names layers by ONNX operators."""
    return [_layer(row, moves_data) for row in rows]


def _work(layer: FusedLayer, moves_data: Pattern[str] | None) -> str:
    """What a layer of a compiler does, whatever the compiler calls it."""
    if moves_data is None:
        return layer.kind
    if layer.products:
        alone = len(layer.nodes) == len(layer.products)
        return "product" if alone else "product with fused operators"
    if moves_data.match(layer.name):
        return "moves or converts values"
    if not layer.nodes:
        return "added by the compiler"
    return "other operators, fused" if len(layer.nodes) > 1 else "other operator"


def _layer(layer: FusedLayer, moves_data: Pattern[str] | None) -> LayerRow:
    silent = not layer.inputs and not layer.outputs  # the backend lists no tensors: nothing known
    ends = [
        ", ".join(dict.fromkeys(t.dtype for t in side)) for side in (layer.inputs, layer.outputs)
    ]
    return LayerRow(
        layer.name,
        _work(layer, moves_data),
        layer.kind,
        " → ".join(end or figures.NONE for end in ends),
        layer.dtype,
        layer.nodes,
        layer.products,
        None if silent else layer.bytes_moved,
        None if silent else layer.constant_bytes,
    )


@dataclass(frozen=True)
class Kind:
    """All layers that do the same work, of baseline and candidate: (layers, bytes moved)."""

    work: str
    baseline: tuple[int, int | None]
    candidate: tuple[int, int | None]


def kinds(candidate: Sequence[LayerRow], baseline: Sequence[LayerRow]) -> list[Kind]:
    """Layers and bytes moved by the work that they do, the largest first."""
    names = dict.fromkeys(layer.work for layer in (*baseline, *candidate))
    found = [Kind(work, _total(baseline, work), _total(candidate, work)) for work in names]
    return sorted(found, key=lambda row: -max(row.baseline[1] or 0, row.candidate[1] or 0))


def _total(rows: Sequence[LayerRow], work: str) -> tuple[int, int | None]:
    moved = [layer.moved for layer in rows if layer.work == work]
    known = [size for size in moved if size is not None]
    return len(moved), sum(known) if len(known) == len(moved) else None


@dataclass(frozen=True)
class Cell:
    """A figure of a heat map: its text, the number to sort by, its shade from 0 to 4, and what else
    is known where a reader points at it."""

    text: str = ""
    value: float | None = None
    heat: int = 0
    beside: str = ""


_UNKNOWN = Cell()


@dataclass(frozen=True)
class NodeRow:
    """One considered node. `landed` None: it was not planned, or no engine shows where it runs.

    `alone`, `together`, `weights`: SQNR in dB compared with the FP32 graph, with only this node,
    all nodes, or only its weight quantized. `gain`: dB that the outputs of the model gain if this
    node, and all nodes that read the same values, run in FP32.
    """

    name: str
    module: str | None  # where the name does not say it
    op: str
    planned: str
    runs: str
    landed: bool | None
    why: str
    alone: Cell
    together: Cell
    weights: Cell
    gain: Cell
    span: str
    clipped: Cell
    moved: int | None
    baseline_moved: int | None
    layer: str | None


def nodes(
    report: Report, candidate: Sequence[LayerRow], baseline: Sequence[LayerRow]
) -> list[NodeRow]:
    """Every considered node in the order of the graph."""
    fidelity = report.layer_fidelity
    whole = fidelity.sqnr_db if fidelity else None
    decided = {row.node: row for row in report.quantization}
    landed = {row.node: row for row in report.landing}
    compared = {row.node: row for row in (fidelity.rows if fidelity else ())}
    ours, theirs = _by_node(candidate), _by_node(baseline)
    return [
        _node(
            name,
            decided.get(name),
            landed.get(name),
            compared.get(name),
            whole,
            ours.get(name),
            theirs.get(name),
        )
        for name in dict.fromkeys((*decided, *landed, *compared))
    ]


def by_need(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """What did not land first, then what costs most, then as they were."""
    return sorted(
        rows,
        key=lambda row: (
            row.landed is not False,
            -(row.gain.value or 0.0),
            inf if row.alone.value is None else row.alone.value,
        ),
    )


def _node(
    name: str,
    decided: NodeDecision | None,
    landed: LandingRow | None,
    compared: LayerFidelityRow | None,
    whole: float | None,
    moved: int | None,
    baseline_moved: int | None,
) -> NodeRow:
    module = (compared.module if compared else None) or ""
    alone, together, weights, gain = _cells(compared, whole)
    planned = (
        landed.planned if landed else None,
        decided.precision if decided else None,
        compared.precision if compared else None,
    )
    ops = (compared.op if compared else None, landed.op if landed else None)
    why = (decided.reason if decided else None, landed.note if landed else None)
    return NodeRow(
        name=name,
        module=None if name.startswith(module) else module,
        op=next(filter(None, ops), ""),
        planned=next(filter(None, planned), figures.NONE),
        runs=_runs(landed),
        landed=landed.landed if landed else None,
        why="; ".join(filter(None, why)),
        alone=alone,
        together=together,
        weights=weights,
        gain=gain,
        span=_span(decided),
        clipped=clipped(decided.clipped if decided else None),
        moved=moved,
        baseline_moved=baseline_moved,
        layer=landed.layer if landed else None,
    )


def _cells(compared: LayerFidelityRow | None, whole: float | None) -> tuple[Cell, Cell, Cell, Cell]:
    """`alone`, `together`, `weights` and `gain` of a node."""
    if compared is None:
        return (_UNKNOWN,) * 4
    return (
        _noise(compared.isolated),
        _noise(compared.propagated),
        _noise(compared.weights),
        _gain(compared.restored, whole),
    )


def _span(decided: NodeDecision | None) -> str:
    if decided is None or decided.low is None or decided.high is None:
        return ""
    return figures.span((decided.low, decided.high), figures.number)


def _runs(landed: LandingRow | None) -> str:
    """What a planned node multiplies in."""
    if landed is None:
        return ""
    return landed.dtype or ("unknown" if landed.landed is None else "no layer")


def _by_node(rows: Sequence[LayerRow]) -> dict[str, int | None]:
    """Node → bytes moved by the layer that multiplies it."""
    return {node: layer.moved for layer in rows for node in layer.products}


def _noise(tensor: TensorFidelity | None) -> Cell:
    if tensor is None:
        return _UNKNOWN
    return replace(noise(tensor.sqnr_db), beside=figures.likeness(tensor))


def noise(sqnr_db: float | None) -> Cell:
    """An SQNR in dB; None: equal. The lower, the hotter."""
    if sqnr_db is None:
        return Cell("equal")
    return Cell(f"{sqnr_db:.1f}", sqnr_db, sum(sqnr_db < limit for limit in _NOISY))


def clipped(share: float | None) -> Cell:
    """The share of the elements outside a range."""
    if share is None:
        return _UNKNOWN
    return Cell(f"{100 * share:.3f} %", share, sum(share > limit for limit in _CLIPS))


def _gain(restored: OutputFidelity | None, whole: float | None) -> Cell:
    if restored is None or whole is None:
        return _UNKNOWN
    if restored.sqnr_db is None:
        return Cell("all", 1e3, len(_GAINS))  # then the outputs are equal
    gain = restored.sqnr_db - whole
    return Cell(f"{gain:+.1f}".replace("-", "−"), gain, sum(gain > limit for limit in _GAINS))


@dataclass(frozen=True)
class PairRow:
    """What a Q/DQ pair does to the values that pass it."""

    value: str
    readers: str
    sqnr: Cell
    clipped: Cell
    share: str  # of the error's power, what is clipped
    span: str
    seen: str


def pairs(fidelity: LayerFidelity | None) -> list[PairRow]:
    """The pairs of activations, the noisiest first."""
    rows = [
        PairRow(
            row.value,
            ", ".join(row.readers),
            noise(row.sqnr_db),
            clipped(row.share),
            figures.percent(row.noise),
            figures.span((row.low, row.high), figures.number),
            figures.span(row.seen, figures.number),
        )
        for row in (fidelity.values if fidelity else ())
    ]
    return sorted(rows, key=lambda row: inf if row.sqnr.value is None else row.sqnr.value)
