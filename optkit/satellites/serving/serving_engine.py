"""What all engines have in common: a queue of requests, a cache, and a record of what they did."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from optkit.facts.documents.plan import Bound
from optkit.satellites.serving.paged_cache import PagedCache, ServedRequest
from optkit.satellites.serving.pass_times import EnginePass, PassTimes
from optkit.satellites.serving.serving_policy import ServingPolicy

MOST_PASSES = 64
"""Equal passes that are simulated at once, so that their context hardly changes."""

Steps = Generator[simpy.Event, Any, None]


@dataclass
class EngineLog:
    """What an engine did. Seconds: `busy`, by the `bounds` of the passes, those in which a request
    waited for blocks of the cache (`short`); sums over seconds: of sequences that wrote (`batch`,
    while any did: `writing`) and of the share of the cache that was used (`cache`)."""

    busy: float = 0.0
    short: float = 0.0
    batch: float = 0.0
    writing: float = 0.0
    cache: float = 0.0
    fullest: float = 0.0
    preemptions: int = 0
    passes: int = 0
    bounds: dict[Bound, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, one: EnginePass, seconds: float, passes: int, bound: Bound, used: float) -> None:
        """`passes` equal ones that took so many seconds together, with that share of the cache."""
        self.busy += seconds
        self.passes += passes
        self.cache += used * seconds
        self.fullest = max(self.fullest, used)
        self.bounds[bound] += seconds
        if one.batch:
            self.batch += one.batch * seconds
            self.writing += seconds


class ServingEngine:
    """One copy of the model, which serves requests in simulated time."""

    def __init__(
        self, env: simpy.Environment, times: PassTimes, policy: ServingPolicy, cache: PagedCache
    ) -> None:
        self.env, self.times, self.policy, self.cache = env, times, policy, cache
        self.log = EngineLog()
        self.waiting: deque[ServedRequest] = deque()
        self.held = 0  # requests that it has begun and not finished
        self.last = False  # no other request will come
        self.news = env.event()

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + self.held

    def submit(self, request: ServedRequest) -> None:
        self.waiting.append(request)
        self.tell()

    def close(self) -> None:
        """No other request will come: an incomplete batch starts."""
        self.last = True
        self.tell()

    def release(self, request: ServedRequest) -> None:
        """The request has left this engine, and its blocks are free again."""
        self.cache.release(request)
        self.held -= 1
        self.tell()

    def tell(self) -> None:
        """Wake what waits for news."""
        news, self.news = self.news, self.env.event()
        news.succeed()
