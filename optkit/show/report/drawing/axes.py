"""An axis of a drawing: positions in percent of its length, and ticks at round values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10


@dataclass(frozen=True)
class Tick:
    at: float  # percent of the length
    text: str


@dataclass(frozen=True)
class LinearAxis:
    """A linear axis; `low` may be the greater one."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent of the length, clamped to it."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def ticks(self, show: Callable[[float], str]) -> tuple[Tick, ...]:
        """Two to six round values."""
        return tuple(Tick(self.at(value), show(value)) for value in self.values(5))

    def values(self, most: int) -> list[float]:
        """Round values inside, some `most` of them."""
        step = _round_step((self.high - self.low) / most)
        return [i * step for i in range(ceil(self.low / step), floor(self.high / step) + 1)]


def _round_step(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** floor(log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis from `low` to `high`, both above 0."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent of the length, clamped to it."""
        return LinearAxis(log10(self.low), log10(self.high)).at(log10(value))

    def ticks(self, show: Callable[[float], str]) -> tuple[Tick, ...]:
        """1, 2 and 5 times powers of ten; on a short axis more, on a long one the powers alone."""
        return tuple(Tick(self.at(value), show(value)) for value in self._values())

    def _values(self) -> list[float]:
        values: list[float] = []
        for factors in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
            values = [
                factor * 10.0**power
                for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
                for factor in factors
                if self.low <= factor * 10.0**power <= self.high
            ]
            if len(values) >= 3:
                break
        return [self.low, self.high] if len(values) < 2 else values[:: len(values) // 7 + 1]
