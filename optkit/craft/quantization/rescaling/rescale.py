"""Exact rewrites of the fused graph that make it easier to quantize, before it is quantized.

    convolutions       cross-layer equalization, or smoothing, folded into the nodes that compute
                       their input
    MatMul, Gemm       smoothing: folded if possible, otherwise a Mul before them (if worthwhile).
                       For MatMulNBits: smoothing, if it can be folded and gains much; for
                       weight-only precisions with `salient`: AWQ's factors instead

The outputs stay the same up to float rounding. The statistics are rescaled too, so no second
calibration is needed. Each factor is chosen by its gain at the outputs of the nodes that read the
value (`smoothquant`, `cross_layer_equalization`, `awq`), and applied by `groups`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from typing import Literal

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.output_noise import ONE_TERM
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.rescaling import awq, cross_layer_equalization, smoothquant
from optkit.craft.quantization.rescaling.channels import classes
from optkit.craft.quantization.rescaling.comparison import comparison, judgeable, weight_format
from optkit.craft.quantization.rescaling.factor_search import FactorChoice
from optkit.craft.quantization.rescaling.factors import Factor
from optkit.craft.quantization.rescaling.fold import FoldPath
from optkit.craft.quantization.rescaling.groups import (
    RescalingGroup,
    find_groups,
    fold,
    fold_path,
    insert_mul,
    kernel,
    why_not_scalable,
)
from optkit.craft.quantization.rescaling.rules import FoldObstacle
from optkit.craft.quantization.rescaling.smoothquant import ActivationSample, Formats
from optkit.facts.assignment import Assignment
from optkit.facts.placement import PlacementRules
from optkit.ground import graph
from optkit.ground.statistics import Statistics, ValueStatistics

Method = Literal["split", "smooth", "equalize", "awq"]
Outcome = Literal["split", "folded", "multiplied", "declined"]

_COARSE = 4  # factors before MatMulNBits are judged by a quarter of the products


@dataclass(frozen=True)
class RescaleSettings:
    """`alpha`: the exponent of SmoothQuant: searched per group, one number for all, or "off".

    `equalize`: for convolutions, by the ranges of weights, of activations, or by the better of
    both, or "off". A factor is applied if it gains this many dB at the outputs that it changes:
    `fold_gain_db` if it is folded (`block_gain_db` before a MatMulNBits of less than 8 bits, where
    GPTQ makes up for less), `mul_gain_db` if it needs a Mul (inf: never; MatMulNBits gets none).
    `salient`: AWQ's factors, instead, for nodes with weight-only quantization. `block_size`: of
    weight-only quantization (None: that of the format). `leave`: names of nodes whose input must
    not change. `carrier`: the dtype of scales. `products`: multiply-accumulates by which one
    candidate is judged, at most. `second_terms`: an activation whose products are still too noisy
    stays as it is, because it gets a second term where the rules allow that.
    """

    alpha: float | Literal["search", "off"] = "search"
    salient: bool = False
    block_size: int | None = None
    equalize: Literal["auto", "weights", "activations", "off"] = "auto"
    fold_gain_db: float = 0.1
    block_gain_db: float = 2.0
    mul_gain_db: float = 1.0
    leave: frozenset[str] = frozenset()
    carrier: np.dtype | type = np.float32
    products: int = smoothquant.MOST_PRODUCTS
    second_terms: bool = False


@dataclass(frozen=True)
class RescaleEntry:
    """The outcome for one value that quantized nodes read."""

    value: str
    nodes: tuple[str, ...]
    method: Method
    outcome: Outcome
    alpha: float | None
    gain_db: float | None  # at the outputs of the nodes, simulated; None: not computed
    reason: str


@dataclass(frozen=True)
class RescaleLog:
    """Every value that was considered, in the order of the graph, and what folding has multiplied
    constants by."""

    entries: tuple[RescaleEntry, ...]
    factors: tuple[Factor, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Outcome → number of values."""
        return dict(sorted(Counter(entry.outcome for entry in self.entries).items()))

    def to_json(self) -> dict[str, object]:
        """Without the factors, which may be as many as the channels of all layers."""
        return {"entries": [asdict(entry) for entry in self.entries], "counts": self.counts}


