"""Batches that run to their end: no request joins one that has started.

static     a batch starts when it is full
dynamic    it also starts when its first request has waited long enough
"""

from __future__ import annotations

from math import ceil

import simpy

from optkit.satellites.serving.paged_cache import PagedCache, ServedRequest
from optkit.satellites.serving.pass_times import EnginePass, PassTimes
from optkit.satellites.serving.serving_engine import MOST_PASSES, ServingEngine, Steps
from optkit.satellites.serving.serving_policy import ServingPolicy


class BatchEngine(ServingEngine):
    """Static or dynamic batching, as the policy says."""

    def __init__(
        self, env: simpy.Environment, times: PassTimes, policy: ServingPolicy, cache: PagedCache
    ) -> None:
        super().__init__(env, times, policy, cache)
        env.process(self._serve())

    def _serve(self) -> Steps:
        while True:
            while not self._full():
                first = self.waiting[0].arrival.at if self.waiting else None
                if self.policy.batching == "dynamic" and first is not None:
                    rest = first + self.policy.delay - self.env.now
                    if rest <= 1e-12:
                        break
                    yield self.news | self.env.timeout(rest)
                else:
                    yield self.news
            yield from self._batch(self._taken())

    def _full(self) -> bool:
        return len(self.waiting) >= self.policy.max_batch or (self.last and bool(self.waiting))

    def _taken(self) -> list[ServedRequest]:
        """The next batch: requests that fit beside each other when all are as long as the longest
        prompt and the longest answer."""
        batch: list[ServedRequest] = []
        prompt = new = 0
        while self.waiting and len(batch) < self.policy.max_batch:
            one = self.waiting[0].arrival
            prompt, new = max(prompt, one.prompt), max(new, one.new)
            each = self.cache.blocks_for(prompt + new)
            if batch and each * (len(batch) + 1) > self.cache.size:
                break
            batch.append(self.waiting.popleft())
        self.held += len(batch)
        return batch

    def _batch(self, batch: list[ServedRequest]) -> Steps:
        """Read all prompts, then write until the longest answer is there. Shorter prompts are
        padded, and a sequence that has ended is computed on."""
        shape, count = self.times.shape, len(batch)
        prompt = max(request.arrival.prompt for request in batch)
        new = max(request.arrival.new for request in batch)
        used = min(1.0, self.cache.blocks_for(prompt + new) * count / self.cache.size)
        for request in batch:
            request.started = self.env.now
        one = EnginePass(
            count * prompt, count * shape.causal_pairs(prompt), ends=count, width=self.policy.width
        )
        seconds, bound = self.times.of(one)
        yield self.env.timeout(seconds)
        self.log.add(one, seconds, 1, bound, used)
        for request in batch:
            request.first = self.env.now
        written = 1.0
        while written < new:
            passes = min(MOST_PASSES, ceil((new - written) / self.policy.tokens))
            middle = prompt + written + self.policy.tokens * (passes - 1) / 2
            one = EnginePass(
                batch=count, cached=count * shape.cached(middle), width=self.policy.width
            )
            seconds, bound = self.times.of(one)
            for request in batch:
                if (
                    request.ended is None
                    and request.arrival.new <= written + self.policy.tokens * passes
                ):
                    own = ceil(max(0.0, request.arrival.new - written) / self.policy.tokens)
                    request.ended = self.env.now + own * seconds
            yield self.env.timeout(seconds * passes)
            self.log.add(one, seconds * passes, passes, bound, used)
            written += self.policy.tokens * passes
        for request in batch:
            request.ended = self.env.now if request.ended is None else request.ended
            request.left = 0.0
        self.held -= count
