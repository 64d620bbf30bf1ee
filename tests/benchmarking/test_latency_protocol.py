from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from optkit.craft.benchmarking import latency
from optkit.craft.benchmarking.latency import MIN_ROUNDS, measure, ratio, summarize
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Interval, Latency, Phases, PhaseTimes
from optkit.facts.tensors import Feed

MS = 1_000_000  # nanoseconds


def quiet(what: str, fraction: float) -> None:
    pass


def feed_for(batch: int) -> Feed:
    return {"x": np.zeros((batch, 4), np.float32)}


class Clock:
    """A clock that only sessions move: what they take is known exactly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.log: list[str] = []
        monkeypatch.setattr(latency, "perf_counter_ns", lambda: self.now)

    def taking(self, name: str, cost: Callable[[int], int]) -> Callable[[Feed], Feed]:
        def run(feed: Feed) -> Feed:
            self.log.append(name)
            self.now += cost(len(feed["x"]))
            return feed

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_measures_what_the_sessions_take(clock: Clock, session: Any) -> None:
    made = {
        "int8": lambda: session(clock.taking("int8", lambda batch: batch * MS)),
        "fp16": lambda: session(clock.taking("fp16", lambda batch: 2 * batch * MS)),
    }
    found = measure(made, feed_for, (1, 8), seconds=6, warmup_seconds=0.1, progress=quiet)
    assert set(found) == {("int8", 1), ("fp16", 1), ("int8", 8), ("fp16", 8)}
    int8 = found["int8", 8]
    assert int8.evidence is Evidence.MEASURED
    assert (int8.p50_ms, int8.min_ms, int8.p95_ms) == (8.0, 8.0, 8.0)
    assert int8.throughput == pytest.approx(1000)
    assert int8.ci95_ms == (8.0, 8.0)
    assert ratio(found["fp16", 8], int8).value == 2.0
    assert int8.runs == len(int8.samples_ms) == found["fp16", 8].runs


def test_rounds_are_interleaved_in_changing_order(clock: Clock, session: Any) -> None:
    made = {
        name: (lambda name=name: session(clock.taking(name, lambda batch: MS)))
        for name in ("a", "b")
    }
    found = measure(made, feed_for, (1,), seconds=1, warmup_seconds=0.01, progress=quiet)
    bursts = [(name, len(list(group))) for name, group in groupby(clock.log)][2:]  # 2 = warm-up
    rounds = found["a", 1].rounds
    assert rounds is not None
    assert rounds >= MIN_ROUNDS
    # neighbours of equal name merge where the order of two rounds meets, so there are fewer groups
    assert rounds < len(bursts) < 2 * rounds
    per_round = found["a", 1].runs // rounds + 1  # one call of every burst is not counted
    assert sum(length for name, length in bursts if name == "a") <= rounds * per_round + 20


def test_the_first_call_of_a_burst_is_not_counted(clock: Clock, session: Any) -> None:
    """It finds the caches as the other session left them: here it takes nine times as long."""

    def cost(name: str) -> Callable[[int], int]:
        return lambda batch: MS if clock.log[-2:-1] == [name] else 9 * MS

    made = {
        name: (lambda name=name: session(clock.taking(name, cost(name)))) for name in ("a", "b")
    }
    found = measure(made, feed_for, (1,), seconds=2, warmup_seconds=0.05, progress=quiet)
    for name in ("a", "b"):
        assert found[name, 1].runs > 2 * MIN_ROUNDS
        assert set(found[name, 1].samples_ms) == {1.0}


def test_slow_models_still_get_the_least_number_of_rounds(clock: Clock, session: Any) -> None:
    made = {"slow": lambda: session(clock.taking("slow", lambda batch: 5_000 * MS))}
    found = measure(made, feed_for, (1,), seconds=1, warmup_seconds=0, progress=quiet)
    assert found["slow", 1].rounds == found["slow", 1].runs == MIN_ROUNDS
    assert found["slow", 1].p99_ms is None
    assert len(clock.log) == MIN_ROUNDS + 2  # two warm-up calls


def test_warm_up_is_not_counted(clock: Clock, session: Any) -> None:
    costs = iter([900 * MS] * 3)
    made = {"m": lambda: session(clock.taking("m", lambda batch: next(costs, MS)))}
    found = measure(made, feed_for, (1,), seconds=0.2, warmup_seconds=3, progress=quiet)
    assert max(found["m", 1].samples_ms) == 1.0
    assert found["m", 1].steady


def test_a_warm_up_ends_when_its_second_half_is_steady(clock: Clock, session: Any) -> None:
    costs = iter(range(300, 100, -2))  # 100 calls, faster and faster
    made = {"m": lambda: session(clock.taking("m", lambda batch: next(costs, 100) * MS // 100))}
    found = measure(made, feed_for, (1,), seconds=0.2, warmup_seconds=60, progress=quiet)["m", 1]
    assert found.steady and found.marks == ()
    assert found.warmup_runs is not None
    assert 200 <= found.warmup_runs <= 500  # it looks when the time has doubled
    assert (found.p50_ms, found.drift, found.outliers) == (1.0, 0.0, 0)


@pytest.mark.slow
def test_what_never_becomes_steady_is_marked(clock: Clock, session: Any) -> None:
    costs = iter(range(2000, 200, -50))
    made = {"m": lambda: session(clock.taking("m", lambda batch: next(costs, 100) * MS // 100))}
    found = measure(made, feed_for, (1,), seconds=0.2, warmup_seconds=0.3, progress=quiet)["m", 1]
    assert found.steady is False
    assert f"no steady state within {found.warmup_runs}" in found.marks[0]
    few = measure(made, feed_for, (1,), seconds=0.01, warmup_seconds=0, progress=quiet)["m", 1]
    assert (few.steady, few.warmup_runs) == (None, 2)


def test_the_machine_is_looked_at_between_rounds(clock: Clock, session: Any) -> None:
    looks: list[int] = []
    made = {"m": lambda: session(clock.taking("m", lambda batch: MS))}
    found = measure(
        made, feed_for, (1,), seconds=0.1, warmup_seconds=0, progress=quiet,
        between=lambda: looks.append(len(clock.log)),
    )  # fmt: skip
    assert len(looks) == found["m", 1].rounds
    assert looks[-1] == len(clock.log)


def test_sessions_are_closed_and_garbage_collection_restored(session: Any) -> None:
    seen: list[bool] = []
    opened: list[Any] = []

    def run(feed: Feed) -> Feed:
        seen.append(gc.isenabled())
        if len(seen) > 5:
            raise RuntimeError("the model broke")
        return feed

    def make() -> Any:
        opened.append(session(run))
        return opened[-1]

    with pytest.raises(RuntimeError, match="the model broke"):
        measure({"m": make}, feed_for, (1,), seconds=1, warmup_seconds=0, progress=quiet)
    assert seen == [False] * 6
    assert gc.isenabled()
    assert opened[0].closed


def test_a_real_clock_orders_a_small_and_a_large_product(session: Any) -> None:
    small, large = np.ones((8, 8)), np.ones((700, 700))
    made = {
        "small": lambda: session(lambda feed: {"y": small @ small}),
        "large": lambda: session(lambda feed: {"y": large @ large}),
    }
    found = measure(made, feed_for, (1,), seconds=0.3, warmup_seconds=0.02, progress=quiet)
    speedup = ratio(found["large", 1], found["small", 1])
    assert speedup.value > 1
    assert speedup.ci95 is not None
    assert speedup.ci95.low > 1


def test_quantiles_agree_with_numpy_and_p99_needs_a_thousand_runs() -> None:
    times = np.random.default_rng(0).lognormal(0, 0.3, size=(10, 100)) * MS
    found = summarize(times.astype(int).tolist(), batch=4)
    samples = times.astype(int).ravel() / MS
    assert found.p50_ms == pytest.approx(np.median(samples))
    assert found.p90_ms == pytest.approx(np.percentile(samples, 90))
    assert found.p99_ms == pytest.approx(np.percentile(samples, 99))
    assert found.throughput == pytest.approx(4000 / np.median(samples))
    fewer = summarize(times[:, :9].astype(int).tolist(), batch=4)
    assert (fewer.p90_ms, fewer.p99_ms) == (None, None)
    assert fewer.note == (
        "90 runs are too few for p90, p95, p99 (needed: p90 100, p95 200, p99 1,000)"
    )
    assert found.note is None


def test_outliers_and_shifts_are_reported_and_stay_in_the_figures() -> None:
    times = np.random.default_rng(4).normal(1, 0.01, size=(40, 25)) * MS
    times[7, 3] = times[30, 9] = 20 * MS
    times[20:] *= 1.2
    found = summarize(times.astype(int).tolist(), batch=4)
    assert found.outliers == 2
    assert max(found.samples_ms) > 20
    assert found.drift == pytest.approx(0.2, abs=0.01)
    assert found.marks == ()  # the interval holds both levels, and tells
    assert found.ci95_ms is not None and found.ci95_ms.high > 1.19


@pytest.mark.parametrize("factor", [1.2, 0.8])
@pytest.mark.parametrize("other", [slice(0, 10), slice(30, 40)])
def test_half_of_a_run_outside_its_interval_is_a_mark(other: slice, factor: float) -> None:
    times = np.random.default_rng(5).normal(1, 0.01, size=(40, 25)) * MS
    times[other] *= factor
    found = summarize(times.astype(int).tolist(), batch=4)
    (mark,) = found.marks
    assert mark.startswith("batch 4: the median of one half of") and mark.endswith(
        "outside the interval"
    )


@pytest.mark.slow
def test_levels_that_come_and_go_are_rarely_a_mark() -> None:
    """As virtual machines have it: a second level, 8 % higher, a fifth of the time, for six rounds
    each. It drifts in most runs; the interval tells enough in nine of ten."""
    rng = np.random.default_rng(6)
    marked = drifted = 0
    for _ in range(40):
        high, states = False, []
        for draw in rng.random(40):
            high = draw > 1 / 6 if high else draw < 1 / 24
            states.append(high)
        times = rng.normal(1, 0.01, size=(40, 5)) * MS * np.where(states, 1.08, 1)[:, None]
        found = summarize(times.astype(int).tolist(), batch=4)
        marked += bool(found.marks)
        drifted += (found.drift or 0) > 0.05
    assert drifted >= 20 and marked <= 4


def test_phases_are_medians_of_the_runs_of_a_session_that_has_them(session: Any) -> None:
    class Staged(type(session(lambda feed: feed))):  # type: ignore[misc]
        calls = 0

        def phases(self, feed: Feed) -> Phases:
            self.calls += 1
            return Phases(0.1, float(self.calls), 0.2, 0.01)

    found = latency.phases(lambda: Staged(lambda feed: feed), feed_for, (2,))
    assert found == {2: PhaseTimes(0.1, 50.5, 0.2, 0.01, runs=100)}
    assert latency.phases(lambda: session(lambda feed: feed), feed_for, (2,)) == {}


def noisy(seed: int, scale: float, drift: np.ndarray) -> Latency:
    """40 rounds of 25 calls; `drift` [40] is the host's slowness, shared by whoever is timed."""
    noise = np.random.default_rng(seed).normal(1, 0.02, size=(40, 25))
    return summarize((scale * MS * drift[:, None] * noise).astype(int).tolist(), batch=1)


