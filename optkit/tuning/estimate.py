"""What a candidate should come to, before it is tried: sums over its groups, corrected by trials.

    noise    Σ noise of each group alone, times what the nearest trial had above its own sum
    latency  carrier's + Σ d_g,    d ~ N(-s·gain, (s·gain)²) before the first trial

d is what a group really costs in its neighbourhood: a compiler fuses, reformats and merges, and no
roofline of a layer alone knows that. Trials tell sums of it, exactly; the mean given those sums is

    d = m + P Xᵀ (X P Xᵀ + σ² I)⁻¹ (y - X m)

(Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.1.2), X saying which
groups a trial had in which option, y its latency above the carrier's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optkit.tuning.space import Candidate, Group, Space, Trial

_ACCURACY = 0.003  # of a latency: what repeats of one trial may differ by
_PLACEMENT = 0.1  # of the carrier's latency: what a placement may change


class Estimate:
    """Estimates for a space, from the trials of it so far (one of them the carrier's)."""

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self._space = space
        self._sound = [trial for trial in trials if not trial.outcome.failed]
        carrier = space.uniform(space.carrier).options
        known = (t.outcome.latency_ms for t in self._sound if t.candidate.options == carrier)
        self._carrier_ms = next(known, 0.0)
        self._columns = {
            (index, option.name): column
            for column, (index, option) in enumerate(
                (index, option)
                for index, group in enumerate(space.groups)
                for option in group.options
            )
        }
        self._variants = {name: i for i, name in enumerate(space.placements[1:])}
        self._costs = self._learned()

    def latency_ms(self, candidate: Candidate) -> float:
        """Of the candidate in the placement it has, as the carrier's and a sum over groups."""
        return self._carrier_ms + float(self._row(candidate) @ self._costs)

    def noise(self, candidate: Candidate) -> float:
        """The sum over groups, corrected by the trial that differs in the fewest of them."""
        own = self._sum(candidate)
        known = [t for t in self._sound if self._sum(t.candidate) > 0 and t.outcome.noise > 0]
        if not known:
            return own
        nearest = min(known, key=lambda trial: _distance(trial.candidate, candidate))
        return own * nearest.outcome.noise / self._sum(nearest.candidate)

    def space(self) -> Space:
        """The same space with the gains that the trials taught."""
        groups = []
        for index, group in enumerate(self._space.groups):
            options = (
                replace(option, gain=-float(self._costs[self._columns[index, option.name]]))
                for option in group.options
            )
            groups.append(Group(group.nodes, tuple(options)))
        return replace(self._space, groups=tuple(groups))

    def _sum(self, candidate: Candidate) -> float:
        return sum(self._space.option(i, name).noise for i, name in enumerate(candidate.options))

    def _row(self, candidate: Candidate) -> np.ndarray:
        row = np.zeros(len(self._columns) + len(self._variants))
        if candidate.placement in self._variants:
            row[len(self._columns) + self._variants[candidate.placement]] = 1.0
        for key in enumerate(candidate.options):
            if key in self._columns:
                row[self._columns[key]] = 1.0
        return row

    def _learned(self) -> np.ndarray:
        """Milliseconds above the carrier, for every group as every option, then for every placement
        but the first: [columns + placements]."""
        gains = [option.gain for group in self._space.groups for option in group.options]
        prior = np.array([*gains, *(0.0 for _ in self._variants)])
        if not self._sound or not gains:
            return -prior
        x = np.stack([self._row(trial.candidate) for trial in self._sound])  # [trials, columns]
        y = np.array([trial.outcome.latency_ms for trial in self._sound]) - self._carrier_ms
        saved = x @ prior
        total = float(saved @ saved)
        scale = max(float(-y @ saved) / total, 0.0) if total > 0 else 0.0
        scale = scale or 0.1 * self._carrier_ms / max(float(prior.sum()), 1e-30)
        mean, spread = -scale * prior, np.square(scale * prior)
        spread[len(gains) :] = (_PLACEMENT * self._carrier_ms) ** 2
        noise = (_ACCURACY * self._carrier_ms) ** 2 + 1e-30
        gram = (x * spread) @ x.T + noise * np.eye(len(x))
        learned: np.ndarray = mean + spread * (x.T @ np.linalg.solve(gram, y - x @ mean))
        return learned


def _distance(a: Candidate, b: Candidate) -> int:
    return sum(x != y for x, y in zip(a.options, b.options, strict=True))
