"""A decoder that serves: time to the first token, time per token, tokens per second, and the
batches at which the answer to "which precision" changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optkit.craft.prediction.card_correction import spread
from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape, prefill, step
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.graph_work import multiplies_in
from optkit.craft.prediction.work import total
from optkit.craft.prediction.work_time import WorkTime, seconds
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target

_LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Load:
    """What is asked of a decoder: prompts of `prompt` tokens, `new` tokens each, over `devices`."""

    prompt: int
    new: int
    devices: int = 1

    @property
    def context(self) -> float:
        """Mean length of a cache while tokens are written."""
        return self.prompt + self.new / 2


@dataclass(frozen=True)
class Generation:
    """Predicted for one batch. Seconds; `mfu`, `mbu`: of the decode step, 0 to 1, as defined in
    arXiv 2204.02311 (model FLOPs over the peak of the products' dtype) and by Databricks (weights
    and cache over the bandwidth). `spreads`: the factors within which the kernels of this card let
    the first token and the decode step be known."""

    first_token: float  # of one prompt alone
    prefill: WorkTime  # of all prompts of the batch
    decode: WorkTime  # one token for each sequence, without the host
    token: float  # the same with the host
    tokens_per_second: float  # written, prefill included
    mfu: float
    mbu: float
    operations: float  # of one step on one device
    bytes: float
    spreads: tuple[float, float]


def numbers_of(precision: Precision) -> DecoderPrecision:
    """How a decoder in that precision is stored. FP8 and FP4 engines keep their cache in FP8."""
    codes = precision.activations
    narrow = codes is not None and not codes.is_integer
    return DecoderPrecision(
        precision.weight_bits,
        multiplies_in(precision),
        precision.carrier,
        8 if narrow else 32 if precision.carrier == "fp32" else 16,
        precision.weight_codes_only,
    )


def generate(
    shape: DecoderShape, numbers: DecoderPrecision, target: Target, load: Load, batch: int
) -> Generation:
    """Raises ToolchainMissing where a peak, the bandwidth or a link of the target is unknown."""
    eff, n = fitted().efficiencies, load.devices
    first = prefill(shape, numbers, load.prompt, 1, devices=n)
    alone = seconds(first, target, eff)
    start = seconds(prefill(shape, numbers, load.prompt, batch, devices=n), target, eff)
    works = step(shape, numbers, load.context, batch, devices=n)
    each = seconds(works, target, eff)
    token = each.total + batch * eff.sequence_us * 1e-6
    sums = total(works)
    moved = sums.weight_bytes + sums.streamed
    peak, bandwidth = target.peak(numbers.dtype), target.bandwidth
    return Generation(
        alone.total,
        start,
        each,
        token,
        batch * load.new / (start.total + load.new * token),
        sums.operations / token / peak if peak else 0.0,
        moved / token / bandwidth if bandwidth else 0.0,
        sums.operations,
        moved,
        (spread(first, target), spread(works, target)),
    )


def compute_bound_from(
    shape: DecoderShape, numbers: DecoderPrecision, target: Target, load: Load
) -> int | None:
    """The smallest batch at which the products of a step multiply longer than they read; attention
    over the cache stays bound by memory. None: beyond every batch."""
    eff = fitted().efficiencies

    def multiplies_longer(batch: int) -> bool:
        works = step(shape, numbers, load.context, batch, devices=load.devices)
        found = seconds([w for w in works if w.kind == "gemm"], target, eff)
        return found.compute >= found.memory

    return _first(multiplies_longer)


def slower_from(
    shape: DecoderShape,
    numbers: DecoderPrecision,
    base: DecoderPrecision,
    target: Target,
    load: Load,
) -> int | None:
    """The smallest batch at which a step in `numbers` takes no less than one in `base`: where a
    smaller format stops paying. 1: it never pays. None: it always does."""
    eff = fitted().efficiencies

    def time(chosen: DecoderPrecision, batch: int) -> float:
        works = step(shape, chosen, load.context, batch, devices=load.devices)
        return seconds(works, target, eff).total

    return _first(lambda batch: time(numbers, batch) >= time(base, batch))


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest batch from 1 on that holds, seen on powers of two and then between two."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _LARGEST_BATCH:
            return None
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
