"""The expected outcome of a candidate before it is tried: sums over its groups, corrected by
trials.

    noise    Σ noise of each group alone, times the noise of the nearest trial divided by its sum
    latency  carrier's + Σ d_g,    d ~ N(m, P),   m = -s·gain before the first trial

d is the time that a group really costs together with its neighbours. A compiler fuses, reformats
and merges layers, so the roofline of one layer does not show it. Each trial gives a sum of d. Given
the trials, d has

    mean m + P Xᵀ K⁻¹ (y - X m),    covariance P - P Xᵀ K⁻¹ X P,    K = X P Xᵀ + σ² I

(Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.1.2). X says which
groups a trial had in which option, y is its latency above that of the carrier. Candidates are
compared by the latency that is one standard deviation better than the mean (an upper confidence
bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optkit.satellites.tuning.space import Candidate, CandidateTrial, LayerGroup, Outcome, Space

_ACCURACY = 0.003  # share of a latency: the difference between repeats of one trial
# share of the latency: the possible saving of all groups together, before trials are known
_SAVING = 0.5
_PLACEMENT = 0.1  # share of the carrier's latency: the possible effect of a placement


class Estimate:
    """Estimates for a space from the trials so far; one of them is that of the carrier."""

    def __init__(self, space: Space, trials: Sequence[CandidateTrial]) -> None:
        self._space = space
        self._sound = [trial for trial in trials if not trial.outcome.failed]
        carrier = space.uniform(space.carrier).options
        times = (t.outcome.latency_ms for t in self._sound if t.candidate.options == carrier)
        self._carrier_ms = next(times, 0.0)
        self._columns = {
            (index, option.name): column
            for column, (index, option) in enumerate(
                (index, option)
                for index, group in enumerate(space.groups)
                for option in group.options
            )
        }
        self._variants = {name: i for i, name in enumerate(space.placements[1:])}
        self._costs, self._covariance = self._learned()
        noisy = [t for t in self._sound if self._sum(t.candidate) > 0]
        self._tried = np.array([t.candidate.options for t in noisy])  # [trials, groups]
        self._excess = np.array([t.outcome.noise / self._sum(t.candidate) for t in noisy])

    def hoped_ms(self, candidate: Candidate) -> float:
        """An optimistic latency of the candidate: one standard deviation below its mean."""
        row = self._row(candidate)
        variance = max(float(row @ self._covariance @ row), 0.0)
        return self._expected_ms(row) - float(np.sqrt(variance))

    def outcome(self, candidate: Candidate) -> Outcome:
        """The expected outcome of a trial of the candidate; its size is unknown."""
        return Outcome(self.noise(candidate), self._expected_ms(self._row(candidate)), 0)

    def noise(self, candidate: Candidate) -> float:
        """The sum over the groups, corrected by the trial that differs in the fewest groups."""
        noise = self._sum(candidate)
        if not len(self._excess):
            return noise
        differing = (self._tried != np.array(candidate.options)).sum(axis=1)
        return noise * float(self._excess[int(differing.argmin())])

    def space(self, *, hope: float = 0.0) -> Space:
        """The same space with the gains according to the trials, plus `hope` standard
        deviations."""
        gains = -self._costs + hope * np.sqrt(np.maximum(np.diag(self._covariance), 0.0))
        groups = []
        for index, group in enumerate(self._space.groups):
            options = (
                replace(option, gain=float(gains[self._columns[index, option.name]]))
                for option in group.options
            )
            groups.append(LayerGroup(group.nodes, tuple(options)))
        return replace(self._space, groups=tuple(groups))

    def _expected_ms(self, row: np.ndarray) -> float:
        return self._carrier_ms + float(row @ self._costs)

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

    def _learned(self) -> tuple[np.ndarray, np.ndarray]:
        """Milliseconds above the carrier for each option of each group, then for each placement
        except the first: mean [columns + placements] and covariance."""
        own = [option.gain for group in self._space.groups for option in group.options]
        gains = np.array([*own, *(0.0 for _ in self._variants)])
        if not self._sound or not gains.any():
            return -gains, np.diag(np.square(gains))
        x = np.stack([self._row(trial.candidate) for trial in self._sound])  # [trials, columns]
        y = np.array([trial.outcome.latency_ms for trial in self._sound]) - self._carrier_ms
        saved = x @ gains
        scale = max(-float(y @ saved) / max(float(saved @ saved), 1e-300), 0.0)
        least = _SAVING * self._carrier_ms / float(np.abs(gains).sum())
        mean, prior = -scale * gains, np.square(max(scale, least) * gains)
        prior[len(own) :] = (_PLACEMENT * self._carrier_ms) ** 2
        noise = (_ACCURACY * self._carrier_ms) ** 2 + 1e-30
        gram = (x * prior) @ x.T + noise * np.eye(len(x))
        weights = np.linalg.solve(gram, x * prior)  # K⁻¹ X P
        learned: np.ndarray = mean + weights.T @ (y - x @ mean)
        return learned, np.diag(prior) - (x * prior).T @ weights