def rescale(
    model: ir.Model,
    statistics: Statistics,
    assignment: Assignment,
    rules: Rules,
    settings: RescaleSettings = RescaleSettings(),
) -> tuple[RescaleLog, Statistics]:
    """Move factors between activations and weights of `model`, in place.

    It considers the nodes whose precision quantizes activations and those that become MatMulNBits,
    and needs rows and numbers per channel of their inputs in `statistics`. Names of nodes and
    values do not change; an inserted Mul has new ones. Returns a log, and the statistics of the
    changed graph.
    """
    planned = {node: rules[name] for node, name in assignment.quantized().items()}
    whole = {node for node, own in planned.items() if _is_smoothed(own, settings)}
    alone = planned.keys() - whole if settings.salient else set()
    work = _Rescaling(statistics, planned, settings)
    groups = find_groups(model, whole)
    convolutions = [group for group in groups if group.axis == 1]
    cross = _cross_layer(convolutions) if settings.equalize in ("auto", "weights") else {}
    entries = []
    for group in groups:
        if group.axis == 1 and settings.equalize != "off":
            entries.append(work.equalize(group, cross.get(group.value)))
        elif group.axis == -1 and settings.alpha != "off":
            entries.append(work.smooth(group))
    entries += [work.scale_salient(group) for group in find_groups(model, alone)]
    return RescaleLog(tuple(entries), tuple(work.factors)), work.statistics


def _is_smoothed(rules: PlacementRules, settings: RescaleSettings) -> bool:
    """Whether nodes with these rules are smoothed or equalized; others get AWQ's factors."""
    if rules.activation is not None:
        return True
    return rules.nbits_accuracy is not None and not settings.salient


