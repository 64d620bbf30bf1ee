"""Functions of torch as ONNX operators that keep their range and their small values.

torch's exporter writes logsigmoid(x) as Log(Sigmoid(x)), which is -inf from -18 on, log1p(x) as
Log(1 + x), which is 0 below 6e-8, and others alike. `tests/conformance/test_functions.py` compares
all functions that the exporter takes with torch over their whole range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import log, pi
from typing import Any

_ERFCX = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
"""log(erfcx(x) / t) for x ≥ 0 as a polynomial in t = 1 / (1 + x / 2), highest power first, with a
relative error of erfcx below 1.2e-7 (Press et al., "Numerical Recipes", section 6.2)."""
_SMALL = 0.5  # below, log1p and expm1 are computed by functions of small arguments


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch's exporter: operator → function of onnxscript."""
    import torch

    aten, prims = torch.ops.aten, torch.ops.prims
    functions: dict[Callable[..., Any], list[Any]] = {
        _log_sigmoid: [aten.log_sigmoid.default],
        _log1p: [aten.log1p.default],
        _expm1: [aten.expm1.default, aten.special_expm1.default],
        _logaddexp: [aten.logaddexp.default],
        _logaddexp2: [aten.logaddexp2.default],
        _logcumsumexp: [aten.logcumsumexp.default],
        _erfc: [aten.erfc.default, aten.special_erfc.default],
        _erfcx: [aten.special_erfcx.default, prims.erfcx.default],
        _xlogy: [aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other],
        _atan2: [aten.atan2.default],
        _heaviside: [aten.heaviside.default],
        _angle: [aten.angle.default],
        _clamp: [aten.clamp.default, aten.clamp_min.default],
        _clamp_max: [aten.clamp_max.default],
        _remainder: [aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor],
        _floor_divide: [aten.floor_divide.default],
        _group_norm: [aten.group_norm.default],
    }
    return {operator: function for function, found in functions.items() for operator in found}


def rules() -> Sequence[Any]:
    """Rewrite rules of onnxscript for what models write by hand."""
    from onnxscript.rewriter import pattern

    def by_hand(op: Any, x: Any) -> Any:
        return op.Log(op.Sigmoid(x))

    def stable(op: Any, x: Any) -> Any:
        return op.Neg(op.Softplus(op.Neg(x)))

    return [pattern.RewriteRule(by_hand, stable, name="log_sigmoid")]


def _onnx() -> Any:
    from onnxscript import opset21

    return opset21


def _log_sigmoid(x: Any) -> Any:
    onnx = _onnx()
    return onnx.Neg(onnx.Softplus(onnx.Neg(x)))


def _log1p(x: Any) -> Any:
    """log(1 + x) = 2·atanh(x / (2 + x)). ((1 + x) - 1 tells the rounding of 1 + x too, but a
    compiler may make x of it.)"""
    onnx = _onnx()
    small = onnx.Mul(onnx.Atanh(onnx.Div(x, onnx.Add(x, 2.0))), 2.0)
    return onnx.Where(onnx.Less(onnx.Abs(x), _SMALL), small, onnx.Log(onnx.Add(x, 1.0)))


def _expm1(x: Any) -> Any:
    """exp(x) - 1 = 2·tanh(x / 2) / (1 - tanh(x / 2))."""
    onnx = _onnx()
    half = onnx.Tanh(onnx.Mul(x, 0.5))
    small = onnx.Div(onnx.Mul(half, 2.0), onnx.Sub(1.0, half))
    return onnx.Where(onnx.Less(onnx.Abs(x), _SMALL), small, onnx.Sub(onnx.Exp(x), 1.0))


def _logaddexp(a: Any, b: Any) -> Any:
    onnx = _onnx()
    more = onnx.Softplus(onnx.Neg(onnx.Abs(onnx.Sub(a, b))))
    return _of_equal(a, b, log(2), onnx.Add(onnx.Max(a, b), more))


