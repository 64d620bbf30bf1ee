"""Outlier channels: few channels of an activation, many times as large as the others, are
multiplied in float beside the integer product of the others.

    x W  =  x W₀ + x[I] W[I]          W₀: W with zeros in the rows I

(Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339, who find I for each input at run time; Ashkboos
et al. 2023, QUIK, arXiv:2310.09259, fix it by calibration, as here.) The range of x leaves the
channels I out: its codes saturate there, where W₀ is zero. The product of a dozen channels takes
little of the time of all.

    x ──┬── Q ── DQ ──► MatMul(W₀) ──► Add ──►
        └── Gather(I) ► MatMul(W[I]) ───┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.qdq_placement import Rules, qdq_placements
from optkit.craft.quantization.placement.read_weight import matrix
from optkit.craft.quantization.placement.weighted_nodes import MOST_OUTLIERS
from optkit.craft.quantization.rescaling import smoothquant
from optkit.craft.quantization.rescaling.comparison import comparison
from optkit.craft.quantization.rescaling.fold import FoldPath
from optkit.craft.quantization.rescaling.groups import (
    RescalingGroup,
    find_groups,
    fold_path,
    why_not_scalable,
)
from optkit.craft.quantization.rescaling.rescale import RescaleEntry, RescaleSettings
from optkit.craft.quantization.rescaling.rules import FoldObstacle
from optkit.craft.quantization.rescaling.smoothquant import ActivationSample, Formats
from optkit.facts.assignment import Assignment
from optkit.facts.placement import PlacementRules
from optkit.ground import graph
from optkit.ground.statistics import Statistics

_LEAST, _SHARE = 4, 48  # the fewest channels, and the largest part of all
_NARROWER = 2.0  # the range of the others must be so much narrower, which is 6 dB of noise
_AS_NARROW = 1.06  # fewer channels do if the range stays within half a dB of the narrowest
_GAIN_DB = 1.0  # over smoothing alone
_FOLDED_DB = 3.0  # where smoothing can be folded, it takes no time


def split_outliers(
    model: ir.Model,
    statistics: Statistics,
    assignment: Assignment,
    rules: Rules,
    settings: RescaleSettings,
) -> tuple[list[RescaleEntry], Statistics]:
    """Split the outlier channels from activations of `model`, in place, where that gains more than
    smoothing. Only products that may have other forms too (`PlacementRules.two_term`) are
    considered, because they are faster than in float even with a second product.

    Returns an entry for each split activation, and the statistics, in which its outlier channels
    are zero.
    """
    planned = {node: rules[name] for node, name in assignment.quantized().items()}
    able = {node: own for node, own in planned.items() if own.two_term and own.activation}
    names, entries = graph.FreeNames(model), []
    for group in find_groups(model, able.keys() - settings.leave):
        worth = _worth(group, statistics, able, settings)
        if worth is None or _read_in_codes(model, group, assignment, rules):
            continue
        channels, gain_db = worth
        _split(group, channels, names)
        name = str(group.value.name)
        statistics = statistics.scaled({name: _removal(channels, group.channels)})
        nodes = tuple(str(node.name) for node in group.members)
        why = f"{len(channels)} of {group.channels} channels are multiplied in float"
        entries.append(RescaleEntry(name, nodes, "split", "split", None, gain_db, why))
    return entries, statistics


def _worth(
    group: RescalingGroup,
    statistics: Statistics,
    able: Mapping[str, PlacementRules],
    settings: RescaleSettings,
) -> tuple[np.ndarray, float] | None:
    """The outlier channels whose split gains enough over smoothing, and how many dB it gains; None
    if there are none."""
    known = group.axis == -1 and group.value.shape is not None
    if not known or why_not_scalable(group.members) is not None:
        return None
    judged = comparison(group, statistics, able, settings.block_size, settings.carrier)
    if isinstance(judged, FoldObstacle) or judged[1].weight_only:
        return None
    if (channels := outliers(judged[0])) is None:
        return None
    gain_db = _gain_db(group, *judged, channels, settings)
    least_db = _FOLDED_DB if isinstance(fold_path(group), FoldPath) else _GAIN_DB
    return (channels, gain_db) if gain_db >= least_db else None


def _read_in_codes(
    model: ir.Model, group: RescalingGroup, assignment: Assignment, rules: Rules
) -> bool:
    """Whether other nodes read the value in codes too, which saturate in the outlier channels."""
    members = {str(node.name) for node in group.members}
    others = {name: own for name, own in assignment.nodes.items() if name not in members}
    placements = qdq_placements(model, replace(assignment, nodes=others), rules)
    return any(placement.value is group.value for placement in placements)


def outliers(sample: ActivationSample) -> np.ndarray | None:
    """The outlier channels [k], in order: the largest ones, and as few as leave the others a range
    nearly as narrow as the most do. None if their range is not much narrower than that of all."""
    order = np.argsort(-sample.absmax, kind="stable")
    most = min(MOST_OUTLIERS, len(order) // _SHARE)
    counts = [_LEAST << power for power in range(5) if _LEAST << power <= most]
    widths = [_width(sample, order[k:]) for k in counts]
    if not counts or _NARROWER * widths[-1] > _width(sample, order):
        return None
    enough = (
        k for k, width in zip(counts, widths, strict=True) if width <= _AS_NARROW * widths[-1]
    )
    return np.sort(order[: next(enough)])


def _width(sample: ActivationSample, channels: np.ndarray) -> float:
    low, high = sample.low[channels].min(initial=0.0), sample.high[channels].max(initial=0.0)
    return float(high - low)


def _removal(channels: np.ndarray, count: int) -> np.ndarray:
    """The factors [count] by which an activation is divided so that these channels become zero."""
    return np.asarray(np.where(np.isin(np.arange(count), channels), np.inf, 1.0), np.float32)


def _gain_db(
    group: RescalingGroup,
    sample: ActivationSample,
    formats: Formats,
    channels: np.ndarray,
    settings: RescaleSettings,
) -> float:
    """What the SQNR of the products gains over that with all channels, both smoothed."""
    alphas = smoothquant.ALPHAS if settings.alpha == "search" else ()
    search = partial(smoothquant.search, formats=formats, alphas=alphas, products=settings.products)
    kernels = group.kernels
    others = [w.copy() for w in kernels]
    for w in others:
        w[:, channels] = 0
    rest = sample.divided(_removal(channels, group.channels))
    split = search(rest, others, whole=(sample, kernels))
    return split.sqnr_db - search(sample, kernels).sqnr_db


def _split(group: RescalingGroup, channels: np.ndarray, names: graph.FreeNames) -> None:
    """Let the members multiply these channels beside the others, in place. Results keep their
    names. No other node may read the weights of the members."""
    owner, value = group.members[0].graph, group.value
    assert isinstance(owner, ir.Graph) and value.shape is not None

    def made(op: str, inputs: Sequence[ir.Value], name: str, shape: ir.Shape | None) -> ir.Node:
        result = ir.Value(name=names.value(name), type=value.type, shape=shape)
        return ir.node(op, inputs, outputs=[result], name=names.node(f"{op}_{name}"))

    def constant(name: str, numbers: np.ndarray) -> ir.Value:
        return graph.add_constant(owner, names.value(name), numbers)

    index = constant(f"{value.name}_outlier_channels", channels.astype(np.int64))
    shape = ir.Shape([*value.shape[:-1], len(channels)])
    gather = made("Gather", [value, index], f"{value.name}_outliers", shape)
    gather.attributes.add(ir.AttrInt64("axis", -1))
    owner.insert_before(next(node for node in owner if node in group.members), gather)
    for member in group.members:
        weight = matrix(member)
        others = weight.copy()
        others[channels] = 0
        weighted_nodes.replace_weight(member, others)
        result = weighted_nodes.biased(member.outputs[0])
        name = str(result.name)
        rows = constant(f"{name}_outlier_weight", weight[channels])
        parts = [gather.outputs[0], rows]
        product = made("MatMul", parts, f"{name}_outliers", result.shape)
        result.name = names.value(f"{name}_others")
        total = made("Add", [result, product.outputs[0]], f"{name}_sum", result.shape)
        uses = [use for use in result.uses() if use.node is not total]
        for reader, position in uses:
            reader.replace_input_with(position, total.outputs[0])
        graph.replace_output(owner, result, total.outputs[0])
        total.outputs[0].name = name
        before = result.producer()
        assert before is not None
        owner.insert_after(before, [product, total])
