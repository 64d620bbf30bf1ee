"""Ranges that hold at all declared sizes of the axes.

Sums, means and norms over a free axis give values whose range depends on its size. Statistics at
both ends of the declared sizes show where the range of the usual samples loses more than `LOSS`
there, beside a range that is fitted to that end:

    it does not lose            the usual range stays, so nothing changes at the usual sizes
    a common range serves both  the statistics of both together choose the range; the usual sizes
                                keep what one scale must leave, `LEAST_DB`
    no range serves both        the products that read the value need another form than one scale

Another form is slower at all sizes, so only a product gets it of which a common range leaves less
than `_LEAST`, and a range of that end alone what one scale must leave. Others stay as
they are, and the fidelity that is measured there tells what they lose. (paraphrase-MiniLM-L3 with 1
to 512 tokens would have 8 of 18 products in another form, for 8 dB at the ends.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log10

import onnx_ir as ir

from optkit.craft.quantization import ranges
from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.output_noise import LEAST_DB
from optkit.craft.quantization.numerics.qparams import ActivationQParams
from optkit.craft.quantization.placement.qdq_placement import QdqPlacement
from optkit.craft.quantization.placement.read_weight import MATRIX, matrix
from optkit.ground.recipe import Method
from optkit.ground.statistics import SampledRows, Statistics, ValueStatistics

LOSS = 2.0
"""By what the noise of a product may be larger at an end of the sizes: 3 dB."""
_NEGLIGIBLE = 1e-4  # noise of a product, 40 dB, that matters nowhere
_LEAST = 20.0  # dB: more than a hundredth of the product would be noise
_ROWS, _COLUMNS = 128, 128  # of a product that is judged


@dataclass(frozen=True)
class MovedValue:
    """A value for which no range serves all sizes, and the quantized nodes that read it. `sqnr_db`:
    end ("": the usual sizes) → what one scale leaves of their products there, and what a scale that
    is fitted there leaves."""

    placement: QdqPlacement
    nodes: tuple[ir.Node, ...]
    sqnr_db: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Covering:
    """`values`: new statistics of the values whose range must be wider; `moved`: see
    `MovedValue`."""

    values: Mapping[str, ValueStatistics]
    moved: Sequence[MovedValue]


def cover(
    activations: Sequence[tuple[QdqPlacement, ActivationQParams]],
    planned: Collection[str],
    usual: Statistics,
    ends: Mapping[str, Statistics],
    method: Method,
    percentile: float,
) -> Covering:
    """Compare the ranges of the usual samples with the statistics at the ends. A range that another
    tool has chosen, blocks whose scales are computed at run time, and values without numbers at an
    end are left out. `planned`: the quantized nodes."""
    values: dict[str, ValueStatistics] = {}
    moved = []
    for placement, numbers in activations:
        value, seen = usual.values[numbers.source], _bounded(numbers.source, ends)
        if not seen or value.given or numbers.format.granularity == "block":
            continue
        case = _Case(placement, numbers, value, seen)
        lost = case.lost(numbers.low, numbers.high)
        if not lost:
            continue
        both = _joined(value, [seen[end] for end in lost])
        span = ranges.choose(both, numbers.format, method, percentile, case.consumers)
        still = case.lost(span.low, span.high)
        usual_left, _ = still.get("", (LEAST_DB, LEAST_DB))
        if usual_left >= LEAST_DB and not _torn(still):
            values[numbers.source] = both
        elif _torn(still) or _torn(lost):  # its range stays that of the usual sizes
            nodes = tuple(node for node in _multiplying(placement) if node.name in planned)
            moved.append(MovedValue(placement, nodes, still))
    return Covering(values, moved)


def _bounded(source: str, ends: Mapping[str, Statistics]) -> dict[str, ValueStatistics]:
    """The statistics of a value at the ends where it has numbers."""
    return {
        end: found
        for end, statistics in ends.items()
        if (found := statistics.values.get(source)) and found.unbounded is None
    }


def _multiplying(placement: QdqPlacement) -> list[ir.Node]:
    """The readers of which the value is the first operand."""
    return [node for node, index in placement.readers if index == 0]


def _torn(lost: Mapping[str, tuple[float, float]]) -> bool:
    """Whether one range leaves far too little somewhere, and a fitted one enough."""
    return any(left < _LEAST and fitted >= LEAST_DB for left, fitted in lost.values())


class _Case:
    """One value: the noise of its products at the usual sizes ("") and at each end."""

    def __init__(
        self,
        placement: QdqPlacement,
        numbers: ActivationQParams,
        usual: ValueStatistics,
        ends: Mapping[str, ValueStatistics],
    ) -> None:
        readers = _multiplying(placement)
        products = (matrix(node) for node in readers if node.op_type in MATRIX)
        self.consumers = [w for w in products if scales.scalable(w)]
        thinned = [w[:, :: -(-w.shape[1] // _COLUMNS)] for w in self.consumers]
        self._format = numbers.format
        self._of = {name: _few(one) for name, one in [("", usual), *ends.items()]}
        self._judges = {
            name: ranges.RangeJudge(one, self._format, thinned) for name, one in self._of.items()
        }
        self._fitted = {
            name: self._noise(name, numbers.low, numbers.high)
            if name == ""
            else self._noise(name, one.low, one.high)
            for name, one in self._of.items()
        }

    def lost(self, low: float, high: float) -> dict[str, tuple[float, float]]:
        """Where this range loses too much → what it leaves of the products in dB, and what a fitted
        range leaves."""
        usual, found = self._fitted[""], {}
        for name, fitted in self._fitted.items():
            noise = self._noise(name, low, high)
            for one, own, often in zip(noise, fitted, usual, strict=True):
                if one > LOSS * max(own, often, _NEGLIGIBLE):
                    found[name] = (_db(one), _db(own))
        return found

    def _noise(self, name: str, low: float, high: float) -> tuple[float, float]:
        """The noise of the products, relative to what varies in each output channel, and relative
        to all of their power: a small part of a large sum may vary, and clipping shows there."""
        judge = self._judges[name]
        return judge.range(low, high, "").error, judge.power(low, high)


def _few(value: ValueStatistics) -> ValueStatistics:
    """The statistics with fewer rows; the sample remains uniform."""
    if value.rows is None:
        return value
    return replace(value, rows=SampledRows(value.rows.hashes[:_ROWS], value.rows.data[:_ROWS]))


def _joined(usual: ValueStatistics, ends: Sequence[ValueStatistics]) -> ValueStatistics:
    """The statistics of all together. Second moments, from which weights learn, are those of the
    usual samples."""
    joined = usual
    for end in ends:
        joined = joined.merged(end)
    return replace(joined, moments=usual.moments, patches=usual.patches)


def _db(noise: float) -> float:
    return -10 * log10(max(noise, 1e-30))