def _logaddexp2(a: Any, b: Any) -> Any:
    onnx = _onnx()
    more = onnx.Softplus(onnx.Mul(onnx.Abs(onnx.Sub(a, b)), -log(2)))
    return _of_equal(a, b, 1.0, onnx.Add(onnx.Max(a, b), onnx.Mul(more, 1 / log(2))))


def _of_equal(a: Any, b: Any, more: float, otherwise: Any) -> Any:
    """a + more where a = b, also for infinities, whose difference is NaN."""
    onnx = _onnx()
    return onnx.Where(onnx.Equal(a, b), onnx.Add(a, more), otherwise)


def _logcumsumexp(x: Any, dim: int) -> Any:
    """Each sum has its own maximum: one for all would lose the small sums before large values. It
    needs [… n, n …] values for an axis of n."""
    onnx = _onnx()
    rank = len(x.shape)
    if not rank:
        return onnx.Identity(x)
    dim %= rank
    size = onnx.Squeeze(onnx.Shape(x, start=dim, end=dim + 1))
    places = onnx.Range(0, size, 1)
    behind = [1] * (rank - dim - 1)
    until = onnx.Reshape(places, [-1, 1, *behind])
    summed = onnx.LessOrEqual(onnx.Reshape(places, [1, -1, *behind]), until)
    rows = onnx.Where(summed, onnx.Unsqueeze(x, [dim]), float("-inf"))
    most = onnx.ReduceMax(rows, [dim + 1], keepdims=1)
    most = onnx.Where(onnx.IsInf(most), 0.0, most)
    sums = onnx.ReduceSum(onnx.Exp(onnx.Sub(rows, most)), [dim + 1], keepdims=0)
    return onnx.Add(onnx.Log(sums), onnx.Squeeze(most, [dim + 1]))


def _erfc(x: Any) -> Any:
    onnx = _onnx()
    positive = onnx.Mul(_erfcx_of_magnitude(x), onnx.Exp(onnx.Neg(onnx.Mul(x, x))))
    return onnx.Where(onnx.Less(x, 0.0), onnx.Sub(2.0, positive), positive)


def _erfcx(x: Any) -> Any:
    """exp(x²)·erfc(x); for x < 0 it is 2·exp(x²) - erfcx(-x)."""
    onnx = _onnx()
    positive = _erfcx_of_magnitude(x)
    # where x is positive the square may be too large, which Where does not read
    negative = onnx.Sub(onnx.Mul(onnx.Exp(onnx.Mul(x, x)), 2.0), positive)
    return onnx.Where(onnx.Less(x, 0.0), negative, positive)


def _erfcx_of_magnitude(x: Any) -> Any:
    onnx = _onnx()
    t = onnx.Div(1.0, onnx.Add(onnx.Mul(onnx.Abs(x), 0.5), 1.0))
    first, *others = _ERFCX
    powers = reduce(lambda sum_, c: onnx.Add(onnx.Mul(sum_, t), c), others, first)
    return onnx.Mul(t, onnx.Exp(powers))


def _xlogy(x: Any, y: Any) -> Any:
    onnx = _onnx()
    product = onnx.Where(onnx.Equal(x, 0.0), 0.0, onnx.Mul(x, onnx.Log(y)))
    return onnx.Where(onnx.IsNaN(y), y, product)


def _atan2(y: Any, x: Any) -> Any:
    """The angle of (x, y), also for zeros of either sign, infinities and NaN."""
    onnx = _onnx()
    both = onnx.And(onnx.IsInf(x), onnx.IsInf(y))
    zero = onnx.Equal(y, 0.0)
    ratio = onnx.Div(onnx.Abs(y), onnx.Abs(x))
    ratio = onnx.Where(zero, 0.0, onnx.Where(both, 1.0, ratio))
    right = onnx.Atan(ratio)
    angle = onnx.Where(_is_negative(x), onnx.Sub(pi, right), right)
    signed = onnx.Where(_is_negative(y), onnx.Neg(angle), angle)
    return onnx.Where(onnx.Or(onnx.IsNaN(x), onnx.IsNaN(y)), onnx.Add(x, y), signed)


