"""One call of a model: its time with an interval, and the speedup over another model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optkit.craft.prediction import graph_work
from optkit.craft.prediction.card_correction import spread, widened
from optkit.craft.prediction.fitted import UNSEEN, fitted
from optkit.craft.prediction.lower_bound import at_least
from optkit.craft.prediction.work import Work
from optkit.craft.prediction.work_time import WorkTime, seconds
from optkit.facts.documents.plan import Bound
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency
from optkit.ground.devices import Target

_PCIE = 0.8  # of the link's rate that copies reach, unverified


@dataclass(frozen=True)
class Call:
    """Seconds of one call of `batch` samples. A call waits for its copies; of many calls, the
    copies run beside the next call, and set the pace where they take longer.

    time        of the kernels, with its parts
    copies      inputs to the device and outputs back, over PCIe
    kernels     the interval of `time.total` that nine of ten measurements lay in
    least       what no kernels can be faster than, without copies
    kind        of the measured models that this one is like; `unseen` where no measurement covers
                the model or its generation of devices
    """

    batch: int
    time: WorkTime
    copies: float
    kernels: Interval
    least: float
    kind: str

    @property
    def total(self) -> float:
        return self.time.total + self.copies

    @property
    def bound(self) -> Bound:
        """The largest part."""
        return "pcie" if self.copies > self.time.total else self.time.bound

    @property
    def interval(self) -> Interval:
        """Of `total`."""
        return Interval(self.kernels.low + self.copies, self.kernels.high + self.copies)

    @property
    def throughput(self) -> float:
        """Samples per second of one call after the other."""
        return self.batch / max(self.time.total, self.copies)

    @property
    def throughput_interval(self) -> Interval:
        slow, fast = max(self.kernels.high, self.copies), max(self.kernels.low, self.copies)
        return Interval(self.batch / slow, self.batch / fast)


def call(
    works: Sequence[Work], target: Target, batch: int, passed: float, *, known: bool = True
) -> Call:
    """`works`: of the whole batch; `passed`: bytes of its inputs and outputs; `known`: whether all
    of its operators are counted.

    The interval is that of the measured kind of models that this one is like; of a generation of
    devices or a kind of model that no measurement covers it is wider, as it is where the kernels
    of this card scatter more. Raises ToolchainMissing where a figure of the target is unknown.
    """
    time = seconds(works, target, fitted().efficiencies)
    covered = known and target.compute_capability in fitted().generations
    kind = graph_work.category(works) if covered else UNSEEN
    kernels = widened(fitted().band(kind, time.total), time.total, spread(works, target))
    copied = copies(target, passed) or 0.0
    return Call(batch, time, copied, kernels, at_least(works, target), kind)


def copies(target: Target, passed: float) -> float | None:
    """Seconds to copy so many bytes of inputs and outputs; None without a link, as on a CPU."""
    link = target.facts.get("pcie_gbs")
    return passed / (float(link.value) * 1e9 * _PCIE) if link and link.value else None


def latency(one: Call, note: str) -> Latency:
    """As a build records it. `note`: what the prediction rests on."""
    return Latency(
        evidence=Evidence.PREDICTED,
        p50_ms=one.total * 1e3,
        batch=one.batch,
        throughput=one.throughput,
        band=Interval(one.interval.low * 1e3, one.interval.high * 1e3),
        at_least_ms=(one.least + one.copies) * 1e3,
        note=note,
    )


def speedup(baseline: Latency, candidate: Latency, kind: str) -> Difference:
    """Of two predicted latencies of one model on one device, of that kind of `Call`. Errors that
    both share cancel, so the interval is that of ratios of measurements of this kind, narrower than
    the ratio of both bands."""
    value = baseline.p50_ms / candidate.p50_ms
    return Difference(value, fitted().ratio_band(kind, value), Evidence.PREDICTED)
