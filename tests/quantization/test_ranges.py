"""Ranges against sorting, brute force and slow, obvious implementations."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optkit.craft.calibration.fills import NO_FILLS
from optkit.craft.calibration.observer import Observer
from optkit.craft.calibration.part import SamplePart, data
from optkit.craft.quantization import ranges
from optkit.craft.quantization.numerics.format_codes import nearest
from optkit.craft.quantization.numerics.scales import activation_scale
from optkit.craft.quantization.ranges import choose, fake_quantized
from optkit.facts.errors import OptkitError
from optkit.facts.precisions import NumberFormat
from optkit.ground.statistics import MissingRange, ValueStatistics
from tests.quantization.workshop import relative_noise

S8 = NumberFormat("int8", "tensor", symmetric=True)
U8 = NumberFormat("uint8", "tensor", symmetric=False)
E4M3 = NumberFormat("float8e4m3fn", "tensor", symmetric=True)
FORMATS = pytest.mark.parametrize("fmt", [S8, U8, E4M3], ids=["s8", "u8", "e4m3"])

FLOATS = hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-8e6, 8e6, width=32))


def observed(x: np.ndarray, axis: int | None = None) -> ValueStatistics:
    part = SamplePart(0, [hashlib.sha256(row.tobytes()).digest() for row in x])
    observer = Observer(axis, rows=axis is not None)
    observer.update(data(x, part, NO_FILLS, axis), part)
    return observer.result()


def sample(kind: str) -> np.ndarray:
    random = np.random.default_rng(4)
    normal = random.standard_normal(40_000)
    x = {
        "normal": normal,
        "outliers": np.concatenate([normal, [300.0, -200.0]]),
        "relu": np.maximum(normal, 0),
        "skewed": np.exp(normal),
        "heavy": random.standard_t(2, 40_000),
        "uniform": random.uniform(-1, 3, 40_000),
    }[kind]
    return x.astype(np.float32)


KINDS = pytest.mark.parametrize(
    "kind", ["normal", "outliers", "relu", "skewed", "heavy", "uniform"]
)


@given(FLOATS, st.floats(50, 100))
def test_percentile_agrees_with_sorting_within_a_bin(x: np.ndarray, percentile: float) -> None:
    low, high = ranges.percentile_range(observed(x), S8, percentile)
    cut = int(x.size * (100 - percentile) / 200)  # so many may fall off at each end
    lowest, highest = (float(v) for v in np.sort(x)[[cut, x.size - 1 - cut]])
    slack = np.abs([lowest, highest]) / 128 + np.finfo(np.float32).smallest_normal
    assert max(lowest - slack[0], x.min()) <= low <= lowest
    assert highest <= high <= min(highest + slack[1], x.max())


def test_percentile_cuts_outliers_that_minmax_keeps() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    x[:3] = [1e4, -2e4, 3e4]
    value = observed(x)
    assert choose(value, S8, "minmax", 99.9)[:3] == (-2e4, 3e4, "minmax")
    assert choose(value, S8, "percentile", 100)[:2] == (-2e4, 3e4)
    found = choose(value, S8, "percentile", 99.9)
    assert found[:2] == pytest.approx(np.quantile(x, [0.0005, 0.9995]), rel=0.02)


def power(x: np.ndarray, low: float, high: float, fmt: NumberFormat) -> float:
    """Noise over signal of the elements themselves."""
    scale = activation_scale(low, high, fmt, np.float32)
    y = nearest(x / scale.scale, fmt, float(scale.zero_point)) * scale.scale
    return float(np.square(y - x, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())


@FORMATS
@KINDS
def test_mse_is_as_good_as_trying_everything(kind: str, fmt: NumberFormat) -> None:
    x = sample(kind)
    found = choose(observed(x), fmt, "mse")
    least = power(x, float(x.min()), float(x.max()), fmt)
    lows = [float(x.min()) * f for f in 0.5 ** np.linspace(0, 8, 33)]
    highs = [float(x.max()) * f for f in 0.5 ** np.linspace(0, 8, 33)]
    pairs = (
        zip(lows, highs, strict=True) if fmt.symmetric else ((a, b) for a in lows for b in highs)
    )
    least = min(least, *(power(x, a, b, fmt) for a, b in pairs))
    assert power(x, found.low, found.high, fmt) <= least * 1.03
    assert found.error == pytest.approx(power(x, found.low, found.high, fmt), rel=0.1)


def slow_divergence(x: np.ndarray, kept: int, bins: int) -> float:
    """KL as in TensorRT's talk, over numpy's own histogram, code by code: signed 8-bit codes of a
    symmetric range that keeps `kept` of `bins` bins on each side of zero."""
    largest = float(np.abs(x).max())
    width = largest / bins
    counts, borders = np.histogram(x.astype(np.float64), 2 * bins, (-largest, largest))
    inside = counts[bins - kept : bins + kept].astype(np.float64)
    p = inside.copy()
    p[0] += counts[: bins - kept].sum()
    p[-1] += counts[bins + kept :].sum()
    centres = (borders[:-1] + borders[1:])[bins - kept : bins + kept] / 2
    step = np.float32(kept * width / 127)
    codes = np.clip(np.rint(centres / step), -127, 127)
    q = np.zeros_like(p)
    for code in range(-127, 128):
        mine = (codes == code) & (inside > 0)
        if mine.any():
            q[mine] = inside[codes == code].sum() / mine.sum()
    p, q = (0.9999 * d / d.sum() + 1e-4 / len(d) for d in (p, q))
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_divergences_agree_with_a_slow_reference(kind: str) -> None:
    x = sample(kind)
    x = np.concatenate([x, -x])  # as wide on both sides
    value = observed(x)
    low, high = value.low, value.high
    for kept, candidate, divergence in ranges.divergences(value, S8, low, high):
        if kept % 256:
            continue
        assert candidate == pytest.approx((low * kept / 2048, high * kept / 2048))
        slow = slow_divergence(x, kept, 2048)  # its bins are cut from the numbers themselves
        assert divergence == pytest.approx(slow, rel=0.3, abs=0.015)


@FORMATS
@KINDS
def test_entropy_searches_and_stays_inside(kind: str, fmt: NumberFormat) -> None:
    value = observed(sample(kind))
    found = choose(value, fmt, "entropy")
    assert min(value.low, 0) <= found.low <= 0 <= found.high <= value.high
    if kind == "outliers" and fmt is not E4M3:
        assert (
            3 < found.high < 30
        )  # their bins are cut anew: 300 / 2048 is no fine grid for the rest
    if kind in ("relu", "uniform"):
        assert found.high > 0.75 * value.high  # zeros, though many, do not count
    width = max(-min(value.low, 0.0), value.high) / ranges.BINS
    tried = list(ranges.divergences(value, fmt, min(value.low, 0.0), value.high))
    best = min(tried, key=lambda candidate: candidate[2])
    assert len(tried) == 121
    if best[0] > 128:
        assert (found.low, found.high) == pytest.approx(best[1], abs=width)


@FORMATS
def test_auto_has_the_least_error_of_the_products(fmt: NumberFormat) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((500, 16)).astype(np.float32)
    x[:, 3] *= 60
    blind = random.standard_normal((16, 8)).astype(np.float32)
    blind[3] = 0  # the weights do not read the channel with the large numbers
    value = observed(x, axis=-1)
    for weights in ([blind], [blind, np.eye(16, dtype=np.float32)]):
        found = choose(value, fmt, "auto", 99.9, weights)
        for method in ("minmax", "percentile", "entropy", "mse"):
            other = choose(value, fmt, method, 99.9, weights)  # type: ignore[arg-type]
            assert found.error <= other.error
            y = np.concatenate([x @ w for w in weights], axis=1)
            noisy = fake_quantized(x, other.low, other.high, fmt)
            plain = relative_noise(y, np.concatenate([noisy @ w for w in weights], axis=1))
            assert other.error >= 0.999 * plain  # and what clipping cuts from rows not kept
            assert method != "minmax" or other.error < 3 * plain
    if fmt is S8:
        assert choose(value, fmt, "auto", 99.9, [blind]).method != "minmax"


def test_auto_without_products_is_mse() -> None:
    value = observed(sample("normal"))
    assert choose(value, S8, "auto") == choose(value, S8, "mse")
    assert choose(value, S8, "auto", consumers=[np.ones((3, 2), np.float32)]).method == "mse"


@FORMATS
@given(x=FLOATS)
@settings(max_examples=12, deadline=None)
def test_every_method_gives_a_finite_range_inside_the_extremes(
    fmt: NumberFormat, x: np.ndarray
) -> None:
    value = observed(x)
    for method in ("minmax", "percentile", "entropy", "mse", "auto"):
        found = choose(value, fmt, method)  # type: ignore[arg-type]
        assert np.isfinite(found[:2]).all() and np.isfinite(found.error) and found.error >= 0
        assert min(value.low, 0.0) <= found.low <= found.high <= max(value.high, 0.0) or (
            method in ("minmax", "percentile")
            and value.low <= found.low <= found.high <= value.high
        )
        scale = activation_scale(found.low, found.high, fmt, np.float16)
        assert np.isfinite(scale.scale) and scale.scale > 0


@pytest.mark.parametrize("number", [0.0, 0.25, -3.0, 1e-40])
def test_a_constant_keeps_its_number(number: float) -> None:
    value = observed(np.full(50, number, np.float32))
    for method in ("minmax", "percentile", "entropy", "mse", "auto"):
        found = choose(value, S8, method)  # type: ignore[arg-type]
        assert found.low == found.high == np.float32(number)


def test_an_unbounded_value_has_no_range() -> None:
    value = replace(observed(sample("normal")), verdict=MissingRange(3, "NaN"))
    with pytest.raises(OptkitError, match="NaN in sample 3"):
        choose(value, S8, "minmax")


def images(values: np.ndarray) -> np.ndarray:
    """Half background of the least value, the rest anything up to the largest, [n, 2]."""
    random = np.random.default_rng(2)
    x = random.uniform(values[0], values[1], (600, 2))
    x[random.random((600, 2)) < 0.5] = values[0]
    x[0] = values
    return x.astype(np.float32)


@pytest.mark.parametrize("fmt", [S8, U8], ids=["s8", "u8"])
@given(low=st.floats(-1.9, -0.1), high=st.floats(2, 9))
@settings(max_examples=40, deadline=None)
def test_minmax_is_never_narrower_or_worse(fmt: NumberFormat, low: float, high: float) -> None:
    x = images(np.array([low, high]))
    value = observed(x, axis=-1)
    found = choose(value, fmt, "minmax")
    assert value.low * (1 + 1 / 64) <= found.low <= value.low
    assert value.high <= found.high <= value.high * (1 + 1 / 64)
    assert lost(x, found.low, found.high, fmt) <= lost(x, value.low, value.high, fmt)


@pytest.mark.parametrize("fmt", [S8, U8], ids=["s8", "u8"])
def test_a_value_that_recurs_gets_a_code_of_its_own(fmt: NumberFormat) -> None:
    x = images(np.array([-0.3 / 0.35, 0.7 / 0.35]))  # between two codes of either format
    value = observed(x, axis=-1)
    found = choose(value, fmt, "minmax")
    assert lost(x, found.low, found.high, fmt) < 0.5 * lost(x, value.low, value.high, fmt)


def lost(x: np.ndarray, low: float, high: float, fmt: NumberFormat) -> float:
    return float(np.square(fake_quantized(x, low, high, fmt) - x).sum())


@FORMATS
@KINDS
def test_where_nothing_recurs_the_extremes_are_kept(kind: str, fmt: NumberFormat) -> None:
    x = sample(kind)
    value = observed(x.reshape(-1, 2), axis=-1)
    assert choose(value, fmt, "minmax")[:2] == (x.min(), x.max())


def test_a_percentile_that_falls_between_two_bins_cuts_all_of_the_lower_one() -> None:
    """80 % of ten: one element falls off at each end, here the only one of its bin."""
    x = np.array([-1.0, *[1.0] * 8, 3.0], np.float32)
    low, high = ranges.percentile_range(observed(x), S8, 80)
    assert low == pytest.approx(1, rel=1 / 64) and high == pytest.approx(1, rel=1 / 64)


def test_a_few_outliers_do_not_decide_how_finely_entropy_sees() -> None:
    x = np.concatenate([sample("normal"), [1e3, -900]]).astype(np.float32)
    assert ranges.entropy(observed(x), S8, 0)[1] < 20  # 128 bins of 2,048 reach 62


def test_extremes_that_no_kept_row_has_count_against_clipping_them() -> None:
    """A channel once reached 50: a range up to 4 cuts 46 of it, once in all rows seen."""
    x = np.random.default_rng(3).standard_normal((500, 16)).astype(np.float32)
    w = np.random.default_rng(4).standard_normal((16, 8)).astype(np.float32)
    value = observed(x, axis=-1)
    assert value.channels is not None and value.rows is not None
    seen = value.channels.high.copy()
    seen[2] = 50
    wider = replace(value, high=50.0, channels=replace(value.channels, high=seen))
    plain, found = (choose(one, S8, "percentile", 99.9, [w]) for one in (value, wider))
    rows = value.rows.data
    cut = (50 - found.high) ** 2 / value.channels.count
    lost = np.sqrt(cut) * np.broadcast_to(w[2], (len(rows), 8))
    assert found.high < 5
    assert found.error - plain.error >= 0.9 * relative_noise(rows @ w, rows @ w + lost)


def test_data_not_seen_yet_counts_against_clipping() -> None:
    """Rows fit a range, but their tails go on: what they will lose is in its error."""
    x = np.random.default_rng(5).exponential(1, (200, 4)).astype(np.float32)
    w = np.eye(4, dtype=np.float32)
    value = observed(x, axis=-1)
    found = choose(value, U8, "minmax", consumers=[w])
    rounding = fake_quantized(x, found.low, found.high, U8) - x
    assert found.error > 2 * relative_noise(x, x + rounding)


def test_a_range_is_chosen_once_for_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other number, weight or setting makes another choice."""
    monkeypatch.setattr(ranges, "_CHOSEN", {})
    monkeypatch.setattr(ranges, "minmax", lambda value, fmt: counted.append(value) or (-1.0, 1.0))
    counted: list[ValueStatistics] = []
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 8)).astype(np.float32), rng.standard_normal((8, 4))
    value = observed(x, axis=1)
    assert value.rows is not None and value.channels is not None
    assert choose(value, U8, "minmax", consumers=[w]) == choose(value, U8, "minmax", consumers=[w])
    assert len(counted) == 1
    wider = replace(value.channels, high=value.channels.high + 1)
    others = replace(value.rows, data=value.rows.data + 1)
    choose(replace(value, low=value.low - 1), U8, "minmax", consumers=[w])
    choose(replace(value, counts=value.counts + 1), U8, "minmax", consumers=[w])
    choose(replace(value, bins=value.bins + 1), U8, "minmax", consumers=[w])
    choose(replace(value, channels=wider), U8, "minmax", consumers=[w])
    choose(replace(value, rows=others), U8, "minmax", consumers=[w])
    choose(replace(value, rows=None), U8, "minmax", consumers=[w])
    choose(value, S8, "minmax", consumers=[w])
    choose(value, U8, "minmax", 99.0, consumers=[w])
    choose(value, U8, "minmax", consumers=[w + 1])
    choose(value, U8, "minmax", consumers=[w, w])
    assert len(counted) == 11
