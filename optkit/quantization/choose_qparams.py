"""The numbers of a quantization: ranges, scales and codes. The graph is read here, never changed.

    value  ── statistics ──► range ──► scale, zero point
    weight ── scale (searched) ──► held by the carrier, split if the rules say so ──► codes (solved)

Everything is decided once, on the FP32 graph; `qdq.apply` writes it into that graph and into its
cast, so that a simulation holds exactly the codes and scales of what is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from optkit.assignment import Assignment
from optkit.errors import InputRefused, located
from optkit.placement import PlacementRules
from optkit.precisions import NumberFormat
from optkit.quantization import ranges
from optkit.quantization.numerics import scales
from optkit.quantization.numerics.qparams import ActivationNumbers, Decisions, WeightNumbers
from optkit.quantization.numerics.scales import Scale
from optkit.quantization.placement import weighted_nodes as operands
from optkit.quantization.placement.block_size import fitting_block
from optkit.quantization.placement.qdq_placement import Rules, Site, sites
from optkit.quantization.qdq import dynamic
from optkit.quantization.ranges import Method
from optkit.quantization.rounding import bias_correction as bias
from optkit.quantization.rounding import convolution
from optkit.quantization.rounding.gptq import gptq
from optkit.quantization.rounding.hqq import hqq
from optkit.quantization.rounding.rtn import Quantized, round_to_nearest
from optkit.recipe import Quantization
from optkit.statistics import Moments, Statistics, ValueStatistics
from optkit.statistics.dataset import remark

_MATRIX = ("MatMul", "Gemm")
# More of it the fewer rows there are per channel; less than 0.01 fits the sample too closely.
_DAMPING, _DAMPED = 0.02, (0.01, 0.05)
_SWEEPS = 2  # of coordinate descent behind GPTQ


def decide(
    model: ir.Model,
    assignment: Assignment,
    statistics: Statistics | None,
    rules: Rules,
    settings: Quantization,
    *,
    method: Method,
    percentile: float,
    carrier: np.dtype | type,
) -> Decisions:
    """All numbers for `assignment` on the FP32 graph `model`. `carrier`: the dtype that will hold
    scales and float weights; both are rounded to it before codes are found.

    Raises InputRefused for a value without statistics or a weight that is not finite.
    """
    found = Decisions()
    decider = _Decider(statistics, rules, settings, method, percentile, np.dtype(carrier))
    planned = assignment.quantized()
    for site in sites(model, assignment, rules):
        source = str(operands.uncast(site.value).name)
        if statistics is not None and statistics.value(source).unbounded:
            continue  # no node that multiplies it is planned: the operand of a sum stays float
        nodes = [n for n, index in site.readers if index == 0 and n.name in planned]
        with located(f"tensor {source!r}"):
            numbers = decider.activation(site, source, nodes)
        found.activations[source, site.format] = numbers
        found.weights.update(decider.weights(nodes, planned, numbers))
    for nodes in _sharing(model, planned, rules):
        found.weights.update(decider.weights(nodes, planned, None))
    told = sorted(f"weight {name!r} {what}" for name, what in decider.remarks.items())
    return replace(found, warnings=tuple(told))


def matrix(node: ir.Node) -> np.ndarray:
    """The weight of a MatMul or Gemm as [K, N]: K the summed axis, N the output channels."""
    found = operands.weight(node)
    return found if operands.summed_axis(node) == 0 else found.T


def _sharing(model: ir.Model, planned: dict[str, str], rules: Rules) -> Iterator[list[ir.Node]]:
    """The nodes whose weights alone are quantized, those that read one value together."""
    groups: dict[ir.Value | None, list[ir.Node]] = {}
    for node in model.graph:
        if node.name in planned and rules[planned[str(node.name)]].activation is None:
            groups.setdefault(node.inputs[0], []).append(node)
    yield from groups.values()


class _Read(NamedTuple):
    """A constant weight as its node reads it, and how its scale may be said."""

    node: ir.Node
    name: str
    numbers: np.ndarray  # float32, holding what the carrier holds
    format: NumberFormat
    rules: PlacementRules
    axis: int | None
    split: bool
    bias: np.ndarray | None
    scale: Scale = Scale(np.ones((), np.float32), np.zeros((), np.int8), 0)

    @property
    def live(self) -> np.ndarray:
        """bool [channels]: those that are not all zero."""
        others = tuple(d for d in range(self.numbers.ndim) if d != self.axis)
        return np.asarray(self.numbers.any(axis=others))

    @property
    def is_matrix(self) -> bool:
        return self.node.op_type in _MATRIX

    @property
    def can_be_solved(self) -> bool:
        return self.is_matrix and scales.scalable(self.numbers)

    @property
    def by_columns(self) -> np.ndarray:
        """[K, N]"""
        return self.numbers if operands.summed_axis(self.node) == 0 else self.numbers.T


@dataclass
class _Decider:
    statistics: Statistics | None
    rules: Rules
    settings: Quantization
    method: Method
    percentile: float
    carrier: np.dtype
    remarks: dict[str, str] = field(default_factory=dict)  # weight -> what is odd about it
    _solved: dict[tuple[str, int | None, bytes, NumberFormat], tuple[np.ndarray, Scale]] = field(
        default_factory=dict
    )
    _moments: tuple[Moments, np.ndarray] | None = None

    def activation(self, site: Site, source: str, nodes: Sequence[ir.Node]) -> ActivationNumbers:
        if self.statistics is None:
            raise InputRefused("no statistics were collected", hint="give calibration samples")
        value = self.statistics.value(source)
        if site.format.granularity == "block":  # blocks find their scales while they run
            outer = scales.outer_scale(max(-value.low, value.high, 0.0))
            return ActivationNumbers(
                source, value.low, value.high, "minmax",
                Scale(outer, np.zeros((), np.int8), 0), site.format, 0.0,
            )  # fmt: skip
        multiplied = (matrix(node) for node in nodes if node.op_type in _MATRIX)
        consumers = [w for w in multiplied if scales.scalable(w)]
        found = ranges.choose(value, site.format, self.method, self.percentile, consumers)
        scale = scales.activation_scale(found.low, found.high, site.format, self.carrier)
        clipped = value.fraction_outside(*scales.representable(scale, site.format))
        rest = None
        matrices = [str(node.name) for node in nodes if node.op_type in _MATRIX]
        if any(self.settings.is_two_term(name) for name in matrices):
            half = float(scale.scale) / 2
            rest = scales.activation_scale(-half, half, site.format, self.carrier)
        return ActivationNumbers(
            source, found.low, found.high, found.method, scale, site.format, clipped, rest
        )

    def weights(
        self,
        nodes: Sequence[ir.Node],
        planned: dict[str, str],
        activation: ActivationNumbers | None,
    ) -> dict[str, WeightNumbers]:
        """The numbers of all nodes that multiply one value. Where scales are split, they share the
        common one: compilers merge products of one activation (query, key, value) if their scale is
        the same; and GPTQ solves them together."""
        scale = None if activation is None else activation.scale
        source = activation.source if activation else _source(nodes)
        value = self._value(source)
        read = [
            self._read(node, self.rules[planned[str(node.name)]], scale, value) for node in nodes
        ]
        live = [one.scale.scale[one.live] for one in read if one.split]
        common = scales.common_scale(live, self.carrier)
        effective, ratios = [], []
        for one in read:
            ratio = None
            if one.split:
                part = scales.ratio(one.scale, common, one.live, self.carrier)
                one = one._replace(scale=part._replace(scale=common.scale * part.scale))
                ratio = part.scale
            effective.append(one)
            ratios.append(ratio)
        with located(f"tensor {source!r}"):
            codes = self._codes(effective, value)
        numbers = {}
        for one, (found, used), ratio in zip(effective, codes, ratios, strict=True):
            one = one._replace(scale=used)
            own = _laid_out(one)
            alone = common._replace(zero_point=np.zeros((), own.zero_point.dtype))
            numbers[str(one.node.name)] = WeightNumbers(
                one.name, found, one.format, one.axis, one.format.block_size, own,
                own if ratio is None else alone, ratio, self._bias(one, found, activation), scale,
            )  # fmt: skip
        return numbers

    def _value(self, source: str | None) -> ValueStatistics | None:
        return self.statistics.values.get(source or "") if self.statistics else None

    def _read(
        self,
        node: ir.Node,
        rules: PlacementRules,
        activation: Scale | None,
        value: ValueStatistics | None,
    ) -> _Read:
        constant = node.inputs[1]
        assert constant is not None
        fmt, own = rules.weight_of(node.op_type), operands.bias(node)
        stored = operands.weight(node)
        told = remark(float(stored.min()), float(stored.max())) if stored.size > 1 else None
        if told is not None:
            self.remarks[str(constant.name)] = told
        numbers = _held(stored, self.carrier)
        axis = operands.channel_axis(node) if fmt.granularity == "channel" else None
        if fmt.granularity == "block":
            axis = operands.summed_axis(node)
            fmt = replace(fmt, block_size=fitting_block(node, rules, self.settings.block_size))
        movable = own is not None or not operands.has_bias(node)
        split = fmt.granularity == "channel" and node.op_type in rules.split_scale and movable
        floor: np.ndarray | float = 0.0
        if activation is not None and node.op_type in rules.integer_bias:
            floor = scales.floor_for_bias(own, activation)
        # the parts of a split scale are rounded to the carrier, not their product
        carrier = np.dtype(np.float32) if split else self.carrier
        given = _Read(node, str(constant.name), numbers, fmt, rules, axis, split, own)
        by_columns = given.by_columns if fmt.granularity == "block" else numbers
        with located(f"weight {constant.name!r}"):
            scale = scales.weight_scale(
                by_columns, axis, fmt, carrier, floor, search=self._search(given, value)
            )
        return given._replace(scale=scale)

    def _search(self, one: _Read, value: ValueStatistics | None) -> scales.Search:
        blocks = one.format.granularity == "block"
        if blocks and self._solves(value) and one.can_be_solved:
            return "absmax"  # GPTQ finds better ones of its own
        if self.settings.weights == "auto":
            return "mse" if blocks else "absmax"
        return "absmax" if self.settings.weights == "rtn" else "mse"

    def _solves(self, value: ValueStatistics | None) -> bool:
        learned = value is not None and value.moments is not None
        return learned and self.settings.weights in ("auto", "gptq")

    def _codes(
        self, read: Sequence[_Read], value: ValueStatistics | None
    ) -> list[tuple[np.ndarray, Scale]]:
        """Codes in the nodes' layout, and their scales: the given ones, or for blocks, whose scales
        nothing else depends on, those that the solver prefers. A shared weight is solved once."""
        keys = [(one.name, one.axis, one.scale.scale.tobytes(), one.format) for one in read]
        moments = value.moments if value is not None else None
        solves = self._solves(value)
        rest = {key: one for key, one in zip(keys, read, strict=True) if key not in self._solved}
        matrices = {key: one for key, one in rest.items() if solves and one.can_be_solved}
        for fmt in dict.fromkeys(one.format for one in matrices.values()):
            alike = {key: one for key, one in matrices.items() if one.format == fmt}
            assert moments is not None
            solved = self._solve(list(alike.values()), fmt, moments)
            for (key, one), found in zip(alike.items(), solved, strict=True):
                self._solved[key] = _as_read(found.codes, one.node), found.scale
        for key, one in rest.items():
            if key not in self._solved:
                self._solved[key] = self._rounded(one, value)
        return [self._solved[key] for key in keys]

    def _solve(self, read: Sequence[_Read], fmt: NumberFormat, moments: Moments) -> list[Quantized]:
        """GPTQ of all weights that multiply one value."""
        weights = [one.by_columns for one in read]
        given = None if fmt.granularity == "block" else [one.scale for one in read]
        damping = _damping(len(weights[0]), moments)
        second = self._matrix_of(moments)
        return gptq(
            weights, second, fmt, self.carrier, scales=given, damping=damping, sweeps=_SWEEPS
        )

    def _matrix_of(self, moments: Moments) -> np.ndarray:
        if self._moments is None or self._moments[0] is not moments:
            self._moments = moments, moments.matrix()
        return self._moments[1]

    def _rounded(self, one: _Read, value: ValueStatistics | None) -> tuple[np.ndarray, Scale]:
        if not one.is_matrix:
            return self._convolved(one, value), one.scale
        if self.settings.weights == "hqq" and one.format.granularity == "block":
            found = hqq(one.by_columns, one.format, self.carrier)
        else:
            found = round_to_nearest(one.by_columns, one.format, self.carrier, scale=one.scale)
        return _as_read(found.codes, one.node), found.scale

    def _convolved(self, one: _Read, value: ValueStatistics | None) -> np.ndarray:
        """Codes of a kernel: solved where the second moments of its patches are known."""
        seen = None if value is None else value.patches.get(operands.window(one.node))
        solves = self.settings.weights in ("auto", "gptq") and scales.scalable(one.numbers)
        if not solves or seen is None or seen.moments is None:
            return scales.quantize(one.numbers, one.scale, one.format, one.axis)
        second = seen.moments.matrix()
        damping = _damping(second.shape[-1], seen.moments)
        return convolution.solve(one.numbers, one.scale, one.format, second, damping)

    def _bias(
        self, one: _Read, codes: np.ndarray, activation: ActivationNumbers | None
    ) -> np.ndarray | None:
        """The node's own bias, corrected for the mean error of its quantized product."""
        value = self._value(activation.source) if activation else None
        known = None if value is None else _multiplied(one, codes, value)
        takes_one = one.bias is not None or one.rules.free_bias
        if known is None or not takes_one or operands.loose_bias(one.node):
            return one.bias
        if not self.settings.bias_correction or activation is None:
            return one.bias
        rows, w, w_hat = known
        found = bias.correction(rows, w, _rounded(rows, activation), w_hat).reshape(-1)
        corrected: np.ndarray = found if one.bias is None else one.bias + found
        return corrected


