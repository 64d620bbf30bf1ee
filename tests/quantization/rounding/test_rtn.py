"""Round to nearest: half a step, and the same codes from whatever a weight is stored in."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.format_codes import storage
from optkit.craft.quantization.numerics.scales import expand
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS, Codes, Granularity, NumberFormat

DTYPES: tuple[Codes, ...] = (
    "int8", "uint8", "int4", "uint4", "float8e4m3fn", "float4e2m1", "nf4",
)  # fmt: skip
INT4 = NumberFormat("int4", "block", True, block_size=32)


def weights(k: int, n: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_t(5, (k, n)) * 0.02).astype(np.float32)


def scheme(dtype: Codes, granularity: Granularity, size: int = 32) -> NumberFormat:
    block = size if granularity == "block" else None
    return NumberFormat(dtype, granularity, not dtype.startswith("u"), block_size=block)


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(["tensor", "channel", "block"]),
    st.integers(1, 100),
    st.integers(1, 40),
    st.sampled_from([16, 32, 48]),
    st.sampled_from([np.float16, np.float32, ml_dtypes.bfloat16]),
)
def test_it_is_the_plain_formula(
    dtype: Codes, granularity: Granularity, k: int, n: int, size: int, carrier: type
) -> None:
    w, fmt = weights(k, n), scheme(dtype, granularity, size)
    axis = None if granularity == "tensor" else 1
    found = round_to_nearest(w, fmt, carrier)
    scale = scales.weight_scale(w, axis, fmt, carrier)
    assert found.codes.dtype == storage(fmt) and found.error is None
    for one, other in zip(found.scale[:2], scale[:2], strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)
    wanted = scales.quantize(w, scale, fmt, axis)
    assert np.array_equal(found.codes.view(np.uint8), wanted.view(np.uint8))
    assert np.array_equal(found.dequantize(), scales.dequantize(wanted, scale, axis, fmt))


@settings(deadline=None)
@given(st.sampled_from(["int8", "int4", "uint4"]), st.integers(1, 90), st.integers(1, 9))
def test_integers_come_back_within_half_a_step(dtype: Codes, k: int, n: int) -> None:
    w, fmt = weights(k, n), scheme(dtype, "block")
    found = round_to_nearest(w, fmt, np.float32)
    step = expand(found.scale.scale, fmt, k)
    room = 1.0 if dtype == "uint4" else 0.5  # a rounded zero point may clip the range's end
    assert (np.abs(found.dequantize() - w) <= step * room * (1 + 1e-5)).all()


def test_given_scales_are_used() -> None:
    w, fmt = weights(64, 8), scheme("int8", "channel")
    scale = scales.weight_scale(w * 2, 1, fmt, np.float32)
    found = round_to_nearest(w, fmt, np.float32, scale=scale)
    assert found.scale.scale is scale.scale
    assert np.abs(found.codes.astype(int)).max() in (63, 64)


@pytest.mark.parametrize("name", ["int4", "fp8", "nvfp4", "nf4", "int8"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("turned", [False, True])
def test_a_file_gives_the_codes_of_the_array(
    tmp_path: Path, name: str, dtype: type, turned: bool
) -> None:
    fmt = PRECISIONS[name].weights
    assert fmt is not None
    w = weights(200, 90).astype(dtype)
    stored = np.ascontiguousarray(w.T) if turned else w
    (tmp_path / "w").write_bytes(stored.tobytes())
    mapped = np.memmap(tmp_path / "w", dtype, "r", shape=stored.shape)
    out = np.memmap(tmp_path / "codes", storage(fmt), "w+", shape=(200, 90))
    found = round_to_nearest(mapped.T if turned else mapped, fmt, np.float16, out=out)
    wanted = round_to_nearest(w.astype(np.float32), fmt, np.float16)
    assert found.codes is out
    assert np.array_equal(out.view(np.uint8), wanted.codes.view(np.uint8))
    assert np.array_equal(found.scale.scale, wanted.scale.scale)


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_weight_needs_little_memory(tmp_path: Path, turned: bool) -> None:
    shape = (2048, 8192)
    w = np.memmap(tmp_path / "w", np.float16, "w+", shape=shape[::-1] if turned else shape)
    w[:] = np.random.default_rng(0).standard_normal(w.shape[1], np.float32)
    out = np.memmap(tmp_path / "codes", storage(INT4), "w+", shape=shape)
    tracemalloc.start()
    found = round_to_nearest(w.T if turned else w, INT4, np.float16, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < found.scale.scale.nbytes * 2 + (6 << 20)  # 64 MiB of float32 else


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["int4", "fp8", "nvfp4", "nf4"])
def test_what_is_not_finite_is_refused_with_its_index(name: str, bad: float) -> None:
    fmt, w = PRECISIONS[name].weights, weights(100, 3000)
    assert fmt is not None
    w[97, 2500] = bad
    with pytest.raises(InputRefused, match=r"not finite: -?(nan|inf) at index \[97, 2500\]"):
        round_to_nearest(w, fmt, np.float16)


def test_the_mean_square_search_is_passed_on() -> None:
    w, h = weights(128, 60), np.exp(np.random.default_rng(1).standard_normal(128))
    plain, searched, weighted = (
        round_to_nearest(w, INT4, np.float16, search=search, importance=importance)
        for search, importance in (("absmax", None), ("mse", None), ("mse", h))
    )

    def lost(found: np.ndarray, by: np.ndarray) -> float:
        return float((by[:, None] * np.square(found - w)).sum())

    flat = np.ones(128)
    assert lost(searched.dequantize(), flat) < 0.95 * lost(plain.dequantize(), flat)
    assert lost(weighted.dequantize(), h) < 0.95 * lost(searched.dequantize(), h)
