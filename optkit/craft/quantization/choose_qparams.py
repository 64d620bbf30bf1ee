"""The numbers of a quantization: ranges, scales and codes. This module reads the graph and does not
change it.

    value  ── statistics ──► range ──► scale, zero point
    weight ── scale (searched) ──► rounded to the carrier dtype, split if the rules say so ──► codes

All numbers are computed once, on the FP32 graph. `qdq.apply` writes them into that graph and into
its cast to half precision, so a simulation has exactly the codes and scales of the compiled graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization import ranges, sampled_products
from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.code_store import IN_MEMORY, CodeStore
from optkit.craft.quantization.numerics.output_noise import ONE_TERM
from optkit.craft.quantization.numerics.qparams import ActivationQParams, QParams, WeightQParams
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.block_size import fitting_block
from optkit.craft.quantization.placement.qdq_placement import QdqPlacement, Rules, qdq_placements
from optkit.craft.quantization.placement.read_weight import MATRIX, ReadWeight, held, matrix
from optkit.craft.quantization.rounding import bias_correction, convolution, solver_inputs
from optkit.craft.quantization.rounding.gptq import gptq
from optkit.craft.quantization.rounding.hqq import hqq
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.craft.quantization.trained import trained_activation, trained_weights
from optkit.facts.assignment import Assignment
from optkit.facts.errors import InputRefused, located
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat, Precision
from optkit.ground.recipe import Method, Quantization
from optkit.ground.statistics import Moments, Statistics, ValueStatistics
from optkit.ground.statistics.model_statistics import remark
from optkit.ground.trained_scales import TrainedScales

# to a trained scale belong the nearest codes, the trained bias and a single term
_AS_TRAINED = {"weights": "rtn", "bias_correction": False, "two_term": ()}
NOTHING = QParams()
_ROUNDED = "is rounded to nearest: GPTQ takes more memory than is free"
_Codes = tuple[ir.TensorProtocol, Scale]
_SWEEPS = 2  # sweeps of coordinate descent after GPTQ, if the moments are those of all rows


def choose_qparams(
    model: ir.Model,
    assignment: Assignment,
    statistics: Statistics | None,
    rules: Rules,
    settings: Quantization,
    *,
    method: Method,
    percentile: float,
    carrier: np.dtype | type,
    trained: TrainedScales | None = None,
    known: QParams = NOTHING,
    store: CodeStore = IN_MEMORY,
) -> QParams:
    """Compute all qparams for `assignment` on the FP32 graph `model`.

    `carrier`: the dtype of scales and float weights in the final graph; both are rounded to it
    before codes are computed. `trained`: the scales of a training, from which only codes are then
    computed, by rounding to nearest. `known`: weights that are taken as they are.
    `store`: keeps the codes until the graph is written.

    Raises InputRefused for a value without statistics, a weight that is not finite, or trained
    scales that are not those of the assignment.
    """
    if trained is not None:
        settings = settings.model_copy(update=_AS_TRAINED)
    qparams = QParams(weights=dict(known.weights))
    chooser = _Chooser(
        assignment.quantized(), statistics, rules, settings, method, percentile, np.dtype(carrier),
        trained, store,
    )  # fmt: skip
    for _, nodes, numbers in chooser.activations(model, assignment):
        qparams.activations[numbers.source, numbers.format] = numbers
        qparams.weights.update(chooser.weights(_other(nodes, known), numbers))
    for nodes in _sharing(model, chooser.planned, rules):
        qparams.weights.update(chooser.weights(_other(nodes, known), None))
    if trained is not None:
        trained.check_all_used({source for source, _ in qparams.activations}, qparams.weights)
    warnings = {f"weight {name!r} {what}" for name, what in chooser.remarks.items()}
    return replace(qparams, warnings=tuple(sorted(warnings | set(known.warnings))))


def choose_activations(
    model: ir.Model,
    assignment: Assignment,
    statistics: Statistics,
    rules: Rules,
    settings: Quantization,
    *,
    method: Method,
    percentile: float,
    carrier: np.dtype | type,
) -> list[tuple[QdqPlacement, ActivationQParams]]:
    """The qparams of the activations alone, as `choose_qparams` computes them."""
    chooser = _Chooser(
        assignment.quantized(), statistics, rules, settings, method, percentile, np.dtype(carrier)
    )
    found = chooser.activations(model, assignment)
    return [(placement, numbers) for placement, _, numbers in found]


def _other(nodes: Sequence[ir.Node], known: QParams) -> list[ir.Node]:
    return [node for node in nodes if node.name not in known.weights]


def _sharing(
    model: ir.Model, planned: Mapping[str, Precision], rules: Rules
) -> Iterator[list[ir.Node]]:
    """The nodes with weight-only quantization, grouped by the value that they read."""
    groups: dict[ir.Value | None, list[ir.Node]] = {}
    for node in model.graph:
        if node.name in planned and rules[planned[str(node.name)]].activation is None:
            groups.setdefault(node.inputs[0], []).append(node)
    yield from groups.values()


@dataclass
class _Chooser:
    planned: Mapping[str, Precision]  # node → precision
    statistics: Statistics | None
    rules: Rules
    settings: Quantization
    method: Method
    percentile: float
    carrier: np.dtype
    trained: TrainedScales | None = None
    store: CodeStore = IN_MEMORY
    remarks: dict[str, str] = field(default_factory=dict)  # weight → its fault
    _solved: dict[tuple[str, int | None, bytes, NumberFormat], _Codes] = field(default_factory=dict)

    def activations(
        self, model: ir.Model, assignment: Assignment
    ) -> Iterator[tuple[QdqPlacement, list[ir.Node], ActivationQParams]]:
        """The qparams of each activation, with the nodes that multiply it."""
        for placement in qdq_placements(model, assignment, self.rules):
            source = str(weighted_nodes.uncast(placement.value).name)
            if self.statistics is not None and self.statistics.value(source).unbounded:
                continue  # no node that multiplies it is planned: an operand of a sum stays float
            nodes = [n for n, index in placement.readers if index == 0 and n.name in self.planned]
            with located(f"tensor {source!r}"):
                numbers = self.activation(placement, source, nodes)
            yield placement, nodes, numbers

    def activation(
        self, placement: QdqPlacement, source: str, nodes: Sequence[ir.Node]
    ) -> ActivationQParams:
        if self.statistics is None:
            raise InputRefused("no statistics were collected", hint="give calibration samples")
        value = self.statistics.value(source)
        if self.trained is not None:
            scale = trained_activation(self.trained.activation(source), placement.format)
            ends = scales.representable(scale, placement.format)
            return ActivationQParams(
                source, *ends, "trained", scale, placement.format, value.fraction_outside(*ends)
            )
        # the kernel computes scales of blocks at run time
        if placement.format.granularity == "block":
            outer = scales.outer_scale(max(-value.low, value.high, 0.0))
            return ActivationQParams(
                source, value.low, value.high, "minmax",
                Scale(outer, np.zeros((), np.int8), 0), placement.format, 0.0,
            )  # fmt: skip
        matrices = [node for node in nodes if node.op_type in MATRIX]
        consumers = [w for w in map(matrix, matrices) if scales.scalable(w)]
        span = ranges.choose(value, placement.format, self.method, self.percentile, consumers)
        scale = scales.activation_scale(span.low, span.high, placement.format, self.carrier)
        clipped = value.fraction_outside(*scales.representable(scale, placement.format))
        rest = None
        split = weighted_nodes.is_split(placement.value)
        if self._needs_two_terms(matrices, value, span.rounding, split):
            half = float(scale.scale) / 2
            rest = scales.activation_scale(-half, half, placement.format, self.carrier)
        return ActivationQParams(
            source, span.low, span.high, span.method, scale, placement.format, clipped, rest
        )

    def _needs_two_terms(
        self, matrices: Sequence[ir.Node], value: ValueStatistics, noise: float, split: bool
    ) -> bool:
        """Whether the activation that these nodes multiply gets a second term: where the recipe
        says so, or, by itself, if one term leaves too much noise in the products and the backend
        runs two. If outlier channels are split from the activation, they are most of the signal, so
        the noise of the others, relative to themselves, says little."""
        names = [str(node.name) for node in matrices]
        if self.settings.two_term != "auto":
            return any(map(self.settings.is_two_term, names))
        able = bool(names) and all(self.rules[self.planned[name]].two_term for name in names)
        judged = value.rows is not None and not value.given and not split
        return able and judged and noise > ONE_TERM

    def weights(
        self, nodes: Sequence[ir.Node], activation: ActivationQParams | None
    ) -> dict[str, WeightQParams]:
        """The qparams of all nodes that multiply one value.

        If scales are split, these nodes share the common scale: compilers merge products of one
        activation (query, key, value) only if their scale is the same. GPTQ also solves their
        weights together.
        """
        scale = None if activation is None else activation.scale
        source = activation.source if activation else _source(nodes)
        value = self._value(source)
        read = [
            self._read(node, self.rules[self.planned[str(node.name)]], scale, value)
            for node in nodes
        ]
        common, parts = self._scaled(read)
        effective = [weight for weight, _ in parts]
        ratios = [ratio for _, ratio in parts]
        with located(f"tensor {source!r}"):
            codes = self._codes(effective, value)
        numbers = {}
        for weight, (part, solved), ratio in zip(effective, codes, ratios, strict=True):
            weight = weight._replace(scale=solved)
            stored = weight.scale_as_read()
            shared_scale = common._replace(zero_point=np.zeros((), stored.zero_point.dtype))
            numbers[str(weight.node.name)] = WeightQParams(
                weight.name, part, weight.format, weight.axis, weight.format.block_size, stored,
                stored if ratio is None else shared_scale, ratio,
                self._bias(weight, part.numpy(), activation), scale,
            )  # fmt: skip
        return numbers

    def _scaled(
        self, read: Sequence[ReadWeight]
    ) -> tuple[Scale, list[tuple[ReadWeight, np.ndarray | None]]]:
        """The common scale of those whose scale is split; and each weight with the scale of its
        codes and, if it is split, the ratios of its channels. Trained scales are taken as they
        are."""
        if self.trained is not None:
            return trained_weights(read, self.trained)
        live = [weight.scale.scale[weight.live] for weight in read if weight.split]
        common = scales.common_scale(live, self.carrier)
        parts: list[tuple[ReadWeight, np.ndarray | None]] = []
        for weight in read:
            if not weight.split:
                parts.append((weight, None))
                continue
            ratio = scales.ratio(weight.scale, common, weight.live, self.carrier)
            scale = ratio._replace(scale=common.scale * ratio.scale)
            parts.append((weight._replace(scale=scale), ratio.scale))
        return common, parts

    def _value(self, source: str | None) -> ValueStatistics | None:
        return self.statistics.values.get(source or "") if self.statistics else None

    def _read(
        self,
        node: ir.Node,
        rules: PlacementRules,
        activation: Scale | None,
        value: ValueStatistics | None,
    ) -> ReadWeight:
        constant = node.inputs[1]
        assert constant is not None
        fmt, bias = rules.weight_of(node.op_type), weighted_nodes.bias(node)
        floats = weighted_nodes.weight(node)
        odd = remark(float(floats.min()), float(floats.max())) if floats.size > 1 else None
        if odd is not None:
            self.remarks[str(constant.name)] = odd
        numbers = held(floats, self.carrier)
        axis = weighted_nodes.channel_axis(node) if fmt.granularity == "channel" else None
        if fmt.granularity == "block":
            axis = weighted_nodes.summed_axis(node)
            fmt = replace(fmt, block_size=fitting_block(node, rules, self.settings.block_size))
        movable = bias is not None or not weighted_nodes.has_bias(node)
        split = fmt.granularity == "channel" and node.op_type in rules.split_scale and movable
        floor: np.ndarray | float = 0.0
        if activation is not None and node.op_type in rules.integer_bias:
            floor = scales.floor_for_bias(bias, activation)
        # each part of a split scale is rounded to the carrier, but not their product
        carrier = np.dtype(np.float32) if split else self.carrier
        weight = ReadWeight(node, str(constant.name), numbers, fmt, rules, axis, split, bias)
        by_columns = weight.by_columns if fmt.granularity == "block" else numbers
        with located(f"weight {constant.name!r}"):
            scale = scales.weight_scale(
                by_columns, axis, fmt, carrier, floor, search=self._search(weight, value)
            )
        return weight._replace(scale=scale)

    def _search(self, weight: ReadWeight, value: ValueStatistics | None) -> scales.Search:
        blocks = weight.in_blocks
        if blocks and self._solves(value) and weight.can_be_solved and self._fits(value, weight):
            return "absmax"  # GPTQ computes better ones itself
        if self.settings.weights == "auto":
            return "mse" if blocks else "absmax"
        return "absmax" if self.settings.weights == "rtn" else "mse"

    def _solves(self, value: ValueStatistics | None) -> bool:
        return self.settings.learns and solver_inputs.learned_from(value) is not None

    def _codes(self, read: Sequence[ReadWeight], value: ValueStatistics | None) -> list[_Codes]:
        """Codes in the layout of the nodes, and their scales: the given scales, or, for blocks, the
        scales that the solver chooses. A shared weight is solved once."""
        fresh = {weight.key: weight for weight in read if weight.key not in self._solved}
        matrices = [weight for weight in fresh.values() if weight.can_be_solved]
        if matrices and value is not None and self._solves(value):
            self._solve(matrices, value)
            left_out = [weight.name for weight in matrices if weight.key not in self._solved]
            self.remarks |= dict.fromkeys(left_out, _ROUNDED)
        for key, weight in fresh.items():
            if key not in self._solved:
                codes, scale = self._rounded(weight, value)
                self._solved[key] = self.store.keep(codes), scale
        return [self._solved[weight.key] for weight in read]

    def _solve(self, read: Sequence[ReadWeight], value: ValueStatistics) -> None:
        """GPTQ of the weights that multiply one value."""
        learned = solver_inputs.learned_from(value)
        assert learned is not None
        (inputs,), count = solver_inputs.inputs_of(learned), learned.count
        for together in self._together(read, value):
            fmt, matrices = together[0].format, [weight.by_columns for weight in together]
            solved = gptq(
                matrices,
                inputs,
                fmt,
                self.carrier,
                scales=None if fmt.granularity == "block" else [w.scale for w in together],
                damping=solver_inputs.damping(len(matrices[0]), count),
                sweeps=_SWEEPS if isinstance(learned, Moments) else 0,
            )
            for weight, quantized in zip(together, solved, strict=True):
                codes = self.store.keep(weight.as_read(quantized.codes))
                self._solved[weight.key] = codes, quantized.scale

    def _together(
        self, read: Sequence[ReadWeight], value: ValueStatistics
    ) -> Iterator[list[ReadWeight]]:
        """The weights that are solved together: those of one format, as many as fit in memory."""
        for fmt in dict.fromkeys(weight.format for weight in read):
            together: list[ReadWeight] = []
            alike = [each for each in read if each.format == fmt and self._fits(value, each)]
            for weight in alike:
                if together and not self._fits(value, *together, weight):
                    yield together
                    together = []
                together.append(weight)
            if together:
                yield together

    def _fits(self, value: ValueStatistics | None, *read: ReadWeight) -> bool:
        """Whether the memory suffices to solve these weights of one value together."""
        moments = 0 if value is None or value.moments is None else value.moments.diagonal.size**2
        return self.store.fits(moments + sum(weight.numbers.size for weight in read))

    def _rounded(
        self, weight: ReadWeight, value: ValueStatistics | None
    ) -> tuple[np.ndarray, Scale]:
        if not weight.is_matrix:
            return self._convolved(weight, value), weight.scale
        if self.settings.weights == "hqq" and weight.in_blocks:
            quantized = hqq(weight.by_columns, weight.format, self.carrier)
        else:
            quantized = round_to_nearest(
                weight.by_columns, weight.format, self.carrier, scale=weight.scale
            )
        return weight.as_read(quantized.codes), quantized.scale

    def _convolved(self, weight: ReadWeight, value: ValueStatistics | None) -> np.ndarray:
        """Codes of a convolution kernel, solved with GPTQ if its patches are known."""
        window = weighted_nodes.window(weight.node)
        seen = None if value is None else value.patches.get(window)
        learned = solver_inputs.learned_from(seen)
        if not self.settings.learns or learned is None or not scales.scalable(weight.numbers):
            return scales.quantize(weight.numbers, weight.scale, weight.format, weight.axis)
        damping = solver_inputs.damping(weight.numbers[0].size, learned.count)
        inputs = solver_inputs.inputs_of(learned, window.groups)
        return convolution.solve(weight.numbers, weight.scale, weight.format, inputs, damping)

    def _bias(
        self, weight: ReadWeight, codes: np.ndarray, activation: ActivationQParams | None
    ) -> np.ndarray | None:
        """The bias of the node, corrected for the mean error of its quantized product."""
        value = self._value(activation.source) if activation else None
        known = None if value is None else sampled_products.multiplied(weight, codes, value)
        takes_bias = weight.bias is not None or weight.rules.free_bias
        if known is None or not takes_bias or weighted_nodes.loose_bias(weight.node):
            return weight.bias
        if not self.settings.bias_correction or activation is None:
            return weight.bias
        rows, w, w_hat = known
        rows_hat = sampled_products.rounded(rows, activation)
        correction = bias_correction.correction(rows, w, rows_hat, w_hat).reshape(-1)
        return correction if weight.bias is None else np.asarray(weight.bias + correction)


def _source(nodes: Sequence[ir.Node]) -> str | None:
    value = nodes[0].inputs[0] if nodes else None
    return None if value is None else str(weighted_nodes.uncast(value).name)
