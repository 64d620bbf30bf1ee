"""What the kernels that were timed on a card change in its predictions.

    t = a · L + b · (t₀ − L)

t₀ is the time of the performance model and L its launch. Each kind of work in each precision has
an `a` and a `b`, by least absolute logarithms of the ratios, drawn towards 1. The width holds nine
of ten ratios of kernels that were left out, one at a time. A precision that no library multiplied
takes the factors of FP16, so that the ratio of both stays that of the fit, and the width of what no
measurement covers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, log, sqrt

import numpy as np

from optkit.craft.prediction.card_kernels import group, work_of
from optkit.craft.prediction.fitted import UNSEEN, fitted
from optkit.craft.prediction.work import Work
from optkit.craft.prediction.work_time import of_each
from optkit.facts.card_facts import CardFactors, KernelTime
from optkit.facts.measurement import Interval
from optkit.ground.devices import Target

_LEVEL = 0.9
_FEWEST = 4  # kernels of a group
_GRID = np.arange(-48, 49) / 20  # logarithms of factors: 0.09 to 11
_EXPECTED = 0.5  # how far the logarithm of a factor usually lies from 0
_SCATTER = 0.2  # the same of a kernel's ratio
_NARROWEST = 1.05  # a width: what a repetition of the measurement may change


def correction(times: Sequence[KernelTime], target: Target) -> Mapping[str, CardFactors]:
    """Kind and precision → factors, from the kernels of a card."""
    plain, eff = replace(target, card=None), fitted().efficiencies
    rows: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for one in times:
        asked = work_of(one.kernel)
        name, (predicted,) = group(asked), of_each([asked], plain, eff)
        assert name is not None
        body = predicted.total - predicted.launch
        rows[name].append((predicted.launch, body, one.ms / 1e3))
    found = {name: _factors(np.array(of)) for name, of in rows.items() if len(of) >= _FEWEST}
    return {**_as_fp16(found), **found}


def spread(works: Sequence[Work], target: Target) -> float:
    """The factor within which the time of these kernels together is known, as far as the kernels
    of the card say: errors of different kernels are independent, those of equal ones are not."""
    if target.card is None:
        return 1.0
    shares: defaultdict[Work, float] = defaultdict(float)
    for work, time in zip(works, of_each(works, target, fitted().efficiencies), strict=True):
        shares[replace(work, times=1)] += work.times * time.total
    total = sum(shares.values())
    variance = 0.0
    for work, time_of in shares.items():
        factors = target.card.groups.get(group(work) or "")
        if factors is not None and total:
            variance += (time_of / total * log(factors.width)) ** 2
    return exp(sqrt(variance))


def widened(band: Interval, value: float, factor: float) -> Interval:
    """The interval of the fit, or that of the card's kernels where it is wider: no whole model was
    measured there."""
    return Interval(min(band.low, value / factor), max(band.high, value * factor))


def _factors(rows: np.ndarray) -> CardFactors:
    """`rows`: launch, body and measured time of each kernel of a group."""
    launch, body, ms = (column[:, None, None] for column in rows.T)
    factor = np.exp(_GRID)
    predicted = factor[:, None] * launch + factor * body  # kernel × launch factor × body factor
    off = np.log(predicted / ms)
    cost = np.abs(off) / _SCATTER
    prior = (_GRID[:, None] ** 2 + _GRID**2) / (2 * _EXPECTED**2)
    whole = cost.sum(0) + prior
    best = np.unravel_index(np.argmin(whole), whole.shape)
    left_out = np.array(
        [abs(one.flat[np.argmin(whole - own)]) for one, own in zip(off, cost, strict=True)]
    )
    rank = min(len(rows), ceil((len(rows) + 1) * _LEVEL)) - 1
    width = max(_NARROWEST, exp(float(np.sort(left_out)[rank])))
    return CardFactors(float(factor[best[0]]), float(factor[best[1]]), width, len(rows))


def _as_fp16(found: Mapping[str, CardFactors]) -> dict[str, CardFactors]:
    """Factors of the precisions of each kind that has some in FP16."""
    unseen = fitted().widths[UNSEEN]
    return {
        f"{kind} {dtype}": replace(factors, width=max(unseen, factors.width), kernels=0)
        for kind in ("gemm", "conv", "attention")
        if (factors := found.get(f"{kind} fp16")) is not None
        for dtype in ("int8", "fp8", "fp4", "int4", "tf32", "fp32")
    }
