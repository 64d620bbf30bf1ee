"""The document of a plan of serving, from what searches and simulations found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from optkit.craft.prediction import memory, plans
from optkit.craft.prediction.cost import per_million
from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.craft.prediction.fitted import UNSEEN, fitted
from optkit.craft.prediction.serving import numbers_of
from optkit.craft.prediction.work_time import link_of
from optkit.facts.device_facts import Price
from optkit.facts.documents.plan import PlannedDecoder
from optkit.facts.documents.result import StepFailure
from optkit.facts.documents.serving_plan import (
    SERVING,
    LoadPoint,
    ServedTraffic,
    ServingLimits,
    ServingPlan,
    ServingRow,
    ServingSetup,
    SimulatedTime,
    TimePercentiles,
)
from optkit.facts.errors import Impossible, OptkitError, ToolchainMissing
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target
from optkit.ground.execute.runner import Listener
from optkit.satellites.serving.fewest_devices import (
    ROUGH_LENGTH,
    DeviceSearch,
    FoundDevices,
    ServedLoad,
    ServingNeeds,
)
from optkit.satellites.serving.run_figures import TimeSpread, deciding
from optkit.satellites.serving.serving_policy import ServingPolicy
from optkit.show.report.serving_advice import chosen, of_serving

_SEARCH = "serving"
_LOADS = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the load that is asked for

ServingPair = tuple[Target, Precision, Price | None]


@dataclass(frozen=True)
class ServingQuestion:
    """`tensor`: devices of one copy that share each layer; None: what is best is looked for.
    `pipeline`: stages of one copy."""

    model: PlannedDecoder
    shape: DecoderShape
    load: ServedLoad
    policy: ServingPolicy
    needs: ServingNeeds
    tensor: int | None = None
    pipeline: int = 1

    def search(self, target: Target, number: Precision) -> DeviceSearch:
        return DeviceSearch(
            self.shape,
            numbers_of(number),
            target,
            self.policy,
            self.load,
            self.needs,
            self.tensor,
            self.pipeline,
        )


def answer(
    question: ServingQuestion,
    pairs: Sequence[ServingPair],
    check: Callable[[Target, Precision], None],
    listener: Listener,
) -> ServingPlan:
    """One row for each pair. `check`: raises Impossible for a pair that cannot be planned;
    `listener`: is told of each search."""
    rows: list[ServingRow] = []
    found: dict[tuple[str, str], tuple[DeviceSearch, FoundDevices]] = {}
    refused: OptkitError | None = None
    for target, number, price in pairs:
        try:
            check(target, number)
            search = question.search(target, number)
            devices = _searched(search, f"{target.name} {number.name}", listener)
            rows.append(_row(question, search, number, price, devices))
            found[target.name, number.name] = search, devices
        except (Impossible, ToolchainMissing) as error:
            refused = refused or error
            rows.append(_refused(target, number, error))
    best = chosen(rows)
    limits = _limits(question.needs)
    return ServingPlan(
        schema=SERVING,
        status="ok" if found else "impossible",
        error=None if found or refused is None else StepFailure.from_object(refused),
        model=question.model,
        traffic=_traffic(question.load),
        limits=limits,
        setup=_setup(question.policy),
        results=tuple(rows),
        loads=tuple(_loads(*found[best[0].target, best[0].precision])) if best else (),
        recommendation=of_serving(rows, limits),
        notes=tuple(_notes(question, rows)),
    )


def _searched(search: DeviceSearch, pair: str, listener: Listener) -> FoundDevices:
    label, began = f"simulate servers of {pair}", time.monotonic()
    listener.start(_SEARCH, label)
    try:
        found = search.fewest()
    except BaseException:
        listener.failed(_SEARCH, label)
        raise
    listener.done(_SEARCH, label, hit=False, seconds=time.monotonic() - began)
    return found


def _row(
    question: ServingQuestion,
    search: DeviceSearch,
    number: Precision,
    price: Price | None,
    found: FoundDevices,
) -> ServingRow:
    target, one, factor = search.target, found.figures, _factor(search.target)
    fast, slow = (search.again(found, slower=by) for by in (1 / factor, factor))
    rate, written = question.load.rate, question.load.rate * question.load.means[1]
    usd = None if price is None else price.usd_per_hour * found.devices
    joined = found.devices_joined
    links = link_of(target, joined).figures if joined > 1 else ()
    return ServingRow(
        target=target.name,
        precision=number.name,
        status="ok",
        evidence="predicted",
        devices=found.devices,
        devices_band=(_devices(search, 1 / factor) or found.devices, _devices(search, factor)),
        copies=found.copies,
        readers=found.readers,
        tensor=found.tensor,
        pipeline=found.pipeline,
        usd_per_hour=usd,
        usd_per_million=None if usd is None else per_million(usd, written),
        price=price,
        ttft_ms=_percentiles(one.first, fast.first, slow.first, slow.stable),
        tpot_ms=_percentiles(one.token, fast.token, slow.token, slow.stable),
        e2e_ms=_percentiles(one.whole, fast.whole, slow.whole, slow.stable),
        requests_per_s=rate,
        tokens_per_s=written,
        utilisation=min(1.0, one.busy),
        mean_batch=one.batch,
        cache_tokens=found.cache_tokens,
        cache_mean=min(1.0, one.cache),
        cache_max=min(1.0, one.fullest),
        preemptions=one.preemptions,
        bound=deciding(one, question.needs.first, question.needs.token),
        simulated=SimulatedTime(
            requests=found.requests,
            counted=one.count,
            seconds=one.seconds,
            copies=found.simulated + found.readers,
        ),
        notes=(*plans.foreign(target), *plans.on_card(target), *_link_note(target, found)),
        unverified=plans.unverified(target, number, links),
    )


def _factor(target: Target) -> float:
    """Up and down: what plan gives a decoder that serves many."""
    widths = fitted().widths
    return widths["serving" if plans.in_measured_generation(target) else UNSEEN]


def _devices(search: DeviceSearch, slower: float) -> int | None:
    """The fewest with slower passes, by short simulations; None: no number does."""
    try:
        return replace(search, slower=slower, length=ROUGH_LENGTH, _times={}).roughly().devices
    except Impossible:
        return None


def _percentiles(
    one: TimeSpread, fast: TimeSpread, slow: TimeSpread, bounded: bool
) -> TimePercentiles:
    return TimePercentiles(
        mean=one.mean * 1e3,
        p50=one.p50 * 1e3,
        p95=one.p95 * 1e3,
        p99=one.p99 * 1e3,
        interval=(max(0.0, one.at - one.half) * 1e3, (one.at + one.half) * 1e3),
        band=(fast.at * 1e3, slow.at * 1e3 if bounded else None),
    )


def _refused(target: Target, number: Precision, error: OptkitError) -> ServingRow:
    return ServingRow(
        target=target.name,
        precision=number.name,
        status="impossible",
        reason=error.message,
        evidence="predicted",
        notes=(),
        unverified=(),
    )


def _loads(search: DeviceSearch, found: FoundDevices) -> Iterator[LoadPoint]:
    for share in _LOADS:
        one = found.figures if share == 1.0 else search.again(found, rate=share)
        yield LoadPoint(
            requests_per_s=search.load.rate * share,
            ttft_ms=one.first.at * 1e3 if one.stable else None,
            tpot_ms=one.token.at * 1e3 if one.stable else None,
        )


def _traffic(load: ServedLoad) -> ServedTraffic:
    prompt, new = load.means
    return ServedTraffic(
        source="trace" if load.trace else "poisson",
        requests_per_s=load.rate,
        prompt=f"{prompt:,.0f} on average" if load.trace else str(load.prompt),
        output=f"{new:,.0f} on average" if load.trace else str(load.new),
        prompt_mean=prompt,
        output_mean=new,
        shared=load.shared,
        seed=load.seed,
    )


def _limits(needs: ServingNeeds) -> ServingLimits:
    return ServingLimits(
        ttft_ms=None if needs.first is None else needs.first * 1e3,
        tpot_ms=None if needs.token is None else needs.token * 1e3,
        percentile=needs.percentile,
    )


def _setup(policy: ServingPolicy) -> ServingSetup:
    drafting = policy.drafting
    return ServingSetup(
        batching=policy.batching,
        chunk_tokens=policy.chunk,
        max_batch=policy.max_batch,
        delay_ms=policy.delay * 1e3 if policy.batching == "dynamic" else None,
        block_tokens=policy.block,
        split=policy.split,
        draft_length=None if drafting is None else drafting.length,
        acceptance=None if drafting is None else drafting.accepted,
        draft_cost=None if drafting is None else drafting.cost,
        tokens_per_pass=policy.tokens,
    )


def _link_note(target: Target, found: FoundDevices) -> tuple[str, ...]:
    if found.devices_joined == 1:
        return ()
    link = link_of(target, found.devices_joined)
    what = "caches go to the devices that write" if found.readers else "a copy is joined"
    return (f"{what} over {link.name}, {link.rate / 1e9:,.0f} GB/s one way",)


def _notes(question: ServingQuestion, rows: Sequence[ServingRow]) -> Iterator[str]:
    """What the figures rest on, and what the host needs."""
    policy, able = question.policy, [row for row in rows if row.status == "ok"]
    unseen = [
        name
        for name, used in (
            (f"{policy.batching} batching", policy.batching != "continuous"),
            ("prefix sharing", question.load.shared > 0),
            ("separate devices for prompts", policy.split),
            ("pipeline parallel", question.pipeline > 1),
            ("speculative decoding", policy.drafting is not None),
        )
        if used
    ]
    if unseen:
        yield (
            f"unverified: no published run that we compared has {', '.join(unseen)} "
            "(docs/studies/serving_plans.md)"
        )
    if question.needs.first is not None:
        yield (
            "beside published runs, times to the first token were predicted too short: leave room "
            "below the limit (docs/studies/serving_plans.md)"
        )
    if policy.drafting is not None:
        yield (
            f"the acceptance rate of {policy.drafting.accepted:g} is yours: "
            f"{policy.tokens:.3g} tokens per pass as expected, for every sequence alike"
        )
    if able:
        yield from _host(question, able)


def _host(question: ServingQuestion, rows: Sequence[ServingRow]) -> Iterator[str]:
    from optkit.facts.precisions import precision
    from optkit.ground.devices import target as find_target

    widest = max(rows, key=lambda row: precision(row.precision).weight_bits)
    weights = memory.decoder_weights(question.shape, numbers_of(precision(widest.precision)))
    fact = find_target(widest.target).facts.get("pcie_gbs")
    text = f"storage: each copy reads {weights / 1e9:,.3g} GB of weights when it starts"
    if fact is not None and fact.value:
        rate = float(fact.value) * (widest.tensor or 1) * (widest.pipeline or 1)
        text += f", for at least {weights / 1e9 / rate:.2g} s over the PCIe of {widest.target}"
    yield f"{text}; a start from a network takes as long as the network needs"
    prompt, new = question.load.means
    size = question.load.rate * (prompt + new) * 4 / 1e6
    yield f"PCIe: tokens of all requests are {size:.2g} MB/s, no load for a host"
    yield (
        "NUMA: optkit does not know the nodes of your host; run each copy on the cores and memory "
        "next to its devices (`nvidia-smi topo -m`)"
    )
