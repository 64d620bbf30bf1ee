"""Spaces whose truth is known: noise and latency are sums over groups, or sums and a twist."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from optkit.tuning.space import Candidate, Group, Option, Outcome, Space


@dataclass
class World:
    """A space and what its candidates really come to. `calls`: how often it was asked."""

    space: Space
    milliseconds: np.ndarray  # [groups, options]: saved by it
    twist: float = 0.0  # of two neighbours that are quantized alike
    carrier_ms: float = 10.0
    floor: float = 1e-9  # noise of the carrier
    calls: int = 0

    def __call__(self, candidate: Candidate) -> Outcome:
        self.calls += 1
        noise, saved, size = self.floor, 0.0, 0
        for i, name in enumerate(candidate.options):
            option = self.space.option(i, name)
            noise += option.noise
            names = [o.name for o in self.space.groups[i].options]
            saved += self.milliseconds[i, names.index(name)] if name in names else 0.0
            size += 10 if name in names else 40
            alike = i and candidate.options[i - 1] == name and name in names
            saved += self.twist if alike else 0.0
        if candidate.placement != "default":
            saved, noise = saved + 0.1, noise * 1.1
        return Outcome(noise, self.carrier_ms - saved, size)


def world(
    seed: int, groups: int = 8, options: int = 1, twist: float = 0.0, wrong: float = 0.0
) -> World:
    """A random one. `wrong`: how far the expected gains are from the real ones."""
    rng = np.random.default_rng(seed)
    saved = rng.uniform(0.1, 1.0, (groups, options)) * 5 / groups
    noise = 10 ** rng.uniform(-7, -3, (groups, options))
    expected = saved * np.exp(wrong * rng.standard_normal(saved.shape))
    rows = tuple(
        Group(
            (f"layer{g}",),
            tuple(
                Option(f"int{8 - o}", float(noise[g, o]), float(expected[g, o]))
                for o in range(options)
            ),
        )
        for g in range(groups)
    )
    return World(Space(rows, "fp16"), saved, twist)


@pytest.fixture
def small_world() -> World:
    return world(1)
