"""Continuous batching: requests join and leave between the passes of an engine (Yu et al. 2022,
"Orca").

In chunks, each pass writes a token for all sequences and fills the rest of its budget with pieces
of prompts (Agrawal et al. 2024, arXiv 2403.02310). Without, passes that read whole prompts come
first. Where the cache is full, the sequence that joined last is computed again later (Kwon et al.
2023, arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import simpy

from optkit.satellites.serving.paged_cache import PagedCache, ServedRequest
from optkit.satellites.serving.pass_times import EnginePass, PassTimes
from optkit.satellites.serving.serving_engine import MOST_PASSES, ServingEngine, Steps
from optkit.satellites.serving.serving_policy import ServingPolicy

Pieces = list[tuple[ServedRequest, int]]
"""Which requests a pass reads, and how many tokens of each."""


@dataclass(slots=True)
class _Plan:
    """What a pass does: the requests that write, those that read with the number of tokens of each,
    and both as work. `passes`: how many equal ones follow each other."""

    writing: list[ServedRequest]
    pieces: Pieces
    work: EnginePass
    passes: int = 1


class ContinuousEngine(ServingEngine):
    """`handed`: what becomes of a request whose prompt is read; None: this engine writes its answer
    too. A pipeline of n stages has n passes under way, each with its own sequences."""

    def __init__(
        self,
        env: simpy.Environment,
        times: PassTimes,
        policy: ServingPolicy,
        cache: PagedCache,
        handed: Callable[[ServedRequest, ServingEngine], None] | None = None,
    ) -> None:
        super().__init__(env, times, policy, cache)
        self._handed = handed
        self._short = False  # whether a request waits for blocks
        self._stages = [simpy.Resource(env) for _ in range(times.pipeline)]
        self._slots = max(1, policy.max_batch // times.pipeline)
        for _ in self._stages:
            env.process(self._serve())

    def _serve(self) -> Steps:
        running: list[ServedRequest] = []
        while True:
            plan = self._planned(running)
            if not plan.writing and not plan.pieces:
                if self.held or not self.waiting:  # else one that was preempted begins again
                    yield self.news
                continue
            seconds, bound = self.times.of(plan.work)
            begun, used = self.env.now, self.cache.used / self.cache.size
            for request, _ in plan.pieces:
                request.started = begun if request.started is None else request.started
            if len(self._stages) > 1:
                for stage in self._stages:
                    with stage.request() as turn:
                        yield turn
                        yield self.env.timeout(seconds / len(self._stages))
            else:
                yield from self._until_news(running, seconds, plan)
            self.log.add(plan.work, seconds * plan.passes, plan.passes, bound, used)
            if self._short:
                self.log.short += self.env.now - begun
            self._finish(running, plan)

    def _planned(self, running: list[ServedRequest]) -> _Plan:
        """The next pass; requests that can start join those that run."""
        writing = self._writing(running)
        left = self.policy.budget
        if self.policy.chunk is not None:
            left -= len(writing) * self.policy.width
        pieces: Pieces = []
        for request in running:
            if request.read < request.target and left > 0:
                pieces.append((request, min(left, request.target - request.read)))
                left -= pieces[-1][1]
        self._join(running, writing, pieces, left)
        if pieces and self.policy.chunk is None:
            writing = []
        plan = _Plan(writing, pieces, self._work(writing, pieces))
        if writing and not pieces and len(self._stages) == 1:
            plan.passes = self._passes(writing)
            # a sequence grows from pass to pass: as the one in the middle
            plan.work.cached += len(writing) * self.policy.tokens * (plan.passes - 1) / 2
        return plan

    def _join(
        self, running: list[ServedRequest], writing: list[ServedRequest], pieces: Pieces, left: int
    ) -> None:
        """Let requests that wait join while `left` tokens of the budget are left."""
        while left > 0 and self.waiting and len(running) < self._slots and not self._short:
            request = self.waiting[0]
            if self.policy.chunk is None and pieces and request.target > left:
                return
            if not self._admitted(request):
                return
            running.append(request)
            piece = request.target - request.read
            if piece <= 0:  # its cache came from another engine
                writing.append(request)
                continue
            pieces.append((request, piece if self.policy.chunk is None else min(left, piece)))
            left -= pieces[-1][1]

    def _admitted(self, request: ServedRequest) -> bool:
        """Let the first request that waits begin, if there are blocks for it."""
        self._short = not self.cache.admit(request, request.target + 1)
        if self._short:
            return False
        request.read = max(request.read, request.hit)
        self.waiting.popleft()
        self.held += 1
        return True

    def _writing(self, running: list[ServedRequest]) -> list[ServedRequest]:
        """The sequences that write, each with blocks for what it writes next. Where there are none,
        the sequence that joined last is computed again later."""
        width, writing, before = self.policy.width, list[ServedRequest](), self.log.preemptions
        for request in tuple(running):
            if request.read < request.target or (
                request.cached + width > request.room
                and not (request in running and self._grown(running, request))
            ):
                continue
            writing.append(request)
        self._short = self.log.preemptions > before
        return [one for one in writing if one in running] if self._short else writing

    def _grown(self, running: list[ServedRequest], request: ServedRequest) -> bool:
        while not self.cache.grow(request, request.cached + self.policy.width):
            last = running.pop()
            self.cache.release(last)
            self.held -= 1
            last.apart = True
            last.target, last.read = ceil(last.cached or last.target - 1) + 1, 0
            self.waiting.appendleft(last)
            self.log.preemptions += 1
            if last is request:
                return False
        return True

    def _work(self, writing: list[ServedRequest], pieces: Pieces) -> EnginePass:
        shape, width = self.times.shape, self.policy.width
        lengths = [request.cached + 1 for request in writing]
        cached = sum(lengths) if shape.window is None else sum(map(shape.cached, lengths))
        work = EnginePass(batch=len(writing), cached=cached, width=width)
        for request, piece in pieces:
            end = request.read + piece
            work.read += piece
            work.pairs += shape.causal_pairs(end) - shape.causal_pairs(request.read)
            work.past += shape.cached(request.read)
            work.ends += end >= request.target
        return work

    def _passes(self, writing: list[ServedRequest]) -> int:
        """How many equal passes can follow each other: until a sequence ends or blocks run out."""
        each, blocks_for = self.policy.tokens, self.cache.blocks_for
        passes = ceil(min(request.left for request in writing) / each - 1e-9)
        passes = max(1, min(passes, MOST_PASSES))
        ahead = each * (passes - 1) + self.policy.width
        if len(writing) * (ahead / self.cache.block + 2) <= self.cache.free:
            return passes
        grown = sum(blocks_for(one.cached + ahead) - blocks_for(one.cached) for one in writing)
        return passes if grown <= self.cache.free else 1

    def _until_news(self, running: list[ServedRequest], seconds: float, plan: _Plan) -> Steps:
        """Run the passes, but end with the present one when a request comes that can join."""
        begun, end = self.env.now, self.env.timeout(seconds * plan.passes)
        if plan.passes == 1 or len(running) >= self._slots or self.waiting:
            yield end
            return
        yield end | self.news
        if not end.processed:
            done = max(1, ceil((self.env.now - begun) / seconds))
            plan.passes = min(plan.passes, done)
            yield self.env.timeout(max(0.0, begun + plan.passes * seconds - self.env.now))

    def _finish(self, running: list[ServedRequest], plan: _Plan) -> None:
        """What the requests have after the passes."""
        written = self.policy.tokens * plan.passes
        ended = []
        for request in plan.writing:
            request.cached += written
            request.left -= written
            if request.left <= 1e-9:
                ended.append(request)
            elif request.cached > request.room:
                self.cache.grow(request, request.cached)
        for request, piece in plan.pieces:
            request.read += piece
            if request.read < request.target:
                continue
            self.cache.share(request)
            request.cached = request.target
            request.left -= 1
            request.first = self.env.now if request.first is None else request.first
            if request.left <= 0:
                ended.append(request)
            elif self._handed is not None:
                running.remove(request)
                self._handed(request, self)
        for request in ended:
            running.remove(request)
            request.ended = self.env.now
            self.release(request)
