"""The path from everything quantized to nothing quantized; the most harmful groups return first.

The noise and the gain of a candidate are estimated as the sums over its groups. Then the best
sequence of candidates is that of a linear knapsack. For each group, only the options on the convex
hull of (gain, noise) are useful. Each step replaces an option of one group by the next more
accurate one. The step with the largest ratio

    noise removed / gain given up

comes first (Dantzig 1957; Sinha and Zoltners, The multiple-choice knapsack problem, 1979).
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from optkit.satellites.tuning.space import Candidate, LayerGroup, PrecisionOption, Space


def noise(space: Space, candidate: Candidate) -> float:
    """Estimated noise of a candidate: the sum over its groups."""
    return sum(space.option(i, name).noise for i, name in enumerate(candidate.options))


def gain(space: Space, candidate: Candidate) -> float:
    """Estimated gain of a candidate over the carrier: the sum over its groups."""
    return sum(space.option(i, name).gain for i, name in enumerate(candidate.options))


def path(space: Space) -> list[Candidate]:
    """The candidates from the fastest to the carrier; each step changes one group."""
    ladders = [hull(group, space.carrier) for group in space.groups]
    start = Candidate(tuple(ladder[0].name for ladder in ladders))
    steps = [
        (-_ratio(before, after), index, rung, after.name)
        for index, ladder in enumerate(ladders)
        for rung, (before, after) in enumerate(pairwise(ladder))
    ]
    candidates = [start]
    for _, index, _, name in sorted(steps):
        candidates.append(candidates[-1].having({index: name}))
    return candidates


def hull(group: LayerGroup, carrier: str) -> list[PrecisionOption]:
    """The useful options, the fastest first, the carrier last."""
    last = PrecisionOption(carrier, 0.0, 0.0)
    ordered = sorted(group.options, key=lambda o: (-o.gain, o.noise))
    options: list[PrecisionOption] = []
    for option in [*(o for o in ordered if o.gain > 0), last]:
        if options and option is not last and option.noise >= options[-1].noise:
            continue  # slower and not more accurate
        while len(options) > 1 and _ratio(options[-1], option) >= _ratio(options[-2], options[-1]):
            options.pop()
        options.append(option)
    return options


def _ratio(before: PrecisionOption, after: PrecisionOption) -> float:
    """Noise removed per gain given up."""
    given_up = before.gain - after.gain
    removed = before.noise - after.noise
    return removed / given_up if given_up > 0 else inf if removed > 0 else 0.0
