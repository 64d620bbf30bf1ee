"""A simulation of replicas that serve requests, one after another in time (SimPy)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import simpy

from optkit.facts.errors import Impossible
from optkit.satellites.serving.batch_engine import BatchEngine
from optkit.satellites.serving.continuous_engine import ContinuousEngine
from optkit.satellites.serving.paged_cache import PagedCache, ServedRequest
from optkit.satellites.serving.pass_times import PassTimes
from optkit.satellites.serving.serving_engine import EngineLog, ServingEngine, Steps
from optkit.satellites.serving.serving_policy import ServingPolicy
from optkit.satellites.serving.traffic import Arrival


@dataclass(frozen=True)
class ServingSystem:
    """`replicas` copies of the model that write; with a policy that splits, `readers` copies that
    read prompts beside them, otherwise 0. `blocks`: of the cache of one copy."""

    times: PassTimes
    policy: ServingPolicy
    blocks: int
    replicas: int
    readers: int = 0


@dataclass
class SimulatedRun:
    """Requests in the order of their arrival, and what the engines did. `seconds`: until the last
    request was answered."""

    requests: list[ServedRequest]
    logs: list[EngineLog] = field(default_factory=list)
    seconds: float = 0.0


def simulate(arrivals: Sequence[Arrival], system: ServingSystem) -> SimulatedRun:
    """Serve all requests. Each goes to the copy that has the fewest under way. Raises Impossible
    for a request that is larger than the cache."""
    most = max(one.prompt + one.new for one in arrivals) + system.policy.width
    if _cache(system).blocks_for(most) > system.blocks:
        raise Impossible(
            f"the cache of a copy has {system.blocks * system.policy.block:,} tokens, and a "
            f"request takes {most:,}",
            where=system.times.target.name,
            hint="shorter requests, --tp, or a narrower precision",
        )
    env = simpy.Environment()
    run = SimulatedRun([ServedRequest(one) for one in arrivals])
    writers = [_engine(env, system) for _ in range(system.replicas)]
    link = [simpy.Resource(env) for _ in range(system.readers)]
    readers: list[ServingEngine] = []

    def handed(request: ServedRequest, reader: ServingEngine) -> None:
        env.process(_transfer(env, system, request, reader, link[readers.index(reader)], writers))

    readers += [
        ContinuousEngine(env, system.times, system.policy, _cache(system), handed)
        for _ in range(system.readers)
    ]
    env.process(_arrive(env, run.requests, readers or writers))
    env.run()
    run.logs = [one.log for one in (*readers, *writers)]
    run.seconds = max((one.ended or 0.0 for one in run.requests), default=0.0)
    return run


def _engine(env: simpy.Environment, system: ServingSystem) -> ServingEngine:
    kind = ContinuousEngine if system.policy.batching == "continuous" else BatchEngine
    return kind(env, system.times, system.policy, _cache(system))


def _cache(system: ServingSystem) -> PagedCache:
    return PagedCache(system.times.shape, system.blocks, system.policy.block)


def _arrive(
    env: simpy.Environment, requests: Sequence[ServedRequest], engines: Sequence[ServingEngine]
) -> Steps:
    for request in requests:
        yield env.timeout(max(0.0, request.arrival.at - env.now))
        _least_busy(engines).submit(request)
    for engine in engines:
        engine.close()


def _transfer(
    env: simpy.Environment,
    system: ServingSystem,
    request: ServedRequest,
    reader: ServingEngine,
    link: simpy.Resource,
    writers: Sequence[ServingEngine],
) -> Steps:
    """Move the cache of a prompt from the devices that read it to those that write."""
    times = system.times
    with link.request() as turn:
        yield turn
        yield env.timeout(times.transfer(request.cached, 2 * times.tensor * times.pipeline))
    reader.release(request)
    _least_busy(writers).submit(request)


def _least_busy(engines: Sequence[ServingEngine]) -> ServingEngine:
    return min(engines, key=lambda engine: engine.outstanding)
