"""Scale maths: the bounds it promises; ONNX's own QuantizeLinear as independent reference."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from optkit.craft.quantization.numerics.format_codes import storage
from optkit.craft.quantization.numerics.scales import (
    Scale,
    Search,
    activation_scale,
    bias_scale,
    common_scale,
    dequantize,
    expand,
    floor_for_bias,
    quantize,
    ratio,
    representable,
    two_level,
    weight_scale,
)
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS, Codes, NumberFormat

S8 = NumberFormat("int8", "tensor", symmetric=True)
U8 = NumberFormat("uint8", "tensor", symmetric=False)
W8 = NumberFormat("int8", "channel", symmetric=True)
CARRIERS = (np.float16, np.float32)

NUMBERS = st.floats(-1e4, 1e4, width=32)
WEIGHTS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4), elements=NUMBERS)


def step(scale: Scale, axis: int, ndim: int) -> np.ndarray:
    shape = [1] * ndim
    shape[axis] = -1
    return scale.scale.reshape(shape)


@settings(deadline=None)
@given(WEIGHTS, st.data(), st.sampled_from(CARRIERS))
def test_a_weight_comes_back_within_half_a_step(
    w: np.ndarray, data: st.DataObject, carrier: type
) -> None:
    axis = data.draw(st.integers(0, w.ndim - 1))
    scale = weight_scale(w, axis, W8, carrier)
    codes = quantize(w, scale, W8, axis)
    assert codes.dtype == np.int8 and codes.min() >= -127  # -128 stays unused
    error = np.abs(dequantize(codes, scale, axis) - w)
    assert (error <= step(scale, axis, w.ndim) * (0.5 + 1e-5) + 1e-30).all()


@settings(deadline=None)
@given(NUMBERS, NUMBERS, st.data(), st.sampled_from([S8, U8]))
def test_an_activation_comes_back_within_half_a_step(
    a: float, b: float, data: st.DataObject, fmt: NumberFormat
) -> None:
    low, high = min(a, b), max(a, b)
    scale = activation_scale(low, high, fmt, np.float32)
    x = np.array(data.draw(st.lists(st.floats(low, high, width=32), max_size=9)), np.float32)
    error = np.abs(dequantize(quantize(x, scale, fmt), scale) - x)
    assert (error <= scale.scale * (0.5 + 1e-4)).all()
    assert dequantize(quantize(np.float32([0]), scale, fmt), scale) == 0  # padding is exact


@settings(deadline=None)
@given(NUMBERS, NUMBERS, st.sampled_from([S8, U8]), st.sampled_from(CARRIERS))
def test_scales_are_normal_numbers_of_their_carrier(
    a: float, b: float, fmt: NumberFormat, carrier: type
) -> None:
    scale = activation_scale(min(a, b), max(a, b), fmt, carrier)
    assert scale.scale.shape == scale.zero_point.shape == ()
    assert np.isfinite(scale.scale) and scale.scale >= np.finfo(carrier).smallest_normal
    assert float(carrier(scale.scale)) == float(scale.scale)
    assert fmt.qmin <= scale.zero_point <= fmt.qmax


@pytest.mark.parametrize(
    ("low", "high", "fmt", "scale", "zero_point"),
    [
        (0.0, 0.0, S8, 1.0, 0),  # nothing but zero
        (0.0, 0.0, U8, 1.0, 0),
        (0.0, 2.55, U8, 0.01, 0),  # behind a Relu: zero is the lowest code
        (1.0, 2.55, U8, 0.01, 0),  # widened to hold zero
        (-2.55, -1.0, U8, 0.01, 255),
        (-1.27, 0.5, S8, 0.01, 0),
        (-0.64, 1.91, U8, 0.01, 64),
    ],
)
def test_ranges_worked_by_hand(
    low: float, high: float, fmt: NumberFormat, scale: float, zero_point: int
) -> None:
    found = activation_scale(low, high, fmt, np.float32)
    assert (float(found.scale), int(found.zero_point)) == (pytest.approx(scale), zero_point)
    assert found.clamped == 0


@pytest.mark.parametrize(("extreme", "held"), [(1e-6, 2.0**-14), (3e38, 65504.0)])
def test_what_half_cannot_hold_is_clamped_and_counted(extreme: float, held: float) -> None:
    scale = activation_scale(-extreme, extreme, S8, np.float16)
    assert (float(scale.scale), scale.clamped) == (held, 1)
    tiny = weight_scale(np.array([[1.0, extreme]]), 1, W8, np.float16)
    assert (float(tiny.scale[1]), tiny.clamped) == (held, 1)


def test_a_channel_of_zeros_has_scale_one() -> None:
    scale = weight_scale(np.array([[0.0, 0.0], [1.27, -0.5]]), 0, W8, np.float32)
    assert scale.scale == pytest.approx([1.0, 0.01])
    assert weight_scale(np.zeros((0, 3)), None, S8, np.float32).scale == 1


@settings(deadline=None)
@given(WEIGHTS, st.data())
def test_codes_equal_onnx_quantize_linear(w: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, w.ndim - 1))
    scale = weight_scale(w, axis, W8, np.float32)
    reference = onnx.reference.ReferenceEvaluator(model(w.shape, axis, scale))
    codes, restored = reference.run(None, {"x": w})
    assert np.array_equal(quantize(w, scale, W8, axis), codes)
    assert np.array_equal(dequantize(codes, scale, axis), restored)


@pytest.mark.parametrize("fmt", [S8, U8])
def test_codes_equal_onnxruntime_also_beyond_the_range(fmt: NumberFormat) -> None:
    scale = activation_scale(-1.0, 3.0, fmt, np.float32)
    ties = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * scale.scale
    x = np.concatenate([np.linspace(-9, 9, 999, dtype=np.float32), ties])
    session = onnxruntime.InferenceSession(
        model(x.shape, None, scale).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    codes = session.run(["q"], {"x": x})[0]
    lowest = max(int(codes.min()), fmt.qmin)  # the operator itself saturates at -128
    assert np.array_equal(quantize(x, scale, fmt), np.maximum(codes, lowest))


@settings(deadline=None)
@given(st.floats(-5, 5, width=32), st.floats(2**-7, 5, width=32))
def test_beyond_the_representable_interval_more_than_half_a_step_is_lost(
    low: float, width: float
) -> None:
    for fmt in (S8, U8):
        scale = activation_scale(low, low + width, fmt, np.float32)
        inside, outside = (
            np.array([edge * factor for edge in representable(scale, fmt)], np.float32)
            for factor in (0.999, 1.01)
        )
        outside = outside[np.abs(outside) > scale.scale]  # an edge next to zero has no outside
        for x, lost in ((inside, False), (outside, True)):
            error = np.abs(dequantize(quantize(x, scale, fmt), scale) - x)
            assert ((error > scale.scale * 0.5001) == lost).all()


@settings(deadline=None)
@given(
    hnp.arrays(np.float32, (4, 5), elements=st.floats(-1, 1, width=32)),
    hnp.arrays(np.float32, 4, elements=st.floats(-100, 100, width=32)),
    st.floats(1e-4, 1.0),
)
def test_an_integer_bias_fits_and_is_exact_to_a_billionth(
    w: np.ndarray, bias: np.ndarray, high: float
) -> None:
    x = activation_scale(0.0, high, U8, np.float32)
    scale = weight_scale(w, 0, W8, np.float32, floor_for_bias(bias, x))
    step = bias_scale(x, scale).scale.astype(np.float64)
    codes = np.rint(bias / step)
    assert np.abs(codes).max() <= 2**30 * (1 + 1e-5)
    used = np.abs(w).max(axis=1) > 0
    assert (np.abs(codes * step - bias) <= step / 2 + 1e-12).all()
    assert (scale.scale[used] >= np.abs(w).max(axis=1)[used] / 127 * (1 - 1e-6)).all()


@pytest.mark.parametrize("vanishing", [0.0, 1e-9, 1e-30])
def test_a_channel_whose_weights_vanish_keeps_its_bias(vanishing: float) -> None:
    x = activation_scale(0.0, 4.0, U8, np.float32)
    bias = np.array([0.777, 0.777])
    w = np.array([[0.5, -0.3], [vanishing, 0.0]])
    scale = weight_scale(w, 0, W8, np.float32, floor_for_bias(bias, x))
    step = bias_scale(x, scale).scale.astype(np.float64)
    assert np.rint(bias / step).astype(np.int32) * step == pytest.approx([0.777, 0.777], rel=1e-4)


@settings(deadline=None)
@given(st.lists(st.floats(2**-10, 2**-4), min_size=1, max_size=9), st.sampled_from(CARRIERS))
def test_a_split_scale_multiplies_back(parts: list[float], carrier: type) -> None:
    scale = Scale(np.array(parts, carrier).astype(np.float32), np.zeros(len(parts), np.int8), 0)
    common = common_scale([scale.scale], carrier)
    factor = ratio(scale, common, np.ones(len(parts), bool), carrier)
    assert common.scale.shape == () and common.scale == scale.scale.min()
    assert (factor.scale >= 1).all()
    assert common.scale * factor.scale == pytest.approx(scale.scale, rel=1e-3)
    assert (factor.scale == factor.scale.astype(carrier).astype(np.float32)).all()


def test_dead_channels_do_not_pull_the_common_scale() -> None:
    w = np.zeros((5, 3))
    w[0] = 0.127
    scale = weight_scale(w, 0, W8, np.float16)
    live = w.any(axis=1)
    common = common_scale([scale.scale[live]], np.float16)
    assert common.scale == pytest.approx(0.001, rel=1e-2)
    assert ratio(scale, common, live, np.float16).scale == pytest.approx([1, 1, 1, 1, 1])
    assert common_scale([], np.float16).scale == 1


def test_rounding_is_half_to_even() -> None:
    one = Scale(np.float32(1), np.zeros((), np.int8), 0)
    halves = np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert quantize(halves, one, S8).tolist() == [-2, -2, 0, 0, 2, 2]


def model(shape: tuple[int, ...], axis: int | None, scale: Scale) -> onnx.ModelProto:
    """x → q = QuantizeLinear → d = DequantizeLinear, as the standard defines them."""
    dtype = helper.np_dtype_to_tensor_dtype(scale.zero_point.dtype)
    attributes = {} if axis is None else {"axis": axis}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], **attributes),
        ],
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("q", dtype, shape),
            helper.make_tensor_value_info("d", TensorProto.FLOAT, shape),
        ],
        [
            onnx.numpy_helper.from_array(scale.scale, "s"),
            onnx.numpy_helper.from_array(scale.zero_point, "z"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FORMATS = [
    NumberFormat(dtype, granularity, not dtype.startswith("u"), block_size=size)
    for dtype in ("int8", "uint8", "int4", "uint4", "float8e4m3fn", "float4e2m1", "nf4")
    for granularity, size in (("tensor", None), ("channel", None), ("block", 16), ("block", 48))
]  # fmt: skip
SIGNED = NumberFormat("int4", "block", symmetric=True, block_size=16, signed_scale=True)
NASTY = st.one_of(
    st.floats(-1, 1, width=32), st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 1e-12, 6e4, 1e38, -1e38])
)


@settings(deadline=None)
@given(
    st.sampled_from([*FORMATS, SIGNED]),
    hnp.arrays(np.float32, st.tuples(st.integers(1, 60), st.integers(1, 4)), elements=NASTY),
    st.sampled_from(["absmax", "mse"]),
    st.sampled_from([np.float16, np.float32, ml_dtypes.bfloat16]),
)
def test_every_scale_is_a_number_that_the_carrier_holds(
    fmt: NumberFormat, w: np.ndarray, search: Search, carrier: type
) -> None:
    axis = None if fmt.granularity == "tensor" else 1
    scale = weight_scale(w, axis, fmt, carrier, search=search)
    assert scale.scale.dtype == np.float32 and scale.zero_point.dtype == storage(fmt)
    assert scale.scale.shape == scale.zero_point.shape
    size = np.abs(scale.scale) if fmt.signed_scale else scale.scale
    assert np.isfinite(size).all() and (size > 0).all()
    if scale.outer is None:
        assert np.array_equal(scale.scale.astype(carrier).astype(np.float32), scale.scale)
    assert np.isfinite(dequantize(quantize(w, scale, fmt, axis), scale, axis, fmt)).all()


@settings(deadline=None)
@given(st.integers(1, 100), st.sampled_from([16, 32, 48]), st.sampled_from(["int4", "uint4"]))
def test_blocks_are_ranges_of_the_first_axis(k: int, size: int, dtype: Codes) -> None:
    w = np.random.default_rng(k).standard_normal((k, 3)).astype(np.float32) + 0.5
    fmt = NumberFormat(dtype, "block", dtype == "int4", block_size=size)
    scale = weight_scale(w, 1, fmt, np.float32)
    channel = NumberFormat(dtype, "channel", dtype == "int4")
    for index, start in enumerate(range(0, k, size)):  # the last one may be short
        alone = weight_scale(w[start : start + size], 1, channel, np.float32)
        assert np.array_equal(scale.scale[index], alone.scale)
        assert np.array_equal(scale.zero_point[index], alone.zero_point)
    assert len(scale.scale) == -(-k // size)
    assert np.array_equal(expand(scale.scale, fmt, k), np.repeat(scale.scale, size, axis=0)[:k])
    assert expand(alone.scale, channel, k) is alone.scale


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 99))
def test_under_a_signed_scale_the_lowest_code_is_the_largest_number(k: int, seed: int) -> None:
    w = np.random.default_rng(seed).standard_normal((k, 5)).astype(np.float32)
    scale = weight_scale(w, 1, SIGNED, np.float32)
    codes = quantize(w, scale, SIGNED).astype(int)
    back = dequantize(codes, scale, fmt=SIGNED)
    for start in range(0, k, 16):
        part = slice(start, start + 16)
        peak = np.abs(w[part]).argmax(axis=0)
        columns = np.arange(5)
        assert (codes[part][peak, columns] == -8).all()
        assert back[part][peak, columns] == pytest.approx(w[part][peak, columns], rel=1e-6)
        opposite = (w[part] / scale.scale[start // 16]).max(axis=0) > 7.5
        error = np.abs(back[part] - w[part]) / np.abs(scale.scale[start // 16])
        assert (error.max(axis=0) <= np.where(opposite, 1.0, 0.5) + 1e-5).all()


@pytest.mark.parametrize("search", ["absmax", "mse"])
def test_signed_scales_lose_less_than_those_without_a_sign(search: Search) -> None:
    w = np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32)
    signed, plain = (
        np.square(dequantize(quantize(w, scale, fmt), scale, fmt=fmt) - w).sum()
        for fmt in (SIGNED, replace(SIGNED, signed_scale=False))
        for scale in [weight_scale(w, 1, fmt, np.float16, search=search)]
    )
    assert signed < 0.95 * plain


@pytest.mark.parametrize("dtype", ["uint4", "uint8", "int4"])
def test_asymmetric_weights_use_every_code(dtype: Codes) -> None:
    fmt = NumberFormat(dtype, "channel", symmetric=False)
    w = np.linspace(-0.3, 1.2, 200, dtype=np.float32).reshape(-1, 1)
    scale = weight_scale(w, 1, fmt, np.float32)
    codes = quantize(w, scale, fmt, 1).astype(int)
    assert (codes.min(), codes.max()) == (fmt.qmin, fmt.qmax)
    assert scale.scale == pytest.approx([1.5 / (2**fmt.bits - 1)])
    assert scale.zero_point[0].astype(int) - fmt.qmin == round(0.3 / float(scale.scale[0]))
    assert np.abs(dequantize(codes, scale, 1) - w).max() <= scale.scale[0] * 0.75


@settings(deadline=None)
@given(st.integers(0, 99))
def test_nvfp4_scales_have_nvidias_two_levels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((70, 6)) * 10.0 ** rng.uniform(-4, 1, (1, 6))).astype(np.float32)
    w[16:32] = 0
    fmt = PRECISIONS["nvfp4"].weights
    assert fmt is not None
    scale = weight_scale(w, 1, fmt, np.float16)
    blocks, outer = two_level(scale)
    assert outer == pytest.approx(np.abs(w).max() / (6 * 256), rel=1e-6) and outer.shape == ()
    assert blocks.dtype == ml_dtypes.float8_e4m3fn and blocks.shape == (5, 6)
    units = blocks.astype(np.float32)
    assert np.array_equal(units * outer, scale.scale)
    wanted = np.abs(w[:16]).max(axis=0) / 6 / outer
    assert np.array_equal(blocks[0], np.maximum(wanted, 2.0**-9).astype(ml_dtypes.float8_e4m3fn))
    assert units.max() == 256 and (units[1] == 1).all()
    codes = quantize(w, scale, fmt)
    again = codes.astype(np.float32) * np.repeat(units, 16, axis=0)[:70] * outer
    assert dequantize(codes, scale, fmt=fmt) == pytest.approx(again, rel=1e-6)


def test_the_largest_weight_of_nvfp4_can_get_the_code_4() -> None:
    """12 and 9 fit the codes 4 and 3, but not 6 and 4.5: the block with the largest weight of the
    tensor can have the scale that this needs."""
    fmt = PRECISIONS["nvfp4"].weights
    assert fmt is not None
    w = np.full((32, 1), 0.5, np.float32)
    w[0], w[1:16] = 12, 9
    searched = weight_scale(w, 1, fmt, np.float16, search="mse")
    blocks, outer = two_level(searched)
    assert blocks[0, 0] == 384 and outer == np.float32(12 / (6 * 256))
    assert quantize(w, searched, fmt)[:2, 0].astype(float).tolist() == [4, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_that_are_not_finite_are_refused(fmt: NumberFormat, bad: float) -> None:
    w = np.ones((50, 4), np.float32)
    w[33, 2] = bad
    axis = None if fmt.granularity == "tensor" else 1
    with pytest.raises(InputRefused, match=r"-?(nan|inf) at index \[33, 2\]"):
        weight_scale(w, axis, fmt, np.float16)


@settings(deadline=None)
@given(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32))
def test_an_fp8_activation_fills_the_format(a: float, b: float) -> None:
    fmt = NumberFormat("float8e4m3fn", "tensor", symmetric=True)
    scale = activation_scale(min(a, b), max(a, b), fmt, np.float32)
    low, high = representable(scale, fmt)
    assert scale.zero_point == 0 and scale.zero_point.dtype == ml_dtypes.float8_e4m3fn
    if abs(a) + abs(b) > 1e-30:
        assert high == -low == pytest.approx(max(abs(a), abs(b)), rel=1e-5)


@pytest.mark.parametrize(
    "fmt", [*(fmt for fmt in FORMATS if fmt.is_integer and fmt.block_size == 16), SIGNED]
)
@pytest.mark.parametrize("k", [64, 70])  # a short last block
def test_blocks_are_those_of_onnxruntime(fmt: NumberFormat, k: int) -> None:
    w = np.random.default_rng(0).standard_normal((k, 9)).astype(np.float32)
    scale = weight_scale(w, 1, fmt, np.float16)
    codes = quantize(w, scale, fmt)
    node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=0, block_size=16)
    named = {"q": codes, "s": scale.scale, "z": scale.zero_point}
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in named.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (k, 9))
    graph = helper.make_graph([node], "blocks", [], [result], constants)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(
        built.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert np.array_equal(dequantize(codes, scale, fmt=fmt), session.run(None, {})[0])


@given(st.integers(0, 99), st.floats(0.1, 0.9))
def test_the_zero_point_is_the_nearest_code_to_zero(seed: int, below: float) -> None:
    """Floored, zero would be up to a whole step off."""
    fmt = NumberFormat("uint8", "channel", symmetric=False)
    w = np.random.default_rng(seed).uniform(-below, 1 - below, (64, 8)).astype(np.float32)
    # a channel of one sign gets a range that holds zero
    low = np.minimum(w.min(axis=0), 0).astype(np.float64)
    high = np.maximum(w.max(axis=0), 0).astype(np.float64)
    exact = -low / ((high - low) / 255)
    found = weight_scale(w, 1, fmt, np.float32).zero_point.astype(np.float64)
    assert np.abs(found - exact).max() <= 0.5 + 1e-6
    activation = activation_scale(float(low[0]), float(high[0]), U8, np.float32)
    assert abs(float(activation.zero_point) - exact[0]) <= 0.5 + 1e-3


def test_weights_of_one_sign_get_a_range_that_holds_zero() -> None:
    fmt = NumberFormat("uint8", "channel", symmetric=False)
    w = np.linspace(0.5, 1.0, 30, dtype=np.float32).reshape(10, 3)
    for signed in (w, -w):
        scale = weight_scale(signed, 1, fmt, np.float32)
        back = dequantize(quantize(signed, scale, fmt, 1), scale, 1)
        assert np.abs(back - signed).max() <= scale.scale.max() * 0.51