def _multiplied(
    one: _Read, codes: np.ndarray, value: ValueStatistics
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows of what the node multiplies, its weight and what the codes say of it, as `bias` takes
    them; None where no rows were kept."""
    if one.is_matrix:
        by_columns = codes if operands.summed_axis(one.node) == 0 else codes.T
        w_hat = scales.dequantize(by_columns, one.scale, 1, fmt=one.format)
        return None if value.rows is None else (value.rows.data, one.by_columns, w_hat)
    window = operands.window(one.node)
    if window not in value.patches:
        return None
    rows = value.patches[window].rows.data
    w_hat = convolution.dequantized(codes, one.scale, one.format, window.groups)
    w = convolution.matrices(one.numbers, window.groups)
    return rows.reshape(len(rows), window.groups, -1), w, w_hat


def _damping(k: int, moments: Moments) -> float:
    """The fewer rows the moments are of, the more they are damped."""
    return float(np.clip(_DAMPING * k / moments.count, *_DAMPED))


def _rounded(rows: np.ndarray, activation: ActivationNumbers) -> np.ndarray:
    """What the kernel multiplies of `rows`."""
    scale, fmt = activation.scale, activation.format
    if fmt.granularity == "block":
        return dynamic.rounded(rows, float(scale.scale), fmt)
    held = scales.dequantize(scales.quantize(rows, scale, fmt), scale, fmt=fmt)
    if activation.rest is not None:
        rest = scales.quantize(rows - held, activation.rest, fmt)
        held += scales.dequantize(rest, activation.rest, fmt=fmt)
    return held


def _source(nodes: Sequence[ir.Node]) -> str | None:
    value = nodes[0].inputs[0] if nodes else None
    return None if value is None else str(operands.uncast(value).name)


def _laid_out(one: _Read) -> Scale:
    """The scale in the node's layout: blocks are found along the first axis."""
    if one.format.granularity != "block" or operands.summed_axis(one.node) == 0:
        return one.scale
    turned = one.scale.zero_point.T if one.scale.zero_point.ndim else one.scale.zero_point
    return one.scale._replace(scale=one.scale.scale.T, zero_point=turned)


def _as_read(codes: np.ndarray, node: ir.Node) -> np.ndarray:
    return codes if operands.summed_axis(node) == 0 else np.ascontiguousarray(codes.T)


def _held(numbers: np.ndarray, carrier: np.dtype) -> np.ndarray:
    """As the cast leaves a weight: rounded, or in FP32 where it is beyond the carrier's range."""
    largest = float(ml_dtypes.finfo(carrier).max)  # type: ignore[no-untyped-call]
    if float(np.abs(numbers).max(initial=0.0)) > largest:
        return numbers.astype(np.float32)
    return numbers.astype(carrier).astype(np.float32)
