"""SmoothQuant's maths against its definition and ONNX's own QuantizeLinear."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.craft.quantization.rescaling.smoothquant import (
    ActivationSample,
    Formats,
    absmax,
    clipped,
    factors,
    normalized,
    output_error,
    rounded,
    search,
)
from optkit.facts.precisions import NumberFormat
from tests.quantization.workshop import relative_noise

U8 = NumberFormat("uint8", "tensor", symmetric=False)
S8 = NumberFormat("int8", "tensor", symmetric=True)
E4M3 = NumberFormat("float8e4m3fn", "tensor", symmetric=True)
W8 = NumberFormat("int8", "channel", symmetric=True)
W8_TENSOR = NumberFormat("int8", "tensor", symmetric=True)
WF8 = NumberFormat("float8e4m3fn", "channel", symmetric=True)
ALL = 1 << 50  # so many rows seen that the extremes are final
FORMATS = {
    "u8s8": Formats(U8, W8),
    "s8s8": Formats(S8, W8, np.float16),
    "one scale": Formats(U8, W8_TENSOR),
    "fp8": Formats(E4M3, WF8),
}


def sample(seed: int, channels: int, rows: int = 64, spread: float = 1.0) -> ActivationSample:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, channels)) * rng.lognormal(0, spread, channels)
    x = x.astype(np.float32)
    return ActivationSample(x, x.min(axis=0), x.max(axis=0), ALL)


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def qdq(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int) -> np.ndarray:
    """x behind QuantizeLinear and DequantizeLinear, by the reference evaluator."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
    ]
    dtype = helper.np_dtype_to_tensor_dtype(zero.dtype)
    values = [
        helper.make_tensor_value_info(name, kind, list(shape))
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, x.shape),
            ("s", TensorProto.FLOAT, scale.shape),
            ("z", dtype, zero.shape),
        )
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(x.shape))
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, [result]), opset_imports=[helper.make_opsetid("", 21)]
    )
    return onnx.reference.ReferenceEvaluator(model).run(None, {"x": x, "s": scale, "z": zero})[0]


@given(st.integers(0, 1000), st.integers(1, 40), st.floats(0, 1), st.floats(0.01, 100))
def test_factors_are_those_of_the_paper(
    seed: int, channels: int, alpha: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    x, w = (rng.uniform(0.5, 20, channels) for _ in range(2))
    s = factors(x, w, alpha)
    assert s.dtype == np.float32 and (s > 0).all() and np.isfinite(s).all()
    np.testing.assert_allclose(np.log(s.astype(np.float64)).mean(), 0, atol=1e-5)
    paper = torch.tensor(x).pow(alpha) / torch.tensor(w).pow(1 - alpha)
    ratio = s / paper.numpy()
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)  # one common factor apart
    np.testing.assert_allclose(factors(x * scale, w, alpha), s, rtol=1e-4)


def test_half_and_half_gives_both_sides_the_same_range() -> None:
    x, w = np.array([1.0, 4.0, 100.0]), np.array([2.0, 0.5, 1.0])
    s = factors(x, w, 0.5)
    np.testing.assert_allclose(x / s / (w * s), (x / s / (w * s))[0], rtol=1e-5)


def test_dead_channels_get_no_extreme_factor() -> None:
    x, w = np.array([0.0, 1.0, 1e-30, 2.0]), np.array([1.0, 0.0, 1.0, 1.0])
    for alpha in (0.0, 0.5, 1.0):
        s = factors(x, w, alpha)
        assert np.isfinite(s).all() and s.max() / s.min() <= 2.0**11
    np.testing.assert_array_equal(factors(np.zeros(3), np.zeros(3), 0.5), 1)
    x[0] = x[2]  # nothing ever seen counts like next to nothing
    assert factors(x, w, 0.8)[0] == factors(x, w, 0.8)[2]


