"""Scales by least squared error: against a plain search, and never worse than no clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.numerics import format_codes
from optkit.craft.quantization.numerics.clipping import RATIOS, least_error
from optkit.craft.quantization.numerics.scales import (
    Scale,
    dequantize,
    expand,
    quantize,
    weight_scale,
)
from optkit.facts.precisions import Codes, NumberFormat

DTYPES: tuple[Codes, ...] = (
    "int8", "uint8", "int4", "uint4", "int2", "float8e4m3fn", "float4e2m1", "nf4",
)  # fmt: skip


def weights(k: int, n: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_t(4, (k, n)) * 0.02).astype(np.float32)


def scheme(dtype: Codes, granularity: str) -> NumberFormat:
    block = 16 if granularity == "block" else None
    return NumberFormat(dtype, granularity, not dtype.startswith("u"), block_size=block)  # type: ignore[arg-type]


def lost(w: np.ndarray, scale: Scale, fmt: NumberFormat, h: np.ndarray | None = None) -> np.ndarray:
    """Weighted squared error under each scale, float64, by a loop over ranges."""
    axis = None if fmt.granularity == "tensor" else 1
    d = (dequantize(quantize(w, scale, fmt, axis), scale, axis, fmt) - w).astype(np.float64)
    h = np.ones(len(w)) if h is None else h
    size = fmt.block_size or len(w)
    errors = []
    for start in range(0, len(w), size):
        part, own = d[start : start + size], h[start : start + size]
        square = own[:, start : start + size] if h.ndim == 2 else np.diag(own)
        errors.append(np.einsum("kn,kl,ln->n", part, square, part))
    return np.array(errors) if fmt.granularity != "tensor" else np.sum(errors)


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(["tensor", "channel", "block"]),
    st.integers(1, 70),
    st.integers(0, 9),
    st.sampled_from([np.float16, np.float32]),
)
def test_never_worse_than_the_whole_range(
    dtype: Codes, granularity: str, k: int, seed: int, carrier: type
) -> None:
    w, fmt = weights(k, 5, seed), scheme(dtype, granularity)
    axis = None if granularity == "tensor" else 1
    plain = weight_scale(w, axis, fmt, carrier)
    found = weight_scale(w, axis, fmt, carrier, search="mse")
    assert found.scale.shape == plain.scale.shape
    assert np.array_equal(found.zero_point, plain.zero_point)
    assert (lost(w, found, fmt) <= lost(w, plain, fmt) * (1 + 1e-5) + 1e-16).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("granularity", ["channel", "block"])
def test_no_ratio_of_the_grid_is_better(dtype: Codes, granularity: str) -> None:
    w, fmt = weights(64, 40, seed=1), scheme(dtype, granularity)
    plain = weight_scale(w, 1, fmt, np.float32, outer=np.float32(1e-4))
    found = weight_scale(w, 1, fmt, np.float32, search="mse", outer=np.float32(1e-4))
    least = lost(w, found, fmt)
    for ratio in RATIOS[dtype]:
        other = plain._replace(scale=(plain.scale * ratio).astype(np.float32))
        if fmt.dtype == "float4e2m1" and granularity == "block":
            units = format_codes.nearest(
                other.scale / np.float32(1e-4), scheme("float8e4m3fn", "block")
            )
            other = plain._replace(scale=units * np.float32(1e-4))
        assert (least <= lost(w, other, fmt) * (1 + 1e-4)).all()


def test_clipping_pays_for_four_bits() -> None:
    w, fmt = weights(512, 64, seed=2), NumberFormat("int4", "block", True, block_size=128)
    plain, found = (weight_scale(w, 1, fmt, np.float16, search=s) for s in ("absmax", "mse"))
    assert lost(w, found, fmt).sum() < 0.8 * lost(w, plain, fmt).sum()


def test_a_signed_scale_of_two_bits_takes_the_better_sign() -> None:
    w = weights(512, 64, seed=5)
    fmt = NumberFormat("int2", "block", True, block_size=64, signed_scale=True)
    by_largest = weight_scale(w, 1, fmt, np.float32)
    found = weight_scale(w, 1, fmt, np.float32, search="mse")
    turned = (found.scale < 0) != (by_largest.scale < 0)
    assert 0 < turned.sum() < turned.size
    other = np.where(turned[..., None], RATIOS["int2"], 1) * by_largest.scale[..., None]
    for scale in np.moveaxis(other, -1, 0):  # the sign of the largest number is worse there
        error = lost(w, found._replace(scale=scale.astype(np.float32)), fmt)
        assert (error >= lost(w, found, fmt) * (1 - 1e-4))[turned].all()


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_importance_lowers_the_weighted_error(squares: bool, signed: bool) -> None:
    rng, k = np.random.default_rng(3), 70  # a last block of 6
    w, fmt = weights(k, 30, seed=3), replace(scheme("int4", "block"), signed_scale=signed)
    x = rng.standard_normal((500, k)) @ (np.eye(k) + 0.4 * rng.standard_normal((k, k)))
    x *= np.exp(rng.standard_normal(k))
    h = x.T @ x / len(x)
    h = h if squares else h.diagonal()
    blind = weight_scale(w, 1, fmt, np.float32, search="mse")
    found = weight_scale(w, 1, fmt, np.float32, search="mse", importance=h)
    assert lost(w, found, fmt, h).sum() < 0.95 * lost(w, blind, fmt, h).sum()
    plain = weight_scale(w, 1, fmt, np.float32)
    assert (lost(w, found, fmt, h) <= lost(w, plain, fmt, h) * (1 + 1e-4)).all()


def test_channels_take_the_diagonal_of_moments() -> None:
    w, fmt = weights(40, 8, seed=4), scheme("int4", "channel")
    h = np.diag(np.linspace(0.1, 9, 40)) + 0.05
    found, same = (
        weight_scale(w, 1, fmt, np.float32, search="mse", importance=i) for i in (h, h.diagonal())
    )
    assert np.array_equal(found.scale, same.scale)


def test_the_outcome_does_not_depend_on_tiles() -> None:
    fmt = NumberFormat("int4", "block", True, block_size=32)
    w = weights(32 * 9 + 5, 5000, seed=5)  # several tiles
    whole = weight_scale(w, 1, fmt, np.float16, search="mse").scale
    for group in (0, 4, 9):
        rows = slice(group * 32, group * 32 + 32)
        alone = weight_scale(w[rows, 4000:4100], 1, fmt, np.float16, search="mse").scale
        assert whole[group, 4000:4100] == pytest.approx(alone[0], rel=2e-3)


@pytest.mark.parametrize("order", ["C", "F"])  # F: the tiles have few columns
def test_each_channel_has_a_floor_of_its_own(order: Literal["C", "F"]) -> None:
    """The least scale that an int32 bias allows, as large as the scale itself in some channels."""
    w, fmt = np.asarray(weights(40, 3000, seed=6), order=order), scheme("int8", "channel")
    plain = weight_scale(w, 1, fmt, np.float32, search="mse").scale
    floor = plain * np.linspace(0, 2, 3000)
    found = weight_scale(w, 1, fmt, np.float32, floor, search="mse").scale
    assert (found >= floor * (1 - 1e-6)).all()
    for channel in (0, 100, 1700, 2999):
        alone = weight_scale(
            w[:, [channel]], 1, fmt, np.float32, floor[[channel]], search="mse"
        ).scale
        assert found[channel] == pytest.approx(alone[0], rel=1e-5)
    assert (found[:1000] == plain[:1000]).all() and (found[2000:] > plain[2000:]).all()


def test_zero_stays_zero() -> None:
    ideal = np.zeros((2, 3))
    fmt = NumberFormat("int4", "block", True, block_size=16)
    found = least_error(np.zeros((32, 3), np.float32), ideal, 0.0, fmt, lambda s: s + (s == 0))
    assert not found.any() and expand(found, fmt, 30).shape == (30, 3)


def test_the_one_scale_of_a_tensor_is_searched_too() -> None:
    w, fmt = weights(70, 40, 3), scheme("int4", "tensor")
    plain = weight_scale(w, None, fmt, np.float32)
    found = weight_scale(w, None, fmt, np.float32, search="mse")
    assert lost(w, found, fmt) < 0.9 * lost(w, plain, fmt)
