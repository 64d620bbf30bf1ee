"""What a simulated run says: percentiles in the steady state, how sure they are, and whether there
is a steady state at all.

The first fifth of the requests, in which the system fills, and the last tenth, in which it empties,
are cut off. The interval of a percentile is by the method of batch means (Law 2015, chapter 9): the
requests in ten parts one after another, and Student's t of the percentiles of the parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from optkit.craft.prediction.work_time import longest
from optkit.facts.documents.plan import Bound
from optkit.facts.documents.serving_plan import DecidingBound
from optkit.satellites.serving.paged_cache import ServedRequest
from optkit.satellites.serving.served_run import SimulatedRun
from optkit.satellites.serving.serving_engine import EngineLog

WARM_UP, COOL_DOWN, PARTS = 0.2, 0.1, 10
_T9 = 2.262  # Student's t with 9 degrees of freedom, 95 %
_GROWN, _FASTER = 1 / 30, 1.5
_SHORT, _QUEUED = 0.2, 0.5

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class TimeSpread:
    """Seconds. `at`: at the percentile that was asked for, with half the width of its interval."""

    mean: float
    p50: float
    p95: float
    p99: float
    at: float
    half: float


@dataclass(frozen=True)
class RunFigures:
    """Of the requests that count: `first` token, each `token`, `whole` answer, and how long they
    `waited` until their first pass. Rates per second; `busy`, `cache`, `fullest`: shares."""

    stable: bool
    count: int
    seconds: float
    first: TimeSpread
    token: TimeSpread
    whole: TimeSpread
    waited: TimeSpread
    requests: float
    tokens: float
    busy: float
    batch: float
    cache: float
    fullest: float
    preemptions: int
    short: bool
    bound: DecidingBound


def figures_of(run: SimulatedRun, percentile: float) -> RunFigures:
    """Of a run of at least one request; one with few requests counts all of them."""
    requests = _counted(run.requests)

    def spread(
        seconds: Callable[[ServedRequest], float], of: Sequence[ServedRequest]
    ) -> TimeSpread:
        return _spread(np.array([seconds(one) for one in of]), percentile)

    begin, end = requests[0].arrival.at, requests[-1].arrival.at
    answered = [one for one in run.requests if begin <= one.moments[2] <= end]
    if end <= begin or not answered:  # all of them came at once, or none was answered in time
        begin, end, answered = 0.0, run.seconds, run.requests
    logs = run.logs
    busy, writing = sum(one.busy for one in logs), sum(one.writing for one in logs)
    return RunFigures(
        stable=_is_stable(run.requests),
        count=len(requests),
        seconds=end - begin,
        first=spread(lambda one: one.moments[1] - one.arrival.at, requests),
        token=spread(
            lambda one: (one.moments[2] - one.moments[1]) / (one.arrival.new - 1),
            [one for one in requests if one.arrival.new > 1],
        ),
        whole=spread(lambda one: one.moments[2] - one.arrival.at, requests),
        waited=spread(lambda one: one.moments[0] - one.arrival.at, requests),
        requests=len(answered) / (end - begin),
        tokens=sum(one.arrival.new for one in answered) / (end - begin),
        busy=busy / run.seconds / len(logs),
        batch=sum(one.batch for one in logs) / max(writing, 1e-12),
        cache=sum(one.cache for one in logs) / busy,
        fullest=max(one.fullest for one in logs),
        preemptions=sum(one.preemptions for one in logs),
        short=sum(one.short for one in logs) > _SHORT * busy,
        bound=_most(logs),
    )


def _most(logs: Sequence[EngineLog]) -> Bound:
    """What most of the time of the passes went into."""
    bounds: dict[Bound, float] = defaultdict(float)
    for log in logs:
        for bound, seconds in log.bounds.items():
            bounds[bound] += seconds
    return longest(bounds)


def deciding(found: RunFigures, first: float | None, token: float | None) -> DecidingBound:
    """What stands against a higher load: the cache where requests wait for its blocks; the queue
    where the time to the first token is the limit that is nearest and most of it is waiting;
    otherwise what most of the time of the passes goes into. Limits in seconds."""
    if found.short:
        return "cache"
    nearest = first is not None and (
        token is None or found.first.at / first >= found.token.at / token
    )
    if nearest and found.waited.at > _QUEUED * found.first.at:
        return "queue"
    return found.bound


def _counted(requests: Sequence[ServedRequest]) -> Sequence[ServedRequest]:
    if len(requests) < 5 * PARTS:
        return requests
    return requests[round(WARM_UP * len(requests)) : round((1 - COOL_DOWN) * len(requests))]


def _spread(values: Seconds, percentile: float) -> TimeSpread:
    if not len(values):
        return TimeSpread(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    half = 0.0
    if len(values) >= 2 * PARTS:
        parts = [np.percentile(part, percentile) for part in np.array_split(values, PARTS)]
        half = float(_T9 * np.std(parts, ddof=1) / sqrt(PARTS))
    p50, p95, p99, at = map(float, np.percentile(values, [50, 95, 99, percentile]))
    return TimeSpread(float(values.mean()), p50, p95, p99, at, half)


def _is_stable(requests: Sequence[ServedRequest]) -> bool:
    """Whether the wait for the first pass stops growing. A queue that gets more than its devices
    serve grows as time goes on: it is unstable where the last tenth of the requests waits for more
    than a thirtieth of the whole time, and for 1.5 times as long as the fourth and fifth tenths."""
    span = requests[-1].arrival.at - requests[0].arrival.at
    waits = np.array([one.moments[0] - one.arrival.at for one in requests])
    if span <= 0 or len(waits) < 5 * PARTS:
        return True
    tenths = [float(part.mean()) for part in np.array_split(waits, 10)]
    middle = (tenths[3] + tenths[4]) / 2
    return tenths[-1] <= _GROWN * span or tenths[-1] <= _FASTER * middle