def test_tied_channels_share_the_factor_of_the_largest() -> None:
    x, w = np.array([1.0, 9.0, 3.0, 2.0]), np.array([1.0, 1.0, 2.0, 5.0])
    ties = np.array([0, 0, 2, 2])
    s = factors(x, w, 0.5, ties)
    assert s[0] == s[1] and s[2] == s[3]
    alone = factors(np.array([9.0, 9.0, 3.0, 3.0]), np.array([1.0, 1.0, 5.0, 5.0]), 0.5)
    np.testing.assert_allclose(s, alone, rtol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_the_output_error_is_that_of_the_operators(symmetric: bool, per_tensor: bool) -> None:
    given_x = sample(1, 24)
    w1, w2 = weights(2, 24, 7), weights(3, 24, 5)
    s = factors(given_x.absmax, absmax([w1, w2]), 0.6)
    formats = Formats(S8 if symmetric else U8, W8_TENSOR if per_tensor else W8)
    x = given_x.rows / s
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    if symmetric:
        step, zero = max(-low, high) / 127, np.array(0, np.int8)
    else:
        step = (high - low) / 255
        zero = np.array(round(-low / step), np.uint8)
    x_hat = qdq(x, np.array(step, np.float32), zero, 0)
    total = 0.0
    for w in (w1, w2):
        v = w * s[:, None]
        if per_tensor:
            steps, zeros = np.float32(np.abs(v).max() / 127), np.array(0, np.int8)
        else:
            steps = np.abs(v).max(axis=0).astype(np.float32) / np.float32(127)
            zeros = np.zeros(v.shape[1], np.int8)
        y, y_hat = given_x.rows @ w, x_hat @ qdq(v, np.asarray(steps), zeros, 1)
        total += relative_noise(y, y_hat) / 2
    found = output_error(given_x, [w1, w2], formats, s)
    assert found == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize(("groups", "inputs"), [(1, 6), (2, 3), (6, 1)])
def test_a_convolution_is_judged_tap_by_tap(groups: int, inputs: int) -> None:
    kernel = weights(4, groups, inputs, 4, 9)
    given_x = sample(5, groups * inputs)
    formats = FORMATS["u8s8"]
    exact = np.zeros((64, groups * 4 * 9))
    held = rounded(kernel, formats)
    step = (given_x.high.max() - given_x.low.min()) / 255
    zero = round(-given_x.low.min() / step)
    x_hat = (np.clip(np.rint(given_x.rows / np.float32(step)) + zero, 0, 255) - zero) * step
    found = np.zeros_like(exact)
    for g in range(groups):
        for o in range(4):
            for t in range(9):
                column = slice(g * inputs, (g + 1) * inputs)
                index = (g * 4 + o) * 9 + t
                exact[:, index] = given_x.rows[:, column] @ kernel[g, :, o, t]
                found[:, index] = x_hat[:, column] @ held[g, :, o, t]
    noise = relative_noise(exact, found)
    assert output_error(given_x, [kernel], formats) == pytest.approx(noise, rel=1e-2)


@given(st.integers(0, 500), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9))
def test_kernels_are_rounded_within_half_a_step_of_their_channel(
    seed: int, inputs: int, outputs: int, taps: int
) -> None:
    kernel = weights(seed, 2, inputs, outputs, taps)
    step = np.abs(kernel).max(axis=(1, 3), keepdims=True) / 127
    error = np.abs(rounded(kernel, FORMATS["u8s8"]) - kernel)
    assert (error <= step * 0.5001).all()
    whole = np.abs(kernel).max() / 127
    assert np.abs(rounded(kernel, FORMATS["one scale"]) - kernel).max() <= whole * 0.5001


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 40), st.floats(0, 3), st.sampled_from(list(FORMATS)))
def test_a_search_never_makes_its_rows_worse(
    seed: int, channels: int, spread: float, name: str
) -> None:
    given_x = sample(seed, channels, spread=spread)
    kernels = [weights(seed + 1, channels, 6), weights(seed + 2, channels, 3)]
    choice = search(given_x, kernels, FORMATS[name])
    error = partial(output_error, given_x, kernels, FORMATS[name])
    assert error(choice.factors) <= error()
    assert choice.gain_db >= 0 and (choice.factors is None) == (choice.alpha is None)
    assert 10 ** (-choice.sqnr_db / 10) == pytest.approx(error(choice.factors), rel=1e-4)


