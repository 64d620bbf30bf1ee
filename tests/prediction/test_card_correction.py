"""What kernels that were measured on a card change in its predictions. The kernels of the H200 were
measured (experiments/gpu/results.json); the other cards are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median
from types import MappingProxyType

import numpy as np
import pytest

from optkit.craft.prediction import card_correction
from optkit.craft.prediction.call import call
from optkit.craft.prediction.card_correction import correction, spread
from optkit.craft.prediction.card_kernels import group, kernels, products, work_of
from optkit.craft.prediction.fitted import UNSEEN, fitted
from optkit.craft.prediction.work import Work, gemm
from optkit.craft.prediction.work_time import of_each
from optkit.facts.card_facts import CardCorrection, CardFactors, KernelTime
from optkit.ground.devices import Target, target
from tests.conftest import ROOT

H200, L4 = target("h200-sxm"), target("l4")
HALVES = 20


def corrected(times: Sequence[KernelTime], device: Target) -> Target:
    return replace(device, card=CardCorrection("", "told", correction(times, device)))


def seconds(work: Work, device: Target) -> float:
    return of_each([work], device, fitted().efficiencies)[0].total


def h200() -> list[KernelTime]:
    told = json.loads((ROOT / "experiments/gpu/results.json").read_text())
    (check,) = (one for one in told["checks"] if one["check"] == "predictor")
    ms = {row["kernel"]: row["ms"] for row in check["figures"]["rows"]}
    return [KernelTime(kernel, ms[kernel.name]) for kernel in products(H200)]


def test_half_of_the_kernels_of_an_h200_predict_the_other_half() -> None:
    """In random halves. The fit alone is 26 % off in the median, and holds 56 of 100. `inside`: the
    interval that a prediction states, in each half; `alone`: that of the kernels, in the mean."""
    times, inside, alone, off = h200(), [], [], []
    assert len(times) == 100
    for seed in range(HALVES):
        order = np.random.default_rng(seed).permutation(len(times))
        card = corrected([times[i] for i in order[:50]], H200)
        held = 0
        for one in (times[i] for i in order[50:]):
            work = work_of(one.kernel)
            found, width = call([work], card, 1, 0.0), spread([work], card)
            held += found.interval.low <= one.ms / 1e3 <= found.interval.high
            ratio = 1e3 * found.total / one.ms
            alone.append(1 / width <= ratio <= width)
            off.append(abs(ratio - 1))
        inside.append(held / 50)
    assert min(inside) >= 0.8, inside
    assert mean(alone) >= 0.8 and median(off) < 0.17


def test_a_card_that_is_the_fit_is_not_corrected() -> None:
    times = [KernelTime(one, 1e3 * seconds(work_of(one), L4)) for one in kernels(L4)]
    for factors in correction(times, L4).values():
        assert (factors.launch, factors.body) == (1, 1)
        assert factors.width == (card_correction._NARROWEST if factors.kernels
                                 else fitted().widths[UNSEEN])  # fmt: skip


def test_a_slower_precision_is_predicted_slower() -> None:
    """INT8 takes thrice, what is not measured goes with FP16, and copies take double."""
    factor = {"gemm int8": 3.0, "copy fp16": 2.0, "conv fp16": 1.5}
    times = []
    for kernel in kernels(L4):
        work = work_of(kernel)
        if kernel.precision != "fp8":
            ms = 1e3 * seconds(work, L4) * factor.get(group(work) or "", 1.0)
            times.append(KernelTime(kernel, ms))
    card = corrected(times, L4)
    for work, expected in (
        (gemm(512, 2048, 2048, dtype="int8", weight_bits=8), 3.0),
        (gemm(512, 2048, 2048, dtype="fp16", weight_bits=16), 1.0),
        (gemm(512, 2048, 2048, dtype="bf16", weight_bits=16), 1.0),
        (gemm(512, 2048, 2048, dtype="fp8", weight_bits=8), 1.0),
        (gemm(1, 2048, 2048, dtype="fp16", weight_bits=4.25, weight_only=True), 1.0),
        (Work("conv", "fp16", 1e10, moved=1e7, rows=1e5, columns=64), 1.5),
        (Work("conv", "int8", 1e10, moved=1e7, rows=1e5, columns=64), 1.5),
        (Work("elementwise", "fp16", moved=1e8), 2.0),
        (Work("attention", "fp16", 1e8, streamed=1e8), 2.0),  # it reads a cache
        (Work("attention", "fp16", 1e10, moved=1e7), 1.0),
    ):
        ratio = seconds(work, card) / seconds(work, L4)
        # drawn towards 1: a few equal kernels say as much as many
        assert ratio == pytest.approx(expected, rel=0.08), work


def test_what_devices_exchange_is_not_corrected() -> None:
    times = [KernelTime(one, 2e3 * seconds(work_of(one), H200)) for one in kernels(H200)]
    linked = Work("elementwise", "fp16", linked=1e8, devices=2)
    assert seconds(linked, corrected(times, H200)) == seconds(linked, H200)


def test_too_few_kernels_correct_nothing() -> None:
    few = [one for one in h200() if one.kernel.kind == "conv"][: card_correction._FEWEST - 1]
    assert correction(few, H200) == {}


def of(width: float) -> Target:
    factors = {"gemm fp16": CardFactors(1.0, 1.0, width, 20)}
    return replace(L4, card=CardCorrection("", "told", MappingProxyType(factors)))


def test_errors_of_different_kernels_cancel_and_those_of_equal_ones_do_not() -> None:
    one = gemm(512, 2048, 2048, dtype="fp16", weight_bits=16)
    other = gemm(2048, 512, 2048, dtype="fp16", weight_bits=16)
    beside = Work("conv", "fp16", 1e12)
    assert spread([one], L4) == 1
    assert spread([one], of(2.0)) == pytest.approx(2)
    assert spread([replace(one, times=7), one], of(2.0)) == pytest.approx(2)
    assert 2**0.7 < spread([one, other], of(2.0)) < 2**0.8
    assert 1 < spread([one, beside], of(2.0)) < 1.2  # of which the kernels say nothing


def test_an_interval_is_the_fits_or_the_wider_one_of_the_kernels() -> None:
    works = [gemm(512, 2048, 2048, dtype="fp16", weight_bits=16)]
    plain, narrow, wide = (call(works, device, 1, 0.0) for device in (L4, of(1.1), of(3.0)))
    assert narrow.interval == plain.interval
    assert wide.kernels.high == pytest.approx(3 * wide.time.total)
    assert wide.kernels.low == pytest.approx(wide.time.total / 3)
