"""Engines in simulated time, against closed forms of queues, against the predictor of `plan`, and
what must hold whatever is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape, prefill, step
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.serving import Load, generate
from optkit.craft.prediction.work_time import seconds
from optkit.facts.documents.plan import Bound
from optkit.ground.devices import target
from optkit.satellites.serving.pass_times import EnginePass, PassTimes
from optkit.satellites.serving.run_figures import figures_of
from optkit.satellites.serving.served_run import ServingSystem, SimulatedRun, simulate
from optkit.satellites.serving.serving_policy import Drafting, ServingPolicy
from optkit.satellites.serving.token_lengths import TokenLengths
from optkit.satellites.serving.traffic import Arrival, faster, poisson

SHAPE = DecoderShape(32, 4096, 32, 8, 128, 14336, 128256)
FP16 = DecoderPrecision(16, "fp16")
ONE_BY_ONE = ServingPolicy("static", None, 1)
ONE = TokenLengths("one", 1, 1)


@dataclass
class DrawnTimes(PassTimes):
    """Passes whose seconds a function gives, one after another."""

    draw: Callable[[], float] = field(default=lambda: 1.0)

    def of(self, one: EnginePass) -> tuple[float, Bound]:
        return self.draw(), "compute"


def drawn(draw: Callable[[], float]) -> PassTimes:
    return DrawnTimes(SHAPE, FP16, target("h100"), draw=draw)


def h100(tensor: int = 1, pipeline: int = 1, drafting: Drafting | None = None) -> PassTimes:
    return PassTimes(SHAPE, FP16, target("h100"), tensor, pipeline, drafting=drafting)


def served(
    arrivals: list[Arrival], policy: ServingPolicy, *, blocks: int = 20_000, copies: int = 1,
    readers: int = 0, times: PassTimes | None = None,
) -> SimulatedRun:  # fmt: skip
    return simulate(arrivals, ServingSystem(times or h100(), policy, blocks, copies, readers))


def waits(run: SimulatedRun) -> np.ndarray:
    return np.array([(one.started or 0.0) - one.arrival.at for one in run.requests])


def total(run: SimulatedRun) -> float:
    return max(one.ended or 0.0 for one in run.requests)


@pytest.mark.parametrize(("rate", "service"), [(0.5, 1.0), (0.8, 1.0), (0.3, 2.0)])
def test_constant_service_waits_as_in_an_m_d_1_queue(rate: float, service: float) -> None:
    run = served(poisson(rate, ONE, ONE, 40_000, seed=3), ONE_BY_ONE, times=drawn(lambda: service))
    use = rate * service  # Pollaczek-Khinchine: W = use · service / 2 (1 - use)
    assert waits(run).mean() == pytest.approx(use * service / (2 * (1 - use)), rel=0.05)


@pytest.mark.parametrize("rate", [0.4, 0.7])
def test_exponential_service_waits_as_in_an_m_m_1_queue(rate: float) -> None:
    rng = np.random.default_rng(5)
    times = drawn(lambda: float(rng.exponential(1.0)))
    run = served(poisson(rate, ONE, ONE, 60_000, seed=4), ONE_BY_ONE, times=times)
    assert waits(run).mean() == pytest.approx(rate / (1 - rate), rel=0.06)
    assert np.mean(waits(run) == 0) == pytest.approx(1 - rate, abs=0.02)


def test_a_static_batch_takes_what_plan_predicts_for_it() -> None:
    for batch, prompt, new in ((1, 512, 256), (32, 1000, 200), (128, 128, 512)):
        made = generate(SHAPE, FP16, target("h100"), Load(prompt, new), batch)
        run = served([Arrival(0.0, prompt, new)] * batch, ServingPolicy("static", None, batch))
        written = made.prefill.total + (new - 1) * made.token
        assert total(run) == pytest.approx(written, rel=0.015)
        assert run.requests[0].first == pytest.approx(
            made.prefill.total + batch * fitted().efficiencies.sequence_us * 1e-6, rel=0.015
        )


@pytest.mark.parametrize("devices", [1, 2])
def test_a_pass_takes_what_prefill_and_step_take(devices: int) -> None:
    times, eff = h100(devices), fitted().efficiencies
    for read in (7, 100, 2048, 5000):
        exact = seconds(prefill(SHAPE, FP16, read, devices=devices), target("h100"), eff).total
        work = EnginePass(read=read, pairs=SHAPE.causal_pairs(read), ends=1)
        assert times.of(work)[0] == pytest.approx(exact + eff.sequence_us * 1e-6, rel=0.02)
    for batch, context in ((1, 100), (33, 1234), (200, 4000)):
        works = step(SHAPE, FP16, context, batch, devices=devices)
        exact = seconds(works, target("h100"), eff).total + batch * eff.sequence_us * 1e-6
        found = times.of(EnginePass(batch=batch, cached=batch * context))[0]
        assert found == pytest.approx(exact, rel=0.02)


arrivals = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 5),
        st.integers(1, 600),
        st.integers(1, 60),
        st.sampled_from(["", "a", "b"]),
        st.integers(0, 300),
    ).map(lambda one: replace(one, shared=min(one.shared, one.prompt))),
    min_size=1,
    max_size=25,
).map(lambda listed: sorted(listed, key=lambda one: one.at))

policies = st.one_of(
    st.builds(
        ServingPolicy,
        st.just("continuous"),
        st.sampled_from([None, 64, 512]),
        st.integers(1, 12),
        block=st.sampled_from([1, 16]),
        split=st.booleans(),
        drafting=st.sampled_from([None, Drafting(3, 0.6)]),
    ),
    st.builds(
        ServingPolicy,
        st.sampled_from(["static", "dynamic"]),
        st.none(),
        st.integers(1, 12),
        st.floats(0, 1),
    ),
)


@settings(max_examples=60, deadline=None)
@given(arrivals, policies, st.integers(1, 3), st.sampled_from([1, 2]))
def test_every_request_is_answered_and_every_block_comes_back(
    listed: list[Arrival], policy: ServingPolicy, copies: int, pipeline: int
) -> None:
    tokens = max(one.prompt + one.new for one in listed) + 8 * policy.width
    blocks = -(-tokens // policy.block) + 2  # hardly more than the longest takes: many preemptions
    times = h100(1, pipeline if policy.batching == "continuous" else 1, policy.drafting)
    run = served(
        listed, policy, blocks=blocks, copies=copies, readers=1 if policy.split else 0, times=times
    )
    for one in run.requests:
        assert one.started is not None and one.first is not None and one.ended is not None
        assert one.arrival.at - 1e-9 <= one.started <= one.first <= one.ended
        assert one.blocks == 0 and one.left <= 1e-6
    for log in run.logs:
        assert log.fullest <= 1 + 1e-9


@settings(max_examples=30, deadline=None)
@given(arrivals)
def test_the_integral_of_the_batch_is_the_time_that_sequences_write(listed: list[Arrival]) -> None:
    """Little's law for the sequences that write, as an identity of integrals."""
    run = served(listed, ServingPolicy(max_batch=8, chunk=256))
    writing = sum((one.ended or 0.0) - (one.first or 0.0) for one in run.requests)
    assert run.logs[0].batch == pytest.approx(writing, rel=1e-6, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(arrivals, st.floats(1, 4))
def test_one_by_one_each_waits_as_lindley_says_and_longer_at_a_higher_load(
    listed: list[Arrival], factor: float
) -> None:
    run = served(listed, ONE_BY_ONE)
    for before, after in pairwise(run.requests):
        free = max(before.ended or 0.0, after.arrival.at)
        assert after.started == pytest.approx(free, abs=1e-6)
    hastened = served(faster(listed, factor), ONE_BY_ONE)
    assert (waits(hastened) >= waits(run) - 1e-9).all()


def test_more_load_makes_every_percentile_longer() -> None:
    before = (0.0, 0.0)
    for rate in (2, 10, 20, 30):
        listed = poisson(
            rate, TokenLengths("one", 512, 512), TokenLengths("one", 128, 128), 600, seed=1
        )
        found = figures_of(served(listed, ServingPolicy()), 95)
        now = (found.first.at, found.token.at)
        assert found.stable and now > before and now[1] > before[1]
        before = now


def test_a_queue_that_gets_more_than_it_serves_is_unstable() -> None:
    for rate, stable in ((0.7, True), (0.9, True), (1.2, False), (3.0, False)):
        run = served(poisson(rate, ONE, ONE, 1500, seed=2), ONE_BY_ONE, times=drawn(lambda: 1.0))
        assert figures_of(run, 95).stable is stable


def test_the_same_requests_give_the_same_run() -> None:
    listed = poisson(10, TokenLengths("range", 64, 512), TokenLengths("range", 8, 64), 200, seed=9)
    one, two = (served(listed, ServingPolicy()) for _ in range(2))
    assert [r.ended for r in one.requests] == [r.ended for r in two.requests]


def test_a_full_cache_costs_time_and_is_said() -> None:
    listed = poisson(20, TokenLengths("one", 512, 512), TokenLengths("one", 256, 256), 400, seed=1)
    roomy, tight = (served(listed, ServingPolicy(), blocks=blocks) for blocks in (20_000, 900))
    assert sum(log.preemptions for log in roomy.logs) == 0
    assert sum(log.preemptions for log in tight.logs) > 0
    assert total(tight) > total(roomy)
    assert figures_of(tight, 95).short and not figures_of(roomy, 95).short


def test_a_shared_prefix_is_read_once() -> None:
    lengths = TokenLengths("one", 2048, 2048), TokenLengths("one", 16, 16)
    apart, together = (
        served(poisson(2, *lengths, 60, seed=1, shared=share), ServingPolicy())
        for share in (0.0, 0.75)
    )
    first = [(one.first or 0.0) - one.arrival.at for one in together.requests]
    assert first[0] == pytest.approx(
        (apart.requests[0].first or 0.0) - apart.requests[0].arrival.at, rel=1e-6
    )
    assert np.median(first[1:]) < 0.45 * first[0]


@dataclass
class RecordedTimes(PassTimes):
    """Keeps the seconds of all passes."""

    taken: list[float] = field(default_factory=list)

    def of(self, one: EnginePass) -> tuple[float, Bound]:
        found = super().of(one)
        self.taken.append(found[0])
        return found


def test_chunks_keep_tokens_coming_while_a_prompt_is_read() -> None:
    listed = [Arrival(0.0, 64, 400)] + [Arrival(0.3 + 0.3 * n, 8000, 2) for n in range(5)]
    longest, first = [], []
    for chunk in (None, 512):
        times = RecordedTimes(SHAPE, FP16, target("h100"))
        run = served(listed, ServingPolicy(chunk=chunk, max_batch=16), times=times)
        longest.append(max(times.taken))
        first.append((run.requests[1].first or 0.0) - run.requests[1].arrival.at)
    assert longest[1] < longest[0] / 5  # of the time between two tokens of the first request
    assert first[1] > first[0]


def test_separate_readers_do_not_delay_those_who_write() -> None:
    listed = poisson(
        12, TokenLengths("one", 2000, 2000), TokenLengths("one", 200, 200), 300, seed=1
    )
    together = figures_of(served(listed, ServingPolicy(chunk=None), copies=2), 95)
    apart = figures_of(served(listed, ServingPolicy(chunk=None, split=True), readers=1), 95)
    assert apart.token.at < together.token.at
    moved = served([Arrival(0.0, 2000, 2)], ServingPolicy(split=True), readers=1).requests[0]
    alone = served([Arrival(0.0, 2000, 2)], ServingPolicy()).requests[0]
    link = SHAPE.kv_bytes() * 2000 / 450e9  # NVLink of an H100, one way
    later = ((moved.ended or 0) - (moved.first or 0)) - ((alone.ended or 0) - (alone.first or 0))
    assert later == pytest.approx(link, rel=0.05)


def test_drafted_tokens_come_at_the_expected_rate() -> None:
    drafting = Drafting(4, 0.7, 0.0)
    assert drafting.tokens == pytest.approx(sum(0.7**n for n in range(5)))
    listed = [Arrival(0.0, 100, 1001)]
    plain = served(listed, ServingPolicy())
    drafted = served(
        listed, ServingPolicy(drafting=drafting, max_batch=8), times=h100(drafting=drafting)
    )
    assert drafted.logs[0].passes == pytest.approx(1000 / drafting.tokens + 1, abs=2)
    assert plain.logs[0].passes == 1001 - 1 + 1
    assert total(plain) / total(drafted) == pytest.approx(drafting.tokens, rel=0.1)
    costly = h100(drafting=replace(drafting, cost=0.1))
    slower = served(listed, ServingPolicy(drafting=drafting, max_batch=8), times=costly)
    assert total(slower) / total(drafted) == pytest.approx(1.4, rel=0.03)


def test_a_pipeline_has_as_many_passes_under_way_as_stages() -> None:
    listed = [Arrival(0.0, 100, 300)] * 64
    one, two = (
        served(listed, ServingPolicy(max_batch=32 * stages), times=h100(1, stages))
        for stages in (1, 2)
    )
    assert total(two) == pytest.approx(total(one) / 2, rel=0.05)
    alone = [served(listed[:1], ServingPolicy(), times=h100(1, stages)) for stages in (1, 2)]
    assert total(alone[1]) == pytest.approx(total(alone[0]), rel=0.01)


def test_dynamic_batches_start_when_the_first_has_waited() -> None:
    listed = [Arrival(0.0, 100, 10), Arrival(0.05, 100, 10), Arrival(9.0, 100, 10)]
    policy = ServingPolicy("dynamic", None, 8, 0.1)
    assert [one.started for one in served(listed, policy).requests] == pytest.approx(
        [0.1, 0.1, 9.0]
    )
    static = served(listed, ServingPolicy("static", None, 8))
    assert [one.started for one in static.requests] == pytest.approx([9.0] * 3)
