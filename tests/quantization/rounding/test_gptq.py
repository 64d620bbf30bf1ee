"""GPTQ against the algorithm as published, row by row, and against what defines it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.numerics.format_codes import decode, encode
from optkit.craft.quantization.numerics.scales import carried, expand, weight_scale
from optkit.craft.quantization.rounding import quantease
from optkit.craft.quantization.rounding.gptq import Rows, gptq
from optkit.craft.quantization.rounding.rtn import channels, round_to_nearest
from optkit.craft.quantization.rounding.triangular_factor import Dense, FewRows
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS, Codes, NumberFormat

INT4 = NumberFormat("int4", "block", True, block_size=16)
FORMATS = {
    "int8": NumberFormat("int8", "channel", True),
    "int8 per tensor": NumberFormat("int8", "tensor", True),
    "int4": INT4,
    "int4 signed": replace(INT4, signed_scale=True),
    "uint4": NumberFormat("uint4", "block", False, block_size=32),
    "fp8": NumberFormat("float8e4m3fn", "channel", True),
    "nf4": NumberFormat("nf4", "block", True, block_size=32),
    "nvfp4": NumberFormat("float4e2m1", "block", True, block_size=16),
}


def layer(k: int, n: int, seed: int = 0, samples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Weights and second moments of correlated inputs of unlike sizes."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((max(k // 3, 1), k)) + 0.3 * rng.standard_normal((1, k))
    x = rng.standard_normal((samples, len(mix))) @ mix + 0.5 * rng.standard_normal((samples, k))
    x *= np.exp(0.7 * rng.standard_normal(k))
    w = (rng.standard_t(5, (k, n)) * 0.05).astype(np.float32)
    return w, (x.T @ x / samples).astype(np.float32)


def lost(w: np.ndarray, back: np.ndarray, h: np.ndarray) -> float:
    d = (w - back).astype(np.float64)
    return float(np.trace(d.T @ h.astype(np.float64) @ d))


@given(
    columns=st.integers(3, 9), rows=st.integers(1, 60), damping=st.sampled_from([0.01, 0.05]),
    seed=st.integers(0, 99), name=st.sampled_from(["int8", "int8 per tensor", "int4", "fp8"]),
)  # fmt: skip
@settings(max_examples=40)
def test_few_rows_are_solved_as_their_second_moments(
    columns: int, rows: int, damping: float, seed: int, name: str
) -> None:
    """The factor of n rows is that of their K x K second moments in float64, also where the last
    block has fewer rows, and where inputs are zero, equal or of very unlike sizes."""
    rng = np.random.default_rng(seed)
    k = rows * columns + int(rng.integers(0, 5))
    k += -k % 16
    x = (rng.standard_normal((rows, k)) * np.exp(rng.standard_normal(k) * 2)).astype(np.float32)
    x[:, rng.integers(0, k, 2)] = 0
    x[:, 0] = x[:, -1]
    w = (rng.standard_t(5, (k, 6)) * 0.05).astype(np.float32)
    exact = x.astype(np.float64).T @ x / rows
    scale = weight_scale(w, channels(FORMATS[name]), FORMATS[name], np.float32)
    (few,), (dense,) = (
        gptq([w], inputs, FORMATS[name], np.float32, scales=[scale], damping=damping)
        for inputs in (Rows(x), exact)
    )
    same = few.codes.view(np.uint8) == dense.codes.view(np.uint8)
    assert same.mean() > 0.98  # a target in the middle between two codes goes to either
    assert few.error == pytest.approx(dense.error, rel=1e-2, abs=1e-9)


def test_the_factor_of_few_rows_has_blocks_like_the_dense_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 300)).astype(np.float32)
    few, dense = FewRows.of(x, 0.05), Dense.of(x.astype(np.float64).T @ x / 40, 0.05)
    np.testing.assert_array_equal(few.order, dense.order)
    np.testing.assert_allclose(few.pivots, dense.pivots, rtol=1e-4)
    difference = rng.standard_normal((300, 7)).astype(np.float32)
    for start in range(0, 300, quantease.ROWS):
        rows = slice(start, min(start + quantease.ROWS, 300))
        np.testing.assert_allclose(few.within(rows), dense.within(rows), atol=1e-4)
        ours, theirs = (one.before(rows, difference) for one in (few, dense))
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


def as_published(
    w: np.ndarray, h: np.ndarray, s: np.ndarray, z: np.ndarray, fmt: NumberFormat, damping: float
) -> np.ndarray:
    """Algorithm 1 of arXiv:2210.17323 without blocks, in float64: the inverse is formed, and after
    every row the error is spread over all later rows. Codes [K, N]."""
    k = len(w)
    order = np.argsort(-h.diagonal().astype(np.float64), kind="stable")
    h = h.astype(np.float64)[np.ix_(order, order)]
    h += damping * h.diagonal().mean() * np.eye(k)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T  # inv(h) = upper^T upper
    rest = w.astype(np.float64)[order]
    s, z = (np.broadcast_to(part, w.shape)[order].astype(np.float32) for part in (s, z))
    codes = np.empty(w.shape, encode(np.zeros(1, np.float32), fmt).dtype)
    for i in range(k):
        codes[order[i]] = encode((rest[i] / s[i]).astype(np.float32), fmt, z[i])
        value = decode(codes[order[i]], fmt, z[i]) * s[i]
        rest[i:] -= np.outer(upper[i, i:], (rest[i] - value) / upper[i, i])
    return codes


@pytest.mark.parametrize(
    "name", ["int8", "int8 per tensor", "int4", "int4 signed", "uint4", "fp8", "nf4", "nvfp4"]
)
@pytest.mark.parametrize("k", [24, 150])  # one block of rows, two of them
def test_codes_equal_the_published_algorithm(name: str, k: int) -> None:
    fmt, (w, h) = FORMATS[name], layer(k, 40, seed=k)
    (found,) = gptq([w], h, fmt, np.float32)
    s, z = (expand(part, fmt, k) for part in found.scale[:2])
    wanted = as_published(w, h, s, z, fmt, 0.01)
    same = (found.codes.view(np.uint8) == wanted.view(np.uint8)).all(axis=0)
    assert same.mean() > 0.97  # a tie that float32 decides otherwise changes the rest of a column
    ours, theirs = (
        lost(w, decode(codes, fmt, z.astype(np.float32)) * s, h) for codes in (found.codes, wanted)
    )
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_zero_points_lose_less_than_signed_scales(seed: int) -> None:
    """By 0.6 dB for weights of a normal distribution, in blocks of 32."""
    w, h = layer(256, 64, seed, samples=1000)
    w = np.random.default_rng(seed).standard_normal(w.shape).astype(np.float32)
    signed = NumberFormat("int4", "block", True, block_size=32, signed_scale=True)
    with_zeros, without = (
        gptq([w], h, fmt, np.float32, sweeps=2)[0].error for fmt in (FORMATS["uint4"], signed)
    )
    assert with_zeros is not None and without is not None
    assert with_zeros < 0.95 * without


@settings(deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 30))
def test_the_layers_error_is_lower_than_roundings(name: str, seed: int) -> None:
    fmt, (w, h) = FORMATS[name], layer(48, 24, seed)
    rounded = round_to_nearest(w, fmt, np.float16)
    (found,) = gptq([w], h, fmt, np.float16, scales=[rounded.scale])
    assert found.scale is rounded.scale
    assert (found.codes != rounded.codes).any()
    assert lost(w, found.dequantize(), h) < 0.8 * lost(w, rounded.dequantize(), h)
    assert found.error == pytest.approx(lost(w, found.dequantize(), h), rel=1e-3)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("search", ["absmax", "mse"])
def test_independent_inputs_leave_rounding_as_it_is(name: str, search: str) -> None:
    fmt, (w, _) = FORMATS[name], layer(160, 20)
    rounded = round_to_nearest(w, fmt, np.float16, search=search)  # type: ignore[arg-type]
    (found,) = gptq([w], np.eye(160, dtype=np.float32), fmt, np.float16, search=search)  # type: ignore[arg-type]
    assert np.array_equal(found.scale.scale, rounded.scale.scale)
    assert np.array_equal(found.codes.view(np.uint8), rounded.codes.view(np.uint8))


def test_weights_of_one_input_are_solved_as_if_alone() -> None:
    (a, h), (b, _) = layer(100, 30, seed=1), layer(100, 7, seed=2)
    together = gptq([a, b], h, INT4, np.float16, sweeps=1)
    for w, found in zip((a, b), together, strict=True):
        (alone,) = gptq([w], h, INT4, np.float16, sweeps=1)
        assert found.codes.flags.c_contiguous and found.codes.shape == w.shape
        assert (found.codes == alone.codes).mean() > 0.98
        assert found.error == pytest.approx(alone.error, rel=0.02)


def test_searched_scales_help() -> None:
    w, h = layer(192, 64, seed=3)
    (plain,) = gptq([w], h, INT4, np.float16, search="absmax")
    (searched,) = gptq([w], h, INT4, np.float16, search="mse")
    assert plain.error is not None and searched.error is not None
    assert searched.error < plain.error


def test_inputs_that_are_always_zero_keep_their_rounded_weights() -> None:
    w, h = layer(40, 12, seed=4)
    dead = [3, 17, 18]
    h[dead], h[:, dead] = 0, 0
    (found,) = gptq([w], h, FORMATS["int8"], np.float32)
    rounded = round_to_nearest(w, FORMATS["int8"], np.float32, scale=found.scale)
    assert np.array_equal(found.codes[dead], rounded.codes[dead])
    (nothing,) = gptq([w], np.zeros_like(h), FORMATS["int8"], np.float32, search="absmax")
    rounded = round_to_nearest(w, FORMATS["int8"], np.float32)
    assert np.array_equal(nothing.codes, rounded.codes) and nothing.error == pytest.approx(0)


def test_few_samples_are_damped() -> None:
    w, h = layer(96, 10, seed=5, samples=4)  # rank 4 of 96
    for damping in (0.01, 0.0):  # 0 is not positive definite: raised
        (found,) = gptq([w], h, INT4, np.float16, damping=damping)
        rounded = round_to_nearest(w, INT4, np.float16)
        assert lost(w, found.dequantize(), h) < 0.5 * lost(w, rounded.dequantize(), h)


def test_float64_moments_and_half_weights_are_taken() -> None:
    w, h = layer(64, 10, seed=6)
    w = w.astype(np.float16)
    one, other = (gptq([w], m, INT4, np.float16)[0] for m in (h, h.astype(np.float64)))
    assert np.array_equal(one.codes, other.codes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    w, h = layer(32, 4)
    broken = h.copy()
    broken[5, 5] = bad
    with pytest.raises(InputRefused, match="second moments"):
        gptq([w], broken, INT4, np.float16)
    w[9, 3] = bad
    with pytest.raises(InputRefused, match=r"\[9, 3\]"):
        gptq([w], h, INT4, np.float16)


def test_moments_that_are_none_are_refused() -> None:
    w, h = layer(32, 4)
    h[0, 1] = h[1, 0] = 1e9
    with pytest.raises(InputRefused, match="positive semidefinite"):
        gptq([w], h, INT4, np.float16)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 20))
def test_sweeps_lower_the_error_further(name: str, seed: int) -> None:
    fmt, (w, h) = FORMATS[name], layer(80, 16, seed)
    damped = h + 0.01 * h.diagonal().mean() * np.eye(80)
    errors, signs = [], []
    for sweeps in range(3):
        (found,) = gptq([w], h, fmt, np.float16, sweeps=sweeps)
        errors.append(lost(w, found.dequantize(), damped))
        signs.append(np.sign(found.scale.scale))
        assert found.error == pytest.approx(lost(w, found.dequantize(), h), rel=1e-3)
        s = found.scale.scale
        assert np.array_equal(signs[-1], signs[0])
        assert (s != 0).all() if fmt.signed_scale else (s > 0).all()
        if found.scale.outer is None:
            assert np.array_equal(s.astype(np.float16).astype(np.float32), s)
        else:
            assert np.array_equal(
                carried(s.astype(np.float64), np.float16, found.scale.outer)[0], s
            )
    for before, after in itertools.pairwise(errors):
        assert after <= before * (1 + 1e-4)
    assert errors[1] < errors[0]


def test_given_scales_stay_in_sweeps() -> None:
    w, h = layer(64, 16, seed=7)
    scale = weight_scale(w, 1, INT4, np.float16)
    (found,) = gptq([w], h, INT4, np.float16, scales=[scale], sweeps=2)
    assert found.scale is scale
    (before,) = gptq([w], h, INT4, np.float16, scales=[scale])
    assert found.error is not None and before.error is not None and found.error < before.error


def test_a_swept_code_is_the_best_for_the_others_as_they_are() -> None:
    fmt, (w, h) = FORMATS["int4"], layer(40, 6, seed=8)
    (found,) = gptq([w], h, fmt, np.float32, sweeps=30, damping=1e-6)
    s = expand(found.scale.scale, fmt, 40)
    d = (w - found.dequantize()).astype(np.float64)
    least = np.einsum("kn,kl,ln->n", d, h, d)
    for i in range(40):
        for code in range(-8, 8):
            other = d.copy()
            other[i] = w[i] - code * s[i]
            assert (np.einsum("kn,kl,ln->n", other, h, other) >= least * (1 - 1e-4)).all()


def test_rows_in_turn_are_what_they_say() -> None:
    rng = np.random.default_rng(9)
    w = rng.standard_normal((70, 5)).astype(np.float32)
    ratios = np.tril(rng.standard_normal((70, 70)) * 0.2).astype(np.float32)
    s = np.full((70, 5), 0.1, np.float32)
    target, difference = w.copy(), w.copy()
    fmt = NumberFormat("int8", "channel", True)
    units = quantease.round_in_turn(target, difference, ratios, s, np.zeros((70, 5)), fmt)
    assert difference == pytest.approx(w - units * s, abs=1e-6)
    for i in range(70):
        t = w[i] + ratios[i, :i] @ difference[:i]
        assert target[i] == pytest.approx(t - units[i] * s[i], abs=1e-5)
        assert np.abs(target[i]).max() <= 0.0501


def test_every_precision_with_weights_can_be_solved() -> None:
    w, h = layer(100, 12, seed=10)
    for precision in PRECISIONS.values():
        if precision.weights is not None:
            (found,) = gptq([w], h, precision.weights, np.float16)
            assert np.isfinite(found.dequantize()).all()


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_a_short_last_block_is_solved(dtype: Codes) -> None:
    fmt = NumberFormat(dtype, "block", dtype == "int4", block_size=48)
    w, h = layer(130, 9, seed=11)
    (found,) = gptq([w], h, fmt, np.float16, sweeps=1)
    rounded = round_to_nearest(w, fmt, np.float16)
    assert found.scale.scale.shape == (3, 9)
    assert lost(w, found.dequantize(), h) < 0.5 * lost(w, rounded.dequantize(), h)


def test_scales_are_searched_with_each_row_s_own_importance() -> None:
    """Of inputs that are independent a row counts by its second moment, whatever the order rows are
    solved in."""
    rng = np.random.default_rng(2)
    w = (rng.standard_t(3, (48, 12)) * 0.05).astype(np.float32)
    diagonal = rng.permutation(np.logspace(-3, 3, 48))
    h, fmt = np.diag(diagonal).astype(np.float32), FORMATS["int4"]
    (found,) = gptq([w], h, fmt, np.float32, damping=0.0)
    wanted = weight_scale(w, 1, fmt, np.float32, search="mse", importance=diagonal)
    assert found.scale.scale == pytest.approx(wanted.scale)


def _one_group(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Differences, units and moments of one group of rows, and its scales [1, N]."""
    rng = np.random.default_rng(seed)
    units = rng.integers(-7, 8, (16, 5)).astype(np.float32)
    s = rng.uniform(0.5, 2.0, (1, 5)).astype(np.float32)
    difference = rng.normal(0, 0.3, (16, 5)).astype(np.float32)
    x = rng.standard_normal((40, 16))
    return difference, units, (x.T @ x / 40).astype(np.float32), s


@pytest.mark.parametrize("held", [0.7, 1.4])
def test_a_scale_that_the_graph_can_hold_is_taken_only_where_it_is_better(held: float) -> None:
    """The carrier moves what would be best by 40 %: that is worse, so the scales stay."""
    difference, units, h, s = _one_group(1)
    w, before = difference + units * s, s.copy()
    least = np.einsum("kn,kl,ln->n", difference, h, difference)
    quantease.fit_scales(difference, units, h, s, np.zeros(16, int), lambda ideal: ideal * held)
    after = np.einsum("kn,kl,ln->n", difference, h, difference)
    assert (after <= least * (1 + 1e-5)).all()
    assert difference == pytest.approx(w - units * s, abs=1e-5)
    assert np.array_equal(s, before)


def test_a_scale_keeps_its_sign_in_a_sweep() -> None:
    """Differences that a scale of the other sign would mend: codes, not the scale, are to move."""
    _, units, h, s = _one_group(2)
    before = s.copy()
    difference = (-3 * units * s).astype(np.float32)
    quantease.fit_scales(difference, units, h, s, np.zeros(16, int), lambda ideal: ideal)
    assert np.array_equal(s, before)