@dataclass
class _Rescaling:
    """The rescaling of one graph. Each method finds factors, and folds them or inserts a Mul."""

    statistics: Statistics  # of the present graph
    planned: dict[str, PlacementRules]
    settings: RescaleSettings
    factors: list[Factor] = field(default_factory=list)

    def smooth(self, group: RescalingGroup) -> RescaleEntry:
        """Fold a factor if that is possible and gains enough, or else insert a Mul if that does."""
        settings = self.settings
        judged = self._judged(group)
        if isinstance(judged, FoldObstacle):
            return _entry(group, "smooth", "declined", judged.reason)
        forced = settings.alpha != "search"
        choose = self._search(group, *judged)
        path = self._path(group)
        folded = choose(ties=_ties(path, group)) if isinstance(path, FoldPath) else None
        mul = self._multiplied(group, path, folded, choose, judged[1])
        if not forced and self._needs_two_terms(group, judged, folded, mul):
            return _entry(group, "smooth", "declined", "two terms instead")
        better = _gain(mul) - _gain(folded) >= settings.mul_gain_db
        if isinstance(path, FoldPath) and folded is not None and (forced or not better):
            if forced or folded.gain_db >= self._fold_gain_db(judged[1]):
                return self._fold(group, "smooth", path, folded)
        elif mul is not None and (forced or mul.gain_db >= settings.mul_gain_db):
            return self._multiply(group, mul, path)
        why = path.reason if isinstance(path, FoldObstacle) else "nothing to pay"
        return _entry(group, "smooth", "declined", why, None, max(_gain(folded), _gain(mul)))

    def _search(
        self, group: RescalingGroup, sample: ActivationSample, formats: Formats
    ) -> Callable[..., FactorChoice]:
        """The search for the factors of a group; its ties are to be given."""
        settings = self.settings
        alphas: Sequence[float] = smoothquant.ALPHAS
        products, forced = settings.products, settings.alpha != "search"
        if formats.weight_only:
            alphas, products = smoothquant.BLOCK_ALPHAS, products // _COARSE
        if forced:
            alphas = (float(settings.alpha),)
        return partial(
            smoothquant.search, sample, group.kernels, formats,
            alphas=alphas, leave=not forced, products=products,
        )  # fmt: skip

    def _fold_gain_db(self, formats: Formats) -> float:
        few_bits = formats.weight_only and formats.weight.bits < 8
        return self.settings.block_gain_db if few_bits else self.settings.fold_gain_db

    def _needs_two_terms(
        self,
        group: RescalingGroup,
        judged: tuple[ActivationSample, Formats],
        *choices: FactorChoice | None,
    ) -> bool:
        """Whether one term leaves too much noise as the activation is, so that it will get two, and
        with all factors. With two terms, factors would only make the weights harder to
        quantize."""
        found = [choice for choice in choices if choice is not None]
        able = all(self.planned[str(node.name)].two_term for node in group.members)
        if not self.settings.second_terms or not able or weighted_nodes.is_split(group.value):
            return False
        if any(10 ** (-choice.sqnr_db / 10) <= ONE_TERM for choice in found):
            return False  # with the clipping of other data, too
        (sample, formats), kernels = judged, group.kernels
        most = self.settings.products
        if smoothquant.activation_error(sample, kernels, formats, products=most) <= ONE_TERM:
            return False
        factors = [choice.factors for choice in found]
        errors = smoothquant.rounding_errors(sample, kernels, formats, factors, products=most)
        return min(errors, default=inf) > ONE_TERM

    def _multiplied(
        self,
        group: RescalingGroup,
        path: FoldPath | FoldObstacle,
        folded: FactorChoice | None,
        choose: Callable[[], FactorChoice],
        formats: Formats,
    ) -> FactorChoice | None:
        """The factors for a Mul before the members; None if there must be none."""
        if formats.weight_only or self.settings.mul_gain_db == inf:
            return None
        if why_not_scalable(group.members) is not None:
            return None
        tied = isinstance(path, FoldPath) and path.ties
        return folded if folded is not None and not tied else choose()

    def equalize(self, group: RescalingGroup, cross: np.ndarray | None) -> RescaleEntry:
        """Fold a factor into the nodes that compute the input of convolutions. `cross`: the factor
        from the ranges of weights, if layers compute the value."""
        by_weights = self.settings.equalize == "weights"
        judged, path = self._judged(group), self._path(group)
        if isinstance(judged, FoldObstacle):
            return _entry(group, "equalize", "declined", judged.reason)
        if isinstance(path, FoldObstacle):
            return _entry(group, "equalize", "declined", path.reason)
        if by_weights and cross is None:
            return _entry(group, "equalize", "declined", "no layer's weights make it")
        sample, formats = judged
        kernels = group.kernels
        choice = smoothquant.search(
            sample, kernels, formats, alphas=() if by_weights else smoothquant.ALPHAS,
            ties=_ties(path, group), others=() if cross is None or path.ties else (cross,),
            leave=not by_weights, besides=_besides(path, kernels, formats),
            products=self.settings.products,
        )  # fmt: skip
        if by_weights or choice.gain_db >= self.settings.fold_gain_db:
            return self._fold(group, "equalize", path, choice)
        return _entry(group, "equalize", "declined", "nothing to gain", None, choice.gain_db)

    def scale_salient(self, group: RescalingGroup) -> RescaleEntry:
        """Fold AWQ's factors: weights of channels with large activations are rounded more finely
        (Lin et al. 2023, arXiv:2306.00978)."""
        path = self._path(group)
        if isinstance(path, FoldObstacle):
            return _entry(group, "awq", "declined", path.reason)
        value = self.statistics.values.get(str(group.value.name))
        rows = value.rows.data if value is not None and value.rows is not None else None
        if rows is None or rows.shape[1:] != (group.channels,):
            return _entry(group, "awq", "declined", "no rows of it were kept")
        if not judgeable(group):
            return _entry(group, "awq", "declined", "a weight is too large to be judged")
        node = group.members[0]
        fmt = weight_format(node, self.planned[str(node.name)], self.settings.block_size)
        weights = [w[0, :, :, 0] for w in group.kernels]
        choice = awq.search(weights, rows, fmt, self.settings.carrier, _ties(path, group))
        if choice.factors is None:
            return _entry(group, "awq", "declined", "nothing to gain", None, 0.0)
        return self._fold(group, "awq", path, choice)

    def _judged(self, group: RescalingGroup) -> tuple[ActivationSample, Formats] | FoldObstacle:
        settings = self.settings
        if any(node.name in settings.leave for node in group.members):
            return FoldObstacle("it was asked to leave it as it is")
        return comparison(
            group, self.statistics, self.planned, settings.block_size, settings.carrier
        )

    def _path(self, group: RescalingGroup) -> FoldPath | FoldObstacle:
        """The way to fold the factor, if the statistics can be rescaled too."""
        path = fold_path(group)
        for value, labels in path.values if isinstance(path, FoldPath) else ():
            known = self.statistics.values.get(str(value.name))
            if known is not None and not _scalable(known, labels):
                return FoldObstacle(f"the statistics of {value.name} cannot follow")
        return path

    def _fold(
        self, group: RescalingGroup, method: Method, path: FoldPath, choice: FactorChoice
    ) -> RescaleEntry:
        assert choice.factors is not None
        self.factors += fold(group, path, choice.factors)
        changed = {
            str(value.name): np.where(labels < 0, 1.0, choice.factors[labels]).reshape(-1)
            for value, labels in path.values
            if value.name in self.statistics.values
        }
        self.statistics = self.statistics.scaled(changed)
        into = ", ".join(dict.fromkeys(str(sink.node.name) for sink in path.sinks))
        return _entry(group, method, "folded", f"into {into}", choice.alpha, choice.gain_db)

    def _multiply(
        self, group: RescalingGroup, choice: FactorChoice, path: FoldPath | FoldObstacle
    ) -> RescaleEntry:
        assert choice.factors is not None
        old = self.statistics.value(str(group.value.name))
        new = insert_mul(group, choice.factors)
        values = {**self.statistics.values, str(new.name): old.scaled(choice.factors)}
        self.statistics = replace(self.statistics, values=values)
        why = path.reason if isinstance(path, FoldObstacle) else "folding would tie channels"
        return _entry(group, "smooth", "multiplied", why, choice.alpha, choice.gain_db)


