"""The types of the search: groups of layers, their options, a candidate and its outcome.

A group contains the layers that read one value (query, key and value; gate and up). Compilers merge
them into one product if they have one precision, so the search gives them the same precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, log10
from typing import Any, Self

from optkit.facts.documents.tune import SearchBudget
from optkit.facts.precisions import PRECISIONS, Precision

TWO_TERM = "+two-term"
"""Suffix of a precision's name: the activations have two terms."""


@dataclass(frozen=True)
class PrecisionOption:
    """A precision that a group may have.

    noise       error power over signal power at the model's outputs, if only this group has it
    gain        the time that it saves against the carrier; only ratios of gains are used
    divergence  in nats, see `benchmarking.sensitivity`
    """

    name: str
    noise: float
    gain: float
    divergence: float | None = None

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.name.removesuffix(TWO_TERM)]

    @property
    def is_two_term(self) -> bool:
        return self.name.endswith(TWO_TERM)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that get the same precision. The carrier is always an option, and not in `options`."""

    nodes: tuple[str, ...]
    options: tuple[PrecisionOption, ...]

    @property
    def name(self) -> str:
        return self.nodes[0]


@dataclass(frozen=True)
class Space:
    """All candidates of a search. `placements`: named variants of the placement of pairs; the first
    is that of the backend."""

    groups: tuple[LayerGroup, ...]
    carrier: str
    placements: tuple[str, ...] = ("default",)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the options of all groups, each once."""
        return tuple(dict.fromkeys(o.name for group in self.groups for o in group.options))

    def uniform(self, name: str) -> Candidate:
        """The candidate in which every group with the option `name` gets it, and the others stay in
        the carrier."""
        return Candidate(
            tuple(
                name if any(o.name == name for o in group.options) else self.carrier
                for group in self.groups
            )
        )

    def option(self, index: int, name: str) -> PrecisionOption:
        """The option `name` of group `index`. The carrier is an option without noise and gain."""
        options = (option for option in self.groups[index].options if option.name == name)
        return next(options, PrecisionOption(name, 0.0, 0.0))


@dataclass(frozen=True)
class Candidate:
    """One option per group, in the order of the space, and a placement."""

    options: tuple[str, ...]
    placement: str = "default"

    def having(self, changes: Mapping[int, str]) -> Candidate:
        """The candidate with other options for these groups."""
        options = tuple(changes.get(i, name) for i, name in enumerate(self.options))
        return Candidate(options, self.placement)


@dataclass(frozen=True)
class Outcome:
    """The figures of a trial. `failed`: why it has none; they are then infinite. `transient`:
    another attempt may succeed."""

    noise: float
    latency_ms: float
    bytes: int
    divergence: float | None = None
    landed: int | None = None
    planned: int | None = None
    bytes_moved: int | None = None
    layers: int | None = None
    failed: str | None = None
    transient: bool = False

    @classmethod
    def failure(cls, reason: str, *, transient: bool = False) -> Self:
        return cls(inf, inf, 0, failed=reason, transient=transient)

    @property
    def sqnr_db(self) -> float | None:
        """SQNR in dB; None if the outputs equal those of the reference."""
        return -10 * log10(self.noise) if 0 < self.noise < inf else None

    def to_json(self) -> dict[str, object]:
        data = asdict(self)
        return {**data, "noise": None, "latency_ms": None} if self.failed else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        if data["failed"]:
            return cls.failure(data["failed"], transient=data["transient"])
        return cls(**data)


@dataclass(frozen=True)
class CandidateTrial:
    """A candidate and its outcome."""

    candidate: Candidate
    outcome: Outcome


@dataclass(frozen=True)
class Budget(SearchBudget):
    """The limits, and how far a trial is from them. `max_drop` is judged on the samples of the task
    after the search; a trial knows the other figures."""

    @property
    def limits_accuracy(self) -> bool:
        return self.max_drop is not None or self.min_sqnr is not None

    @property
    def max_noise(self) -> float:
        return inf if self.min_sqnr is None else 10 ** (-self.min_sqnr / 10)

    def excess(self, outcome: Outcome) -> float:
        """0 within all limits that a trial knows; otherwise the distance to them, in decades."""
        if outcome.failed:
            return inf
        return sum(
            log10(value / limit)
            for value, limit in (
                (outcome.noise, self.max_noise),
                (outcome.latency_ms, self.max_latency_ms or inf),
                (outcome.bytes, self.max_bytes or inf),
            )
            if value > limit
        )

    def rank(self, outcome: Outcome) -> tuple[float, ...]:
        """A sort key; smaller is better. First the distance to the limits, then the latency; if
        accuracy has no limit, the noise."""
        speed, excess = (outcome.latency_ms, outcome.bytes), self.excess(outcome)
        if self.limits_accuracy:
            return (excess, *speed, outcome.noise)
        return (excess, outcome.noise, *speed)


def front(trials: Sequence[CandidateTrial]) -> list[CandidateTrial]:
    """The trials that no other trial beats in noise, latency and bytes, the fastest first. Of equal
    trials only the first."""
    kept: list[CandidateTrial] = []
    for trial in trials:
        if trial.outcome.failed or any(_covers(other, trial) for other in kept):
            continue
        kept = [other for other in kept if not _covers(trial, other)] + [trial]
    return sorted(kept, key=lambda t: (t.outcome.latency_ms, t.outcome.noise, t.outcome.bytes))


def staircase(trials: Sequence[CandidateTrial]) -> list[CandidateTrial]:
    """The front of noise and latency only, the fastest first: each trial is more accurate than the
    one before."""
    steps: list[CandidateTrial] = []
    for trial in front(trials):
        if not steps or trial.outcome.noise < steps[-1].outcome.noise:
            steps.append(trial)
    return steps


def _covers(a: CandidateTrial, b: CandidateTrial) -> bool:
    """Whether `a` is not worse than `b` in any figure."""
    x, y = a.outcome, b.outcome
    return x.noise <= y.noise and x.latency_ms <= y.latency_ms and x.bytes <= y.bytes