@pytest.mark.parametrize(("name", "least"), [("u8s8", 9.0), ("s8s8", 9.0), ("fp8", 0.0)])
def test_planted_outliers_are_smoothed(name: str, least: float) -> None:
    given_x = sample(7, 64, rows=256, spread=0.2)
    outliers = np.ones(64, np.float32)
    outliers[[5, 40]] = 60, 90
    given_x = given_x.divided(1 / outliers)
    w = weights(8, 64, 32) / outliers[:, None]
    choice = search(given_x, [w], FORMATS[name])
    assert choice.gain_db >= least  # floating point hardly minds outliers
    if least:
        assert choice.factors is not None
        assert set(np.argsort(choice.factors)[-2:]) == {5, 40}


def test_a_search_can_be_told_what_to_try() -> None:
    given_x, w = sample(9, 16, spread=2.0), weights(10, 16, 8)
    known = normalized(given_x.absmax)
    forced = search(given_x, [w], FORMATS["u8s8"], alphas=(0.5,), leave=False)
    assert forced.alpha == 0.5 and forced.factors is not None
    other = search(given_x, [w], FORMATS["u8s8"], alphas=(), others=(known,), leave=False)
    assert other.alpha is None and other.factors is known
    punished = search(given_x, [w], FORMATS["u8s8"], besides=lambda s: 0.0 if s is None else 10.0)
    assert punished.factors is None and punished.gain_db == 0


def test_many_weights_are_judged_on_fewer_rows_and_columns() -> None:
    given_x, w = sample(11, 32, rows=512, spread=1.5), weights(12, 32, 120)
    full = search(given_x, [w], FORMATS["u8s8"])
    thin = search(given_x, [w], FORMATS["u8s8"], products=w.size * 100)
    assert thin.sqnr_db == pytest.approx(full.sqnr_db, abs=1.0)
    narrow = search(given_x, [w], FORMATS["u8s8"], products=32 * 80 * 64)
    assert narrow.sqnr_db == pytest.approx(full.sqnr_db, abs=2.0)  # 64 rows and 80 columns
    assert len({full.sqnr_db, thin.sqnr_db, narrow.sqnr_db}) == 3


@pytest.mark.parametrize("seen", [256, 4096])
def test_clipping_on_unseen_rows_is_foretold(seen: int) -> None:
    """Mean over many draws of what a range from `seen` rows cuts from fresh ones."""
    rng = np.random.default_rng(13)
    found, cut = [], []
    for _ in range(60):
        x = rng.exponential(1.0, (seen, 16)).astype(np.float32)
        x *= np.array([1.0] * 8 + [0.2] * 8, np.float32)
        given_x = ActivationSample(x[:512], x.min(axis=0), x.max(axis=0), seen)
        limit = float(x.max())
        found.append(clipped(given_x, -limit, limit))
        fresh = rng.exponential(1.0, (20000, 16)) * np.array([1.0] * 8 + [0.2] * 8)
        cut.append(np.square(np.maximum(fresh - limit, 0)).mean(axis=0))
    wide, narrow = (np.mean(part, axis=0)[:8].mean() for part in (found, cut))
    assert 0.4 < wide / narrow < 6  # rather too much: the largest of a few is a chance
    assert np.mean(found, axis=0)[8:].max() < 1e-3 * wide  # far from the limit


def test_clipping_is_reported_in_units_of_what_was_divided() -> None:
    given_x = replace(sample(14, 8, rows=128), seen=1000)
    s = np.full(8, 4.0, np.float32)
    limit = float(given_x.absmax.max())
    np.testing.assert_allclose(
        clipped(given_x, -limit / 4, limit / 4, s), clipped(given_x, -limit, limit), rtol=1e-5
    )


def test_few_rows_ask_for_less_smoothing() -> None:
    given_x, w = sample(15, 64, rows=128, spread=1.5), weights(16, 64, 32)
    many = search(given_x, [w], FORMATS["u8s8"])
    few = search(replace(given_x, seen=None), [w], FORMATS["u8s8"])
    assert few.gain_db < many.gain_db
    assert (few.alpha or 0.0) <= (many.alpha or 0.0)


def test_an_activation_of_zeros_is_left() -> None:
    nothing = np.zeros((4, 8), np.float32)
    choice = search(
        ActivationSample(nothing, nothing[0], nothing[0]), [weights(1, 8, 3)], FORMATS["u8s8"]
    )
    assert choice.factors is None and choice.gain_db == 0