def test_pairing_by_round_cancels_the_drift_of_the_host() -> None:
    drift = 1 + 0.8 * np.random.default_rng(9).random(40)
    paired = ratio(noisy(1, 2.0, drift), noisy(2, 1.0, drift)).ci95
    unpaired = ratio(noisy(1, 2.0, drift), noisy(2, 1.0, drift[::-1])).ci95
    assert paired is not None
    assert unpaired is not None
    assert paired.low <= 2.0 <= paired.high
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 2


def predicted(p50: float, band: Interval, batch: int = 1) -> Latency:
    return Latency(Evidence.PREDICTED, p50, batch, batch * 1e3 / p50, band=band)


def test_the_ratio_of_unlike_evidence_takes_the_weaker_and_claims_no_interval() -> None:
    measured = summarize([[2 * MS]] * 10, batch=1)
    found = ratio(measured, predicted(1.0, Interval(1.0, 4.0)))
    assert found == latency.Difference(2.0, None, Evidence.PREDICTED)


def test_a_model_against_itself_is_one_exactly() -> None:
    same = predicted(2.0, Interval(2.0, 6.0))
    assert ratio(same, same).ci95 == (1.0, 1.0)


def test_a_ratio_across_batch_sizes_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="batch sizes 1 and 8"):
        ratio(predicted(1, Interval(1, 2)), predicted(1, Interval(1, 2), batch=8))
