"""Seconds that work takes on a target: a roofline with efficiencies that were fitted to published
measurements (`experiments/prediction/`), and what a roofline leaves out.

    t = max(C, M) + (1 − overlap) · min(C, M) + D + L          per kernel
    C = operations / (peak · power · eta_kind · own · fill)    tensor cores
    M = bytes from memory / (bandwidth · eta_memory) + bytes from L2 / L2 bandwidth
    D = unpacked weights · cycles / (lanes · clock)            dequantization of weights
    L = kernels · cycles per kernel · own / clock              launch, ramp and drain

`own`: of the generation of devices, 1 where no measurement says otherwise.
`power`: a board of little power cannot hold its clock: TDP / (watts its peak asks for).
`fill`: tiles over SMs; the last wave runs half empty. Activations of b bytes stay in an L2 cache of
c bytes to the share c / (c + b), weights likewise by their total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Literal, NamedTuple

from optkit.craft.prediction.card_kernels import group
from optkit.craft.prediction.work import BITS, Work
from optkit.facts.documents.plan import Bound
from optkit.facts.errors import ToolchainMissing
from optkit.ground.devices import Target

_LANES = 64  # INT32 lanes per SM from 7.5 to 9.0: NVIDIA's architecture papers
_TILE = (128, 64)  # rows and columns per thread block of a common GEMM kernel, unverified
_L2_PER_CLOCK = 32.0  # bytes per SM and clock, unverified
# Kernels that unpack weights do so for each row they multiply, up to the height of one tile. Not
# fitted: set so that INT4 loses on an H200 at batch 8 as published (0.75x;
# `docs/studies/prediction.md`).
_UNPACK_ROWS = 8.0
_CLOCK = 1.7e9  # where a target names none, unverified

# Watts that a TFLOP/s of FP16 takes at full load; 8-bit numbers half of it. 8.9: 72 W and the
# 87 TFLOP/s that a forum's GEMM test reached on an L4 (targets/l4.yaml `sustained`). The others:
# of the board of that generation that has the most power per peak, unverified.
_WATTS = {
    "7.5": 1.75,
    "8.0": 1.28,
    "8.6": 1.6,
    "8.7": 1.4,
    "8.9": 0.83,
    "9.0": 0.71,
    "10.0": 0.45,
    "12.0": 0.83,
}


@dataclass(frozen=True)
class Efficiencies:
    """The fitted numbers; see the formula above for what each does. `sequence_us`: what the host
    spends per sequence and step of a decoder that serves many. `own`: what some of them are
    multiplied by on a generation of devices, by the names of `generation_keys`."""

    gemm: float
    conv: float
    attention: float
    memory: float
    overlap: float
    kernel_cycles: float
    unpack_cycles: float
    sequence_us: float
    own: Mapping[str, float] = field(default_factory=dict)


class WorkTime(NamedTuple):
    """Where the time goes; `total` is less than the sum where computing and moving overlap."""

    total: float
    compute: float
    memory: float
    unpack: float
    launch: float
    link: float

    @property
    def parts(self) -> dict[Bound, float]:
        return {
            "compute": self.compute,
            "memory": self.memory,
            "unpack": self.unpack,
            "launch": self.launch,
            "link": self.link,
        }

    @property
    def bound(self) -> Bound:
        """The largest part."""
        return longest(self.parts)


def longest(parts: Mapping[Bound, float]) -> Bound:
    return max(parts, key=lambda name: parts[name])


def seconds(
    works: Sequence[Work], target: Target, eff: Efficiencies, *, watts: float | None = None
) -> WorkTime:
    """Time of `works`, one after another. `watts`: a power limit other than the target's TDP.

    Raises ToolchainMissing where the target's peak, bandwidth or link is unknown.
    """
    times = list(zip(works, of_each(works, target, eff, watts=watts), strict=True))
    return WorkTime(
        *(sum(work.times * time[i] for work, time in times) for i in range(len(WorkTime._fields)))
    )


def of_each(
    works: Sequence[Work], target: Target, eff: Efficiencies, *, watts: float | None = None
) -> list[WorkTime]:
    """Time of one kernel of each of `works`; arguments and errors as of `seconds`."""
    ideals = ideal(works, target, watts=watts)
    return [
        _on_card(work, _taken(work, one, eff, generation_keys(work, target)), target)
        for work, one in zip(works, ideals, strict=True)
    ]


class Ideal(NamedTuple):
    """Seconds of one kernel at full efficiency: of its products at the peak that the board's power
    holds, of its bytes from memory and from the L2 cache; of `unpack` and `launch` per cycle."""

    compute: float
    memory: float
    cached: float
    unpack: float
    launch: float
    link: float


def ideal(works: Sequence[Work], target: Target, *, watts: float | None = None) -> list[Ideal]:
    """Of one kernel of each of `works`; arguments and errors as of `seconds`."""
    device = _device(target, watts)
    held = sum(work.weight_bytes * work.times for work in works)
    return [_ideal(work, device, held) for work in works]


def generation_keys(work: Work, target: Target) -> tuple[str, str]:
    """Where `own` has the factors of the target's generation: of the efficiency of these products
    (empty: there are none), and of the cycles of a launch. Convolutions and attention have one for
    all types; matrix products one for each, and BF16 is as FP16."""
    generation = target.compute_capability or ""
    dtype = f" {'fp16' if work.dtype == 'bf16' else work.dtype}" if work.kind == "gemm" else ""
    products = f"{work.kind}{dtype} {generation}" if work.kind != "elementwise" else ""
    return products, f"launch {generation}"


def _on_card(work: Work, time: WorkTime, target: Target) -> WorkTime:
    """The time as kernels that were measured on this card correct it; see `card_correction`."""
    factors = None if target.card is None else target.card.groups.get(group(work) or "")
    if factors is None:
        return time
    a, b = factors.launch, factors.body
    total = b * (time.total - time.launch) + a * time.launch
    return WorkTime(total, b * time.compute, b * time.memory, b * time.unpack, a * time.launch, 0.0)


@dataclass(frozen=True)
class _Device:
    """What the formula reads of a target."""

    target: Target
    bandwidth: float
    l2: float
    sms: int
    clock: float
    watts: float | None

    def rate(self, dtype: str, kind: str) -> float:
        """Operations per second that the board's power holds. TensorRT's FP16 convolutions and
        fused attention add up in FP16 unless told otherwise (`context_fmha_fp32_acc` of
        TensorRT-LLM), which GeForce does at twice the rate of its peak."""
        if kind in ("conv", "attention"):
            peak = highest_peak(self.target, dtype)
        else:
            peak = _peak(self.target, dtype)
        per = _WATTS.get(self.target.compute_capability or "")
        if per is None or self.watts is None:
            return peak
        return min(peak, self.watts / (per * BITS[dtype] / 16) * 1e12)


def highest_peak(target: Target, dtype: str) -> float:
    """Operations per second, in FP16 those that add up in FP16. Raises ToolchainMissing where it is
    unknown."""
    halved = target.facts.get("fp16_acc16_tflops")
    if dtype == "fp16" and halved is not None and halved.value:
        return float(halved.value) * 1e12
    return _peak(target, dtype)


def _peak(target: Target, dtype: str) -> float:
    peak = target.peak(dtype)
    if peak is None:
        raise ToolchainMissing(f"no peak is known for {dtype}", where=target.name)
    return peak


def _device(target: Target, watts: float | None) -> _Device:
    if target.bandwidth is None:
        raise ToolchainMissing("no memory bandwidth is known", where=target.name)
    clock = target.facts.get("boost_mhz")
    return _Device(
        target,
        target.bandwidth,
        float(target.l2_bytes or 0),
        target.sm_count or 1,
        _CLOCK if clock is None or clock.value is None else float(clock.value) * 1e6,
        watts or target.tdp_w,
    )


def _ideal(work: Work, device: _Device, held: float) -> Ideal:
    """`held`: weight bytes of the whole run."""
    compute = 0.0
    if work.operations:
        compute = work.operations / device.rate(work.dtype, work.kind) / _fill(work, device.sms)
    kept = work.moved * _share(device.l2, work.moved) + work.weight_bytes * _share(device.l2, held)
    fetched = work.moved + work.weight_bytes + work.streamed - kept
    again = min(max(work.rows, 1.0), _UNPACK_ROWS)
    return Ideal(
        compute,
        fetched / device.bandwidth,
        (kept + work.reread) / (device.sms * device.clock * _L2_PER_CLOCK),
        work.unpacked * again / (device.sms * _LANES * device.clock),
        work.kernels / device.clock,
        work.linked / link_of(device.target, work.devices).rate if work.linked else 0.0,
    )


def _taken(work: Work, one: Ideal, eff: Efficiencies, keys: tuple[str, str]) -> WorkTime:
    own, launched = (eff.own.get(key, 1.0) for key in keys)
    etas = {"gemm": eff.gemm, "conv": eff.conv, "attention": eff.attention, "elementwise": 1.0}
    compute = one.compute / min(1.0, etas[work.kind] * own)
    memory = one.memory / eff.memory + one.cached
    unpack, launch = one.unpack * eff.unpack_cycles, one.launch * eff.kernel_cycles * launched
    overlap = 1.0 if work.kind == "conv" else eff.overlap
    both = max(compute, memory) + (1 - overlap) * min(compute, memory)
    return WorkTime(both + unpack + launch + one.link, compute, memory, unpack, launch, one.link)


def _share(cache: float, size: float) -> float:
    return cache / (cache + size) if size else 0.0


def _fill(work: Work, sms: int) -> float:
    """Tiles over what the waves could hold; a product of few tiles is split along its inner axis,
    which gives half of what is missing back."""
    if not work.rows:
        return 1.0
    tiles = ceil(work.rows / _TILE[0]) * ceil(work.columns / _TILE[1])
    full = tiles / (ceil(tiles / sms) * sms)
    return (1 + full) / 2 if tiles > sms else sqrt(full)


Fabric = Literal["NVLink", "Infinity Fabric", "PCIe"]


class Interconnect(NamedTuple):
    """What devices exchange data over. `rate`: bytes per second to a neighbour, one direction;
    `joined`: how many devices NVLink or Infinity Fabric joins, 1 where there is none; `figures`:
    the target's own, that this rests on."""

    name: Fabric
    rate: float
    joined: int
    figures: tuple[str, ...]


def link_of(target: Target, devices: int) -> Interconnect:
    """NVLink or Infinity Fabric where it joins so many devices (a bridge: two boards, a switch:
    those of one machine), else PCIe. Raises ToolchainMissing where that is not known."""

    def value(name: str) -> float:
        fact = target.facts.get(name)
        return 0.0 if fact is None or fact.value is None else float(fact.value)

    bridged, joined = value("nvlink_gbs"), max(1, round(value("nvlink_gpus")))
    decides = ("nvlink_gbs", "nvlink_gpus") if bridged else ("nvlink_gbs",)
    if bridged and devices <= joined:
        fabric: Fabric = "Infinity Fabric" if target.vendor == "amd" else "NVLink"
        return Interconnect(fabric, bridged * 1e9 / 2, joined, decides)
    if not value("pcie_gbs"):
        raise ToolchainMissing("no link to a second device is known", where=target.name)
    return Interconnect("PCIe", value("pcie_gbs") * 1e9, joined, (*decides, "pcie_gbs"))