def _is_negative(x: Any) -> Any:
    """Whether the sign bit is set: 1 / -0 is -inf."""
    onnx = _onnx()
    return onnx.Or(onnx.Less(x, 0.0), onnx.Less(onnx.Reciprocal(x), 0.0))


def _heaviside(x: Any, at_zero: Any) -> Any:
    onnx = _onnx()
    step = onnx.CastLike(onnx.Greater(x, 0), x)
    return onnx.Where(onnx.Equal(x, 0), at_zero, step)


def _angle(x: Any) -> Any:
    onnx = _onnx()
    return onnx.Where(onnx.IsNaN(x), x, onnx.Where(onnx.Less(x, 0.0), pi, 0.0))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """With one bound it is no Clip, in which ONNX Runtime's other bound is the largest finite
    number, also for an infinity."""
    onnx = _onnx()
    is_relu = isinstance(low, int | float) and low == 0
    low, high = (None if bound is None else onnx.CastLike(bound, x) for bound in (low, high))
    if not x.dtype.is_floating_point() or (low is not None and high is not None):
        return onnx.Clip(x, low, high)
    if low is not None:
        return onnx.Relu(x) if is_relu else onnx.Max(x, low)
    return onnx.Identity(x) if high is None else onnx.Min(x, high)


def _clamp_max(x: Any, high: Any) -> Any:
    return _clamp(x, None, high)


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of b. a - floor(a / b)·b would have the error of the rounded quotient."""
    onnx = _onnx()
    a, b, integers = _operands(a, b)
    if integers:
        return onnx.Mod(a, b)
    rest, differs = _rest(a, b)
    return onnx.Where(differs, onnx.Add(rest, b), rest)


def _floor_divide(a: Any, b: Any) -> Any:
    onnx = _onnx()
    a, b, integers = _operands(a, b)
    if integers:
        return onnx.Div(onnx.Sub(a, onnx.Mod(a, b)), b)  # exact: the rest has the sign of b
    rest, differs = _rest(a, b)
    quotient = onnx.Round(onnx.Div(onnx.Sub(a, rest), b))
    quotient = onnx.Sub(quotient, onnx.CastLike(differs, a))
    return onnx.Where(onnx.Equal(b, 0.0), onnx.Div(a, b), quotient)


def _operands(a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Two values of one type, of which one may be a number of Python, and whether it is integer."""
    onnx = _onnx()
    kind = a if hasattr(a, "dtype") else b
    return onnx.CastLike(a, kind), onnx.CastLike(b, kind), kind.dtype.is_integer()


def _rest(a: Any, b: Any) -> tuple[Any, Any]:
    """a - trunc(a / b)·b of floats without rounding, and whether it needs another b to have the
    sign of b."""
    onnx = _onnx()
    rest = onnx.Mod(a, b, fmod=1)
    other_sign = onnx.Xor(onnx.Less(rest, 0.0), onnx.Less(b, 0.0))
    return rest, onnx.And(onnx.Not(onnx.Equal(rest, 0.0)), other_sign)


def _group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> Any:
    """GroupNormalization of x minus the means of its groups: ONNX defines the variance as
    E[x²] - E[x]², which is only noise, or less than 0, if the mean is large."""
    onnx = _onnx()
    channels = onnx.Shape(x, start=1, end=2)
    weight, bias = (
        onnx.Expand(onnx.CastLike([number], x), channels) if given is None else given
        for given, number in ((weight, 1.0), (bias, 0.0))
    )
    grouped = onnx.Reshape(x, [0, groups, -1])
    centred = onnx.Sub(grouped, onnx.ReduceMean(grouped, [2], keepdims=1))
    centred = onnx.Reshape(centred, onnx.Shape(x))
    return onnx.GroupNormalization(centred, weight, bias, num_groups=groups, epsilon=eps)
