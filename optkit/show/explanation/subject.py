"""The input of the rules: the report of an artifact, and the time of each of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from optkit.facts import precisions
from optkit.facts.documents.data_finding import DataFinding
from optkit.facts.documents.report import LayerFidelityRow, Report
from optkit.facts.documents.result import Result
from optkit.facts.engines import FusedLayer, LandingRow
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import TensorInfo, batch_axis
from optkit.facts.timed_layers import LayerTimes, NodeWork, TimedLayer
from optkit.ground import runtimes
from optkit.ground.recipe import Recipe
from optkit.show.explanation.words import line

Kind = Literal["product", "convert", "layout", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)

CONVERT = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "DynamicQuantizeLinear"})
ELEMENTWISE = frozenset(
    {"Abs", "Add", "And", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor",
     "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu",
     "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
     "QuickGelu", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softsign", "Sqrt",
     "Sub", "Sum", "Tanh", "Where"}
)  # fmt: skip
LAYOUT = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Pad", "ReorderInput",
     "ReorderOutput", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip


_DIFFERENCES = frozenset(
    {"scale", "sign", "shift", "collapsed", "narrow", "wide", "dead", "swapped", "order", "other",
     "other tokens"}
)  # fmt: skip
"""The kinds of findings of the data check in which calibration samples differ from those of the
evaluation (`calibration.suspects.beside`)."""


@dataclass(frozen=True)
class Times:
    """The times of layers with their evidence."""

    evidence: Evidence
    layers: LayerTimes
    note: str | None = None


@dataclass(frozen=True)
class Subject:
    """One artifact: its report, and the recipe that it was built from. `times`: None if the
    times of its layers are not known; `untimed` says why."""

    report: Report
    recipe: Recipe
    times: Times | None
    untimed: str | None = None

    @property
    def result(self) -> Result:
        return self.report.result

    @property
    def precision(self) -> str:
        return str(self.result.precision)

    @property
    def baseline(self) -> str:
        """The precision of the baseline."""
        return self.result.baseline.precision if self.result.baseline else "fp32"

    @property
    def candidate(self) -> tuple[TimedLayer, ...]:
        """The layers of the candidate; empty if their times are not known."""
        return self.times.layers.candidate if self.times else ()

    @property
    def nodes(self) -> Mapping[str, NodeWork]:
        return self.times.layers.nodes if self.times else {}

    def op(self, node: str) -> str | None:
        return self.nodes[node].op if node in self.nodes else None

    @cached_property
    def apart_in_baseline(self) -> set[str]:
        """The nodes that the baseline computes in kernels without a product."""
        layers = [timed.layer for timed in self.times.layers.baseline] if self.times else []
        return {node for layer in layers if not layer.products for node in layer.nodes}

    def is_unfused(self, timed: TimedLayer) -> bool:
        """Whether it is a kernel of its own only here: the baseline computes its nodes inside
        products."""
        nodes = set(timed.layer.nodes)
        inside = bool(nodes & self._in_products_of_baseline) and not nodes & self.apart_in_baseline
        return inside and self.kind(timed) in ("other", "layout")

    @cached_property
    def _in_products_of_baseline(self) -> set[str]:
        layers = [timed.layer for timed in self.times.layers.baseline] if self.times else []
        return {node for layer in layers if layer.products for node in layer.nodes}

    @cached_property
    def total_ms(self) -> float:
        return sum(timed.ms for timed in self.candidate)

    @cached_property
    def planned(self) -> dict[str, str]:
        """Node → precision, of the nodes that the plan quantizes."""
        return {
            row.node: row.precision
            for row in self.report.quantization
            if precisions.precision(row.precision).quantized
        }

    @cached_property
    def landed(self) -> dict[str, LandingRow]:
        """Node → its row of the landing."""
        return {row.node: row for row in self.report.landing}

    @cached_property
    def other_data(self) -> DataFinding | None:
        """What the data check found different between calibration and evaluation samples."""
        checked = self.result.calibration
        found = checked.findings if checked is not None and checked.compared else ()
        return next((one for one in found if one.kind in _DIFFERENCES), None)

    def has_landed(self, node: str) -> bool:
        """Whether the node runs in the planned precision."""
        row = self.landed.get(node)
        return row is not None and bool(row.landed)

    def landing_unknown(self, node: str) -> bool:
        """Whether the compiler does not say in which precision the node runs."""
        row = self.landed.get(node)
        return row is not None and row.landed is None

    @cached_property
    def fidelity(self) -> dict[str, LayerFidelityRow]:
        """Node → its row of the fidelity of layers."""
        layers = self.report.layer_fidelity
        return {row.node: row for row in layers.rows} if layers else {}

    @cached_property
    def by_node(self) -> tuple[dict[str, TimedLayer], dict[str, TimedLayer]]:
        """Node → the layer that computes this product, in the candidate and in the baseline."""
        sides = (
            (self.times.layers.candidate, self.times.layers.baseline) if self.times else ((), ())
        )
        candidate, baseline = (
            {node: timed for timed in side for node in timed.layer.products} for side in sides
        )
        return candidate, baseline

    def kind(self, timed: TimedLayer) -> Kind:
        """The kind of work of a layer."""
        known = (self.nodes[name] for name in timed.layer.nodes if name in self.nodes)
        if timed.layer.products or any(node.is_product for node in known):
            return "product"  # also one that was left in float, which the engine does not list
        ops = self.ops(timed)
        if not ops:
            return "layout" if self._only_moves(timed.layer) else "other"
        if ops <= CONVERT:
            return "convert"
        return "layout" if ops <= CONVERT | LAYOUT else "other"

    def _only_moves(self, layer: FusedLayer) -> bool:
        """Whether a layer that names no ONNX node only moves or converts values."""
        assert self.result.engine is not None
        pattern = runtimes.backend(self.result.engine.backend).traits.moves_data
        return pattern is not None and pattern.match(layer.name) is not None

    def ops(self, timed: TimedLayer) -> set[str]:
        """The operators in a layer: of its ONNX nodes, or its own kind if it names none."""
        ops = {self.nodes[name].op for name in timed.layer.nodes if name in self.nodes}
        return ops or ({timed.layer.kind} & (CONVERT | LAYOUT))

    def operator(self, timed: TimedLayer) -> str:
        """The operator that a layer mainly computes, in words: the one beside elementwise ones."""
        ops = {self.nodes[name].op for name in timed.layer.nodes if name in self.nodes}
        ops = ops or {timed.layer.kind}
        large = sorted(ops - ELEMENTWISE - LAYOUT - CONVERT)
        if large:
            return " and ".join(large[:2])
        if len(ops) == 1:
            return next(iter(ops))
        return "elementwise operators" if ops & ELEMENTWISE else "data movement"

    def neighbours(self, node: str) -> tuple[set[str], set[str]]:
        """The nearest products before and behind a node, through whatever does not multiply."""
        reads = {name: facts.reads for name, facts in self.nodes.items()}
        return _nearest(node, self.nodes, reads), _nearest(node, self.nodes, self._read_by)

    @cached_property
    def _read_by(self) -> dict[str, list[str]]:
        readers: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for maker in node.reads:
                readers.setdefault(maker, []).append(name)
        return readers

    def tuned_for(self, batch: int) -> str:
        """The line of a recipe with which an engine is tuned for this batch, in parentheses; empty
        if its inputs have a fixed batch, which only their declaration changes."""
        declared = (TensorInfo(n, i.dtype, i.shape) for n, i in self.recipe.inputs.items())
        axis = batch_axis(declared) if self.recipe.inputs else "batch"
        span = self.recipe.axis_ranges().get(str(axis))
        if span is None:
            return ""
        sizes = {"min": span.min, "opt": batch, "max": max(span.max, batch)}
        return f" (`{line(('axes', str(axis)), sizes)}`)"

    def share(self, ms: float) -> float:
        """These milliseconds as a share of the time of all layers, in [0, 1]."""
        return min(ms / self.total_ms, 1.0) if self.total_ms else 0.0  # sums round


def connected(layers: Iterable[TimedLayer]) -> list[list[TimedLayer]]:
    """Connected components of layers: two layers with a common input or output are in one group."""
    groups: list[tuple[set[str], list[TimedLayer]]] = []
    for timed in layers:
        names = {t.name for t in (*timed.layer.inputs, *timed.layer.outputs)}
        touching = [group for group in groups if group[0] & names]
        merged = (names.union(*(g[0] for g in touching)), [t for g in touching for t in g[1]])
        groups = [group for group in groups if group not in touching]
        groups.append((merged[0], [*merged[1], timed]))
    return [group for _, group in groups]


def _nearest(
    node: str, nodes: Mapping[str, NodeWork], next_to: Mapping[str, Iterable[str]]
) -> set[str]:
    products: set[str] = set()
    seen, waiting = {node}, list(next_to.get(node, ()))
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].is_product:
            products.add(name)
        else:
            waiting += next_to.get(name, ())
    return products
