"""What codes mean: nearest by brute force over all codes; ml_dtypes, onnx and ONNX Runtime's own
kernels as independent references."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from optkit.craft.quantization.numerics.format_codes import NF4, decode, encode, nearest, storage
from optkit.facts.precisions import Codes, NumberFormat

DTYPES: tuple[Codes, ...] = (
    "int8", "uint8", "int4", "uint4", "int2", "float8e4m3fn", "float4e2m1", "nf4",
)  # fmt: skip
FLOATS = {"float8e4m3fn": ml_dtypes.float8_e4m3fn, "float4e2m1": ml_dtypes.float4_e2m1fn}
FOUR_BITS = ("int4", "uint4", "float4e2m1", "nf4")
NUMBERS = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.one_of(st.floats(-600, 600, width=32), st.floats(-2, 2, width=32)),
)


def scheme(dtype: Codes, **options: int) -> NumberFormat:
    return NumberFormat(dtype, "channel", not dtype.startswith("u"), **options)


def every_number(fmt: NumberFormat) -> np.ndarray:
    """What any code stands for, in units of the scale, float64."""
    if fmt.is_integer:
        return np.arange(fmt.qmin, fmt.qmax + 1, dtype=np.float64)
    if fmt.dtype == "nf4":
        return NF4.astype(np.float64)
    codes = np.arange(256 if fmt.bits == 8 else 16, dtype=np.uint8).view(FLOATS[fmt.dtype])
    numbers = codes.astype(np.float64)
    return numbers[np.isfinite(numbers)]


@settings(deadline=None)
@given(st.sampled_from(DTYPES), NUMBERS)
def test_nothing_representable_is_nearer(dtype: Codes, x: np.ndarray) -> None:
    fmt = scheme(dtype)
    found, wanted = nearest(x, fmt), every_number(fmt)
    assert found.dtype == np.float32 and np.isin(found, wanted).all()
    least = np.abs(x.astype(np.float64)[:, None] - wanted).min(axis=1)
    assert np.abs(x.astype(np.float64) - found) == pytest.approx(least, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_saturates(dtype: Codes) -> None:
    fmt = scheme(dtype)
    x = np.float32([np.inf, 3e38, -3e38, -np.inf])
    top, bottom = every_number(fmt).max(), every_number(fmt).min()
    assert nearest(x, fmt).tolist() == [top, top, bottom, bottom]
    assert decode(encode(x, fmt), fmt).tolist() == [top, top, bottom, bottom]


@settings(deadline=None)
@given(st.sampled_from(DTYPES), NUMBERS)
def test_codes_stand_for_the_nearest(dtype: Codes, x: np.ndarray) -> None:
    fmt = scheme(dtype)
    codes = encode(x, fmt)
    assert codes.dtype == storage(fmt)
    assert np.array_equal(decode(codes, fmt), nearest(x, fmt))


@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float4e2m1"])
def test_minifloats_equal_ml_dtypes_but_for_overflow(dtype: Codes) -> None:
    fmt, rng = scheme(dtype), np.random.default_rng(0)
    numbers = np.unique(every_number(fmt))
    ties = (numbers[1:] + numbers[:-1]) / 2
    sizes = (1e-3, 0.02, 1.0, 40.0, 300.0)
    x = np.concatenate([ties, numbers, *(rng.standard_normal(20000) * size for size in sizes)])
    x = np.concatenate([x, -x, [0.0, -0.0]]).astype(np.float32)
    wanted = np.clip(x, -fmt.largest, fmt.largest).astype(FLOATS[dtype])
    assert np.array_equal(nearest(x, fmt), wanted.astype(np.float32))
    assert np.array_equal(encode(x, fmt).view(np.uint8), wanted.view(np.uint8))  # -0 too
    assert np.array_equal(decode(wanted, fmt), wanted.astype(np.float32))


def test_a_limit_on_bits_narrows_integers() -> None:
    fmt = scheme("int8", limit_bits=7)
    assert nearest(np.float32([-200, -63.4, 63.4, 64]), fmt).tolist() == [-63, -63, 63, 63]


@pytest.mark.parametrize("dtype", ["uint4", "uint8"])
@pytest.mark.parametrize("zero", [0, 3, 8, 15])
def test_a_zero_point_moves_the_range(dtype: Codes, zero: int) -> None:
    fmt = scheme(dtype)
    x = np.arange(-300, 300, dtype=np.float32) / 4
    z = np.full(x.shape, zero, np.float32)
    plain = np.clip(np.rint(x) + zero, 0, fmt.qmax)
    assert encode(x, fmt, z).tolist() == plain.tolist()
    assert np.array_equal(nearest(x, fmt, z), plain - zero)
    assert np.array_equal(decode(encode(x, fmt, z), fmt, z), plain - zero)


@settings(deadline=None)
@given(NUMBERS, st.floats(0, 15, width=32).filter(lambda zero: not zero.is_integer()))
def test_a_zero_point_that_is_no_integer_moves_the_grid(x: np.ndarray, zero: float) -> None:
    fmt, z = scheme("uint4"), np.full(x.shape, zero, np.float32)
    plain = np.clip(np.rint(x + z), 0, 15)
    assert encode(x, fmt, z).tolist() == plain.tolist()
    assert np.array_equal(nearest(x, fmt, z), plain - z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_be_the_input(dtype: Codes) -> None:
    fmt, x = scheme(dtype), np.linspace(-9, 9, 101, dtype=np.float32)
    wanted = nearest(x.copy(), fmt)
    assert nearest(x, fmt, out=x) is x
    assert np.array_equal(x, wanted)


def test_nf4_codes_equal_onnx_runtimes_quantizer() -> None:
    block, n, k = 64, 48, 256
    w = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    packed, largest = np.zeros(n * k // 2, np.uint8), np.zeros(n * k // block, np.float32)
    _pybind_state.quantize_matmul_bnb4(packed, w, largest, block, 1, n, k)
    by_block = w.reshape(-1, block)
    found = encode(by_block / np.abs(by_block).max(axis=1, keepdims=True), scheme("nf4"))
    high_first = (found.reshape(-1)[0::2] << 4) | found.reshape(-1)[1::2]
    assert np.array_equal(high_first, packed)
    assert np.array_equal(np.abs(by_block).max(axis=1), largest)


def test_nf4_numbers_are_those_of_onnx_runtimes_kernel() -> None:
    codes = np.arange(16, dtype=np.uint8)  # one block of 16 weights of one output
    node = helper.make_node(
        "MatMulBnb4", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=16, N=1, block_size=16, quant_type=1,
    )  # fmt: skip
    weights = [
        onnx.numpy_helper.from_array((codes[0::2] << 4) | codes[1::2], "w"),
        onnx.numpy_helper.from_array(np.ones(1, np.float32), "s"),
    ]
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 1])], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    one_by_one = session.run(None, {"x": np.eye(16, dtype=np.float32)})[0][:, 0]
    assert np.array_equal(one_by_one, decode(codes, scheme("nf4")))