def _cross_layer(groups: Sequence[RescalingGroup]) -> dict[ir.Value, np.ndarray]:
    """Factors of cross-layer equalization, for values that layers compute and convolutions read."""
    layers: dict[ir.Node, np.ndarray] = {}
    links: dict[ir.Value, cross_layer_equalization.LayerLink] = {}

    def index(node: ir.Node) -> int:
        layers.setdefault(node, cross_layer_equalization.magnitudes(kernel(node)))
        return list(layers).index(node)

    for group in groups:
        path = fold_path(group)
        producers = _producers(path) if isinstance(path, FoldPath) else []
        if producers:
            links[group.value] = cross_layer_equalization.LayerLink(
                group.channels,
                tuple((index(node), channel) for node, channel in producers),
                tuple(index(node) for node in group.readers),
            )
    factors = cross_layer_equalization.converge(list(layers.values()), list(links.values()))
    return {value: smoothquant.normalized(s) for value, s in zip(links, factors, strict=True)}


def _producers(path: FoldPath) -> list[tuple[ir.Node, np.ndarray]]:
    """The layers whose weights absorb the factor, and the channel of each of their outputs."""
    return [
        (sink.node, sink.labels.reshape(-1))
        for sink in path.sinks
        if sink.index == 1 and sink.node.op_type in graph.WEIGHTED
    ]


def _besides(
    path: FoldPath, kernels: Sequence[np.ndarray], formats: Formats
) -> Callable[[np.ndarray | None], float]:
    """The error of the weights that compute the value, if one scale holds for a whole tensor."""
    if formats.weight.granularity != "tensor":
        return lambda s: 0.0
    producers = [(kernel(node), labels) for node, labels in _producers(path)]
    importance = sum(np.square(w, dtype=np.float64).sum(axis=(2, 3)).reshape(-1) for w in kernels)
    return partial(
        cross_layer_equalization.producers_error, producers, np.asarray(importance), formats
    )


def _ties(path: FoldPath, group: RescalingGroup) -> np.ndarray | None:
    return classes(group.channels, path.ties) if path.ties else None


def _scalable(known: ValueStatistics, labels: np.ndarray) -> bool:
    """Whether the statistics can be divided by a factor of these labels."""
    if known.unbounded is not None:
        return True
    along_one_axis = labels.size == max(labels.shape, default=1)
    channels = known.channels.low.size if known.channels is not None else None
    return along_one_axis and known.rows is not None and channels == labels.size


def _gain(choice: FactorChoice | None) -> float:
    return choice.gain_db if choice is not None else 0.0


def _entry(
    group: RescalingGroup,
    method: Method,
    outcome: Outcome,
    reason: str,
    alpha: float | None = None,
    gain_db: float | None = None,
) -> RescaleEntry:
    names = tuple(str(node.name) for node in group.members)
    return RescaleEntry(str(group.value.name), names, method, outcome, alpha, gain_db, reason)
