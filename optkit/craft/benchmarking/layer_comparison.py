"""Fidelity layer by layer, by a graph that compares itself: no inner tensor leaves the runtime.

    reference   x ─────────────► layer ──► t
    isolated    x ── Q ── DQ ──► layer ──► t′        only this layer is quantized
    weights     x ─────────────► layer ──► t*        only its weight is quantized
    propagated  … ── Q ── DQ ──► layer ──► t″        all layers are quantized

Values with the same name are the same value in both graphs, because quantization adds values and
does not rename the others (`qdq.writer`). The nodes between two such values are a layer: the
product with its Q/DQ pairs, its codes and the nodes that were written after it. The layer is copied
from the candidate and reads the values of the reference. The graph returns five sums for each
comparison, so a run needs no more memory than any other. Padding is left out, in outputs and inner
values, as in `fidelity`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log10, sqrt
from typing import NamedTuple, get_args

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from optkit.craft.benchmarking.comparison_sums import ComparisonSums
from optkit.craft.benchmarking.doubts import COARSE, FINE_DB
from optkit.craft.benchmarking.merged_graph import (
    OURS,
    Copies,
    by_name,
    constants,
    copied,
    dequantized,
    merge,
    own_name,
    range_of,
)
from optkit.facts.documents.report import Fault, PairFidelity
from optkit.facts.tensors import Feed, count_samples
from optkit.ground import graph
from optkit.ground.data.padding import TokenAxes
from optkit.ground.runtimes import Session

KINDS = ("propagated", "isolated", "weights")

FAULTS: tuple[Fault, ...] = get_args(Fault)

_BEYOND = 0.5  # the share of a pair's noise from clipping above which it counts as clipped


@dataclass(frozen=True)
class TensorLikeness:
    """The fidelity of a tensor to its reference. `sqnr_db`: None if they are equal."""

    sqnr_db: float | None
    cosine: float
    max_abs_error: float


def fault_of(pair: PairFidelity) -> Fault | None:
    """The suspected fault of the pair, if there is one. It is only a suspicion until its cost is
    known.

    At the range with the least squared error, clipping adds less noise than rounding (Banner,
    Nahshan, Soudry: Post training 4-bit quantization, NeurIPS 2019, section 3, for Gaussian and
    Laplacian values). If it adds more, a larger range is better. A range of `COARSE` times the
    largest magnitude of the values leaves two bits of every code unused.
    """
    noisy = pair.sqnr_db is not None and pair.sqnr_db <= FINE_DB
    if pair.again:
        return "duplicated"
    if noisy and pair.noise >= _BEYOND:
        return "clipped"
    if not pair.read:
        return "unread"
    most = max(map(abs, pair.seen))
    wide = max(-pair.low, pair.high) >= COARSE * most > 0
    return "coarse" if noisy and wide else None


class ComparedNode(NamedTuple):
    """A quantized node, its output value in both graphs, and the values that it reads as codes."""

    node: str
    op: str
    tensor: str
    reads: tuple[str, ...]


@dataclass(frozen=True)
class NodeFidelity:
    """The result of a comparison. `likeness`: by kind and node; None if sums were not finite."""

    layers: tuple[ComparedNode, ...]
    likeness: Mapping[tuple[str, str], TensorLikeness | None]
    clipping: tuple[PairFidelity, ...]
    samples: int


@dataclass
class SideBySide:
    """Reference and candidate in one graph, `model`, whose only outputs are sums of comparisons.
    `real`: dimension → the name of the input that says which of its `tokens` are not padding."""

    model: ir.Model
    tokens: TokenAxes | None = None
    real: Mapping[int | str, str] = field(default_factory=dict)
    layers: list[ComparedNode] = field(default_factory=list)
    pairs: list[_Pair] = field(default_factory=list)

    def compare(self, session: Session, feeds: Iterable[Feed]) -> NodeFidelity:
        """Run `model`, which the session has loaded, on all feeds."""
        sums: dict[str, list[np.ndarray]] = {}
        seen = 0
        for feed in feeds:
            for name, found in session.run(feed | self._places(feed)).items():
                sums.setdefault(name, []).append(found.astype(np.float64))
            seen += count_samples(feed)
        rows = {name: np.stack(found) for name, found in sums.items()}
        likeness = {
            (kind, layer.node): _likeness(rows[f"{kind} {layer.node}"])
            for layer in self.layers
            for kind in KINDS
        }
        clipping = (_clipping(pair, rows[f"pair {n}"]) for n, pair in enumerate(self.pairs))
        return NodeFidelity(tuple(self.layers), likeness, tuple(clipping), seen)

    def _places(self, feed: Feed) -> Feed:
        if self.tokens is None:
            return {}
        return {name: self.tokens.real(feed, dim) for dim, name in self.real.items()}


def side_by_side(reference: ir.Model, candidate: ir.Model, nodes: Collection[str]) -> SideBySide:
    """Merge two graphs with the same inputs for a comparison. Both are consumed. `nodes`: names of
    the quantized nodes; a node without an output value in the reference is left out.

    Raises InputRefused if the candidate has another input.
    """
    known, fixed = by_name(reference), constants(reference)
    ours = {str(node.name): node for node in reference.graph}
    taken = graph.value_names(reference)
    theirs = merge(reference, candidate, taken)
    copies = Copies(reference, theirs, {n: v for n, v in known.items() if v not in fixed}, taken)
    tokens = TokenAxes.of(list(graph.inputs(reference)))
    made, sums = SideBySide(reference, tokens), ComparisonSums(reference, taken, tokens)
    for name in nodes:
        node = theirs.nodes.get(name)
        tensor = None if node is None else copies.left_by(node)
        if node is None or tensor is None:
            continue
        sums.compare(f"propagated {name}", known[tensor], theirs.values[tensor])
        sums.compare(f"isolated {name}", known[tensor], copies.layer(tensor, quantized=True))
        sums.compare(f"weights {name}", known[tensor], copies.layer(tensor, quantized=False))
        made.layers.append(ComparedNode(name, node.op_type, tensor, copies.reads(tensor)))
    for quantize, value, again in copies.quantized():
        ends = range_of(quantize)
        if ends is not None:
            readers = theirs.readers(quantize)
            channels = _multiplied([ours[name] for name in readers if name in ours])
            pair = copies.pair(quantize)
            sums.clip(f"pair {len(made.pairs)}", known[value], pair, ends, channels)
            read = theirs.reaches(quantize, nodes)
            made.pairs.append(_Pair(own_name(quantize), read, again, value, readers, ends))
    made.real = {dim: str(value.name) for dim, value in sums.real.items()}
    reference.graph.outputs[:] = sums.outputs
    RemoveUnusedNodesPass()(reference)
    return made


def without(candidate: ir.Model, pairs: Collection[str]) -> ir.Model:
    """The candidate without these pairs (names of their QuantizeLinear). Their readers read the
    value before the pair. The candidate is consumed."""
    for node in [node for node in candidate.graph if node.name in pairs]:
        value = node.inputs[0]
        assert value is not None
        for half in dequantized(node):
            graph.read_instead(half, value)
    RemoveUnusedNodesPass()(candidate)
    return candidate


def restored(reference: ir.Model, candidate: ir.Model, layers: Iterable[ComparedNode]) -> ir.Model:
    """The candidate with these layers replaced by those of the reference. Both are consumed."""
    values, ours, fixed = by_name(candidate), by_name(reference), constants(reference)
    codes, taken = constants(candidate), graph.value_names(candidate)

    def stands_for(value: ir.Value) -> ir.Value | None:
        if value.const_value is not None:
            free = graph.claim_name(f"{OURS}{value.name}", taken)
            held = ir.Value(name=free, shape=value.shape, type=value.type)
            held.const_value = value.const_value
            candidate.graph.register_initializer(held)
            return held
        found = None if value in fixed else values.get(str(value.name))
        return None if found in codes else found

    for layer in layers:
        old, nodes = values[layer.tensor], list[ir.Node]()
        new = copied(ours[layer.tensor], stands_for, nodes, {}, OURS, taken)
        after = old.producer()
        assert after is not None
        candidate.graph.insert_after(after, nodes)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = new.name, old.name
        values[layer.tensor] = new
    RemoveUnusedNodesPass()(candidate)
    return candidate


def _multiplied(readers: Sequence[ir.Node]) -> np.ndarray | None:
    """The channels of an activation that these products multiply by other numbers than zero, if
    there are others: outlier channels are multiplied elsewhere, and their codes saturate. None: all
    channels, or a reader is no product."""
    found: np.ndarray | None = None
    for node in readers:
        weight = graph.array(node.inputs[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.ndim != 2 or node.attributes.get_int("transA", 0) == 1:
            return None
        turned = node.attributes.get_int("transB", 0) == 1
        own = np.asarray((weight if turned else weight.T).any(axis=0))
        found = own if found is None else np.logical_or(found, own)
    return None if found is None or found.all() or not found.any() else np.flatnonzero(found)


class _Pair(NamedTuple):
    """A Q/DQ pair on a value of the reference; whether a quantized product reads it; whether it
    follows another pair; its readers; and the ends of its range."""

    quantize: str
    read: bool
    again: bool
    value: str
    readers: tuple[str, ...]
    ends: tuple[float, float]


def _likeness(rows: np.ndarray) -> TensorLikeness | None:
    """The fidelity from Σ r², Σ (r-c)², Σ c², Σ r·c, max |r-c| of each feed. None if one of them is
    too large for float32, or if there is no signal to compare the noise with."""
    signal, noise, power, dot = (float(total) for total in rows[:, :4].sum(axis=0))
    most = float(rows[:, 4].max())
    if not all(map(isfinite, (signal, noise, power, dot, most))) or (noise and not signal):
        return None
    if not noise:
        return TensorLikeness(None, 1.0, 0.0)
    cosine = dot / sqrt(signal * power) if power else 0.0
    return TensorLikeness(10 * log10(signal / noise), max(-1.0, min(1.0, cosine)), most)


def _clipping(pair: _Pair, rows: np.ndarray) -> PairFidelity:
    signal, noise, beyond, clipped, size = (float(total) for total in rows[:, :5].sum(axis=0))
    known = isfinite(signal) and isfinite(noise) and noise > 0 and signal > 0
    made = PairFidelity(
        pair=pair.quantize,
        read=pair.read,
        again=pair.again,
        value=pair.value,
        readers=pair.readers,
        sqnr_db=10 * log10(signal / noise) if known else None,
        share=clipped / size if size else 0.0,
        noise=min(beyond / noise, 1.0) if known else 0.0,
        low=pair.ends[0],
        high=pair.ends[1],
        seen=(float(rows[:, 5].min()), float(rows[:, 6].max())),
    )
    return replace(made, fault=fault_of(made))
