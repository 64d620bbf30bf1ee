"""The codes of number formats. This module knows no scales: all numbers are already divided by
their scale ("in units").

    integers     q = clip(round(x) + z, qmin, qmax)                          half to even
    E4M3, E2M1   x rounded to the step 2^(max(e, e_min) - m) of its binade   saturates at 448, at 6
                 (Micikevicius et al. 2022, arXiv:2209.05433; OCP Microscaling Formats v1.0)
    NF4          the nearest of 16 quantiles of a normal distribution on [-1, 1]
                 (Dettmers et al. 2023, arXiv:2305.14314, appendix E)

The functions make few passes over float32 arrays, because they run over billions of weights. The
casts of ml_dtypes take ten times as long, and overflow to NaN in E4M3. No input is NaN: `scales`
refuses it before.
"""

from __future__ import annotations

from types import MappingProxyType

import ml_dtypes
import numpy as np

from optkit.facts.dtypes import FLOATS, Float
from optkit.facts.precisions import NumberFormat

# The values of bitsandbytes and of ONNX Runtime's MatMulBnb4 (quant_type 1), in the order of codes.
NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
NF4.flags.writeable = False
# The scales of E2M1 blocks: E4M3 under an outer scale, from its least to its largest number.
E4M3 = NumberFormat("float8e4m3fn", "block", symmetric=True)
E4M3_LEAST, E4M3_MOST = 2.0**-9, FLOATS[E4M3.dtype].largest
# Midpoints, as in these two libraries; a number on a midpoint is rounded down.
_NF4_BORDERS = (
    -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544,
    -0.23460740596055984, -0.13791173323988914, -0.045525018125772476, 0.03979014977812767,
    0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683,
    0.5016634166240692, 0.6427869200706482, 0.8614784181118011,
)  # fmt: skip


_STORAGE = MappingProxyType(
    {
        "int8": np.int8,
        "uint8": np.uint8,
        "int4": ml_dtypes.int4,
        "uint4": ml_dtypes.uint4,
        "int2": ml_dtypes.int4,  # ONNX Runtime 1.32 reads INT2 from opset 25 on, graphs have 21
        "float8e4m3fn": ml_dtypes.float8_e4m3fn,
        "float4e2m1": ml_dtypes.float4_e2m1fn,
        "nf4": np.uint8,
    }
)


def storage(fmt: NumberFormat) -> np.dtype:
    """The numpy dtype of codes: ONNX's dtype, one code per byte; uint8 for NF4, which ONNX does not
    have, and int4 for codes of 2 bits."""
    dtype: np.dtype = np.dtype(_STORAGE[fmt.dtype])
    return dtype


def nearest(
    x: np.ndarray,
    fmt: NumberFormat,
    zero_point: np.ndarray | float = 0.0,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """The representable numbers nearest to `x`, float32, both in units of the scale.

    Values beyond the range saturate, infinity too. zero_point (broadcast against x) moves the range
    of integers: round(x) is clipped to [qmin - z, qmax - z]; a zero point that is not an integer
    also moves the grid. `out` may be x itself.
    """
    if fmt.is_integer:
        return _nearest_integer(x, fmt, zero_point, out)
    if fmt.is_table:
        entries: np.ndarray = np.take(NF4, _nf4_codes(x), out=out, mode="clip")
        return entries
    kind = FLOATS[fmt.dtype]
    clipped: np.ndarray = np.clip(x, -kind.largest, kind.largest, dtype=np.float32)
    step = (clipped.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)  # 2^e
    np.maximum(step, np.float32(kind.smallest), out=step)
    step *= np.float32(2.0**-kind.mantissa)
    np.divide(clipped, step, out=clipped)
    np.rint(clipped, out=clipped)
    numbers: np.ndarray = np.multiply(clipped, step, out=out if out is not None else clipped)
    return numbers


def encode(x: np.ndarray, fmt: NumberFormat, zero_point: np.ndarray | float = 0.0) -> np.ndarray:
    """Codes of the numbers nearest to `x` (in units of the scale), dtype `storage(fmt)`."""
    if fmt.is_table:
        return _nf4_codes(x)
    values = nearest(x, fmt, zero_point)
    if not fmt.is_integer:
        return _minifloat_codes(values, FLOATS[fmt.dtype]).view(storage(fmt))
    if not _is_zero(zero_point):
        values += np.asarray(zero_point, np.float32)
        np.rint(values, out=values)
    codes: np.ndarray = values.astype(np.uint8 if fmt.dtype.startswith("u") else np.int8)
    return codes.astype(storage(fmt), copy=False)


def decode(
    codes: np.ndarray, fmt: NumberFormat, zero_point: np.ndarray | float = 0.0
) -> np.ndarray:
    """float32 numbers in units of the scale: q - z for integers, table entries for other
    formats."""
    if fmt.is_table:
        return np.take(NF4, codes, mode="clip")
    if not fmt.is_integer:
        return np.take(_TABLES[fmt.dtype], codes.view(np.uint8), mode="clip")
    numbers: np.ndarray = codes.astype(np.float32)
    if not _is_zero(zero_point):
        numbers -= np.asarray(zero_point, np.float32)
    return numbers


def _nearest_integer(
    x: np.ndarray, fmt: NumberFormat, zero_point: np.ndarray | float, out: np.ndarray | None
) -> np.ndarray:
    z = 0.0 if _is_zero(zero_point) else np.asarray(zero_point, np.float32)
    shifted = isinstance(z, np.ndarray) and bool((z != np.rint(z)).any())
    numbers: np.ndarray = np.asarray(x, np.float32) if not shifted else x + z
    numbers = np.rint(numbers, out=out)
    if not shifted:
        return np.clip(numbers, fmt.qmin - z, fmt.qmax - z, out=numbers)
    np.clip(numbers, fmt.qmin, fmt.qmax, out=numbers)
    numbers -= z
    return numbers


def _is_zero(zero_point: np.ndarray | float) -> bool:
    return not isinstance(zero_point, np.ndarray) and zero_point == 0


def _nf4_codes(x: np.ndarray) -> np.ndarray:
    codes = np.zeros(np.shape(x), np.uint8)
    for border in _NF4_BORDERS:
        codes += x > np.float32(border)
    return codes


def _minifloat_codes(values: np.ndarray, kind: Float) -> np.ndarray:
    """Codes of representable numbers: the exponent with the bias of the format and the top bits of
    the mantissa of a float32. Subnormal numbers are added to the first binade, which is subtracted
    again afterwards."""
    sign = (values.view(np.uint32) >> np.uint32(31)).astype(np.uint8)
    size = np.abs(values)
    small = size < kind.smallest
    size += small * np.float32(kind.smallest)
    shift, binade = np.uint32(23 - kind.mantissa), np.uint32(1 << kind.mantissa)
    before = (np.float32(kind.smallest).view(np.uint32) >> shift) - binade  # the binade of 1
    codes: np.ndarray = ((size.view(np.uint32) >> shift) - before).astype(np.uint8)
    codes -= small.view(np.uint8) << np.uint8(kind.mantissa)
    codes |= sign << np.uint8(3 if kind.mantissa == 1 else 7)
    return codes


_TABLES = MappingProxyType(
    {
        "float8e4m3fn": np.arange(256, dtype=np.uint8)
        .view(ml_dtypes.float8_e4m3fn)
        .astype(np.float32),
        "float4e2m1": np.arange(16, dtype=np.uint8)
        .view(ml_dtypes.float4_e2m1fn)
        .astype(np.float32),
    }
)
