"""Quantization and dequantization in floats, with gradients: the numbers of QuantizeLinear and
DequantizeLinear, bit by bit.

    u = x / s,   q = round(clip(u, low, high)),   y = s q

LSQ (Esser et al. 2020, arXiv:1902.08153, eq. 3 and section 2.2) gives the gradients:

    dy/dx = 1 inside [low, high], else 0
    dy/ds = q - u inside, low or high outside;   scaled by 1 / sqrt(N high), N numbers per scale

A zero point moves the range: low = qmin - z, high = qmax - z. Weights in blocks have a scale for
each block of their summed axis, [channels, blocks]; the last block may be shorter.

The parameter of a learned scale is its ratio r to its first value, s = r s_0, with the gradient
dy/dr = dy/ds / s_0. A step of SGD then changes s by the same share as in the paper. A step of Adam,
which is as long as the learning rate whatever the gradient is, changes it by the learning rate's
share: s itself may be a thousand times smaller than a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optkit.facts.dtypes import BY_SHORT, FLOATS
from optkit.facts.precisions import BIAS_STEPS, NumberFormat

_E4M3_LEAST, _E4M3_MANTISSA = -6, 3  # the least exponent of normal numbers, and bits
_REACH = 0.5 - 1 / 64  # of the way to the next code: how far a weight may be from its own one


@dataclass(frozen=True)
class CodeGrid:
    """The numbers that codes represent with scale 1. `integers`: all between `low` and `high`;
    otherwise those of E4M3."""

    low: float
    high: float
    integers: bool

    @classmethod
    def of(cls, fmt: NumberFormat, zero_point: int) -> CodeGrid:
        if fmt.is_integer:
            return cls(fmt.qmin - zero_point, fmt.qmax - zero_point, True)
        return cls(-fmt.largest, fmt.largest, False)

    def nearest(self, u: Tensor) -> Tensor:
        """The nearest numbers of the grid; halves go to the even one."""
        u = u.clamp(self.low, self.high)
        return u.round() if self.integers else u.to(torch.float8_e4m3fn).to(u.dtype)

    def into_cells(self, u: Tensor, q: Tensor, error: Tensor) -> Tensor:
        """The numbers next to `u` whose nearest numbers of the grid are `q`, also if they change by
        `error`. Beyond the last numbers of the grid, `u` stays."""
        below, above = self.neighbours(q)
        down, up = ((gap * _REACH - error).clamp_min(0) for gap in (q - below, above - q))
        least = torch.where(q <= self.low, -torch.inf, q - down)
        most = torch.where(q >= self.high, torch.inf, q + up)
        return torch.minimum(torch.maximum(u, least), most)

    def neighbours(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of the grid before and after each `q`."""
        if self.integers:
            return q - 1, q + 1
        exponent = q.abs().clamp_min(2.0**_E4M3_LEAST).log2().floor()
        step = torch.exp2(exponent - _E4M3_MANTISSA)
        smaller = (q.abs() == torch.exp2(exponent)) & (exponent > _E4M3_LEAST)
        inner = torch.where(smaller, step / 2, step)  # towards 0 from a power of 2
        return q - torch.where(q > 0, inner, step), q + torch.where(q < 0, inner, step)


class _FakeQuantize(torch.autograd.Function):
    """x float32 of any shape, s float32 that broadcasts against it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, grid: CodeGrid, count: int) -> Tensor:
        ctx.save_for_backward(x, s)
        ctx.grid, ctx.count = grid, count
        return grid.nearest(x / s) * s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, s = ctx.saved_tensors
        grid: CodeGrid = ctx.grid
        u = x / s
        inside = (u > grid.low) & (u < grid.high)
        grad_s = None
        if ctx.needs_input_grad[1]:
            slope = torch.where(inside, grid.nearest(u) - u, u.clamp(grid.low, grid.high))
            grad_s = (grad * slope).sum_to_size(s.shape) / sqrt(ctx.count * grid.high)
        return grad * inside, grad_s, None, None


def fake_quantize(x: Tensor, s: Tensor, grid: CodeGrid, count: int) -> Tensor:
    """x through codes of the grid with scales `s`, which broadcast against it. `count`: how many
    numbers share a scale, of one sample."""
    quantized: Tensor = _FakeQuantize.apply(x.float(), s, grid, count)  # type: ignore[no-untyped-call]
    return quantized


class _Held(torch.autograd.Function):
    """Numbers rounded to the carrier; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, carrier: str) -> Tensor:
        return x.to(getattr(torch, BY_SHORT[carrier].name)).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None


def held(x: Tensor, carrier: str) -> Tensor:
    """float32 numbers that the carrier ("fp16", "bf16", "fp32") holds."""
    rounded: Tensor = _Held.apply(x, carrier)  # type: ignore[no-untyped-call]
    return rounded


def held_scale(scale: Tensor, carrier: str, *, signed: bool = False) -> Tensor:
    """As `held`, but neither zero, subnormal nor infinite. `signed`: it may be negative."""
    limits = FLOATS[BY_SHORT[carrier].name]
    if signed:
        size = scale.abs().clamp(limits.smallest, limits.largest)
        return held(torch.where(scale < 0, -size, size), carrier)
    return held(scale.clamp(limits.smallest, limits.largest), carrier)


def in_blocks(x: Tensor, size: int) -> Tensor:
    """[..., K] → [..., blocks, size], with zeros behind the last number."""
    padded = F.pad(x, (0, -x.shape[-1] % size))
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size)


class _RoundedInBlocks(torch.autograd.Function):
    """As `quantization.numerics.run_time_blocks`. Nothing is clipped, so the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        blocks = in_blocks(x.float(), size)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        return ((blocks / scale).round() * scale).flatten(-2)[..., : x.shape[-1]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None


class RunTimeQuantizer(nn.Module):
    """The rounding to 8 bits that a kernel does to its input, in blocks of `size` along the last
    axis, with scales that it computes at run time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def used_scale(self) -> None:
        """The graph has none."""

    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = _RoundedInBlocks.apply(x, self.size)  # type: ignore[no-untyped-call]
        return rounded


class ActivationQuantizer(nn.Module):
    """Fake quantization of one value of the graph, `value`, with one scale. Several readers of the
    value share it.

    A state without its scale, such as that of the float model, leaves the scale as it is.
    """

    start: Tensor
    scale: Tensor | None

    def __init__(
        self,
        value: str,
        fmt: NumberFormat,
        scale: float,
        zero_point: int,
        carrier: str,
        *,
        learned: bool,
    ) -> None:
        super().__init__()
        self.value = value
        self.zero_point = zero_point
        self.grid = CodeGrid.of(fmt, zero_point)
        self.carrier = carrier
        _register(self, torch.tensor(scale), learned=learned)

    def used_scale(self) -> Tensor:
        """The scale of the graph, of rank 0."""
        return held_scale(_learned(self.start, self.scale), self.carrier)

    def forward(self, x: Tensor) -> Tensor:
        return fake_quantize(x, self.used_scale(), self.grid, x[:1].numel())


class WeightQuantizer(nn.Module):
    """Fake quantization of the weight of the product `node`. Axis 0 has the output channels.

    `common`: the scalar scale before the product, if the ratios of the channels are applied after
    it; None: the scale is before the product. `floored`: the bias becomes int32 in steps of s_x
    s_w. Learned scales have a parameter `scale`, the ratio to `start`; others follow the weights:
    max|w| / largest, with the sign that the format asks for (`NumberFormat.signed_scale`).
    """

    start: Tensor
    scale: Tensor | None

    def __init__(
        self,
        node: str,
        fmt: NumberFormat,
        scale: Tensor,
        common: float | None,
        carrier: str,
        *,
        floored: bool,
        learned: bool,
    ) -> None:
        super().__init__()
        self.node = node
        self.format = fmt
        self.grid = CodeGrid.of(fmt, 0)
        self.common = common
        self.carrier = carrier
        self.floored = floored
        self.per_channel = scale.ndim > 0
        if learned:
            _register(self, scale, learned=True)
        else:
            self.scale = None

    def used_scale(self, weight: Tensor, bias: Tensor | None, activation: Tensor | None) -> Tensor:
        """What is applied before the product or, if it is split, after it: [channels], [channels,
        blocks], or rank 0 for one scale. `weight`: with BatchNorm."""
        if self.scale is None:
            scale = self._following(weight.detach())
        else:
            scale = _learned(self.start, self.scale)
        if self.floored and bias is not None and activation is not None:
            least = bias.detach().abs() / (activation.detach() * BIAS_STEPS)
            scale = torch.maximum(scale, least if self.per_channel else least.max())
        return held_scale(
            scale if self.common is None else scale / self.common,
            self.carrier,
            signed=self.format.signed_scale,
        )

    def _following(self, weight: Tensor) -> Tensor:
        """The scale of these weights."""
        w = self._along(held(weight, self.carrier))
        low, high = w.amin(-1), w.amax(-1)
        scale = torch.maximum(-low, high)
        scale = torch.where(scale == 0, torch.ones_like(scale), scale / self.format.largest)
        return torch.where(high > -low, -scale, scale) if self.format.signed_scale else scale

    def _along(self, w: Tensor) -> Tensor:
        """The numbers of each scale along the last axis."""
        if self.format.block_size is not None:
            return in_blocks(w.flatten(1), self.format.block_size)
        return w.flatten(1) if self.per_channel else w.flatten()

    def forward(
        self, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias as the graph has them. `activation`: the scale of the input."""
        w = held(weight, self.carrier)
        scale = self._scale_of_codes(weight, bias, activation)
        if self.floored and bias is not None and activation is not None:
            bias = _in_steps(bias, activation, scale)
        along = self._along(w)
        quantized = fake_quantize(along, scale[..., None], self.grid, along.shape[-1])
        return self._as_weight(quantized, w), bias

    def values_of(
        self, codes: Tensor, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> Tensor:
        """What these codes (numbers of the grid, in the shape of the weight) represent; the scale
        is that of `forward` for the other arguments."""
        scale = self._scale_of_codes(weight, bias, activation)
        return self._as_weight(self._along(codes) * scale[..., None], weight)

    def nearest_of(
        self, codes: Tensor, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> Tensor:
        """The numbers nearest to `weight` that get these codes. Arguments as of `values_of`."""
        scale = self._scale_of_codes(weight, bias, activation)[..., None]
        along, q = self._along(weight), self._along(codes)
        carrier = FLOATS[BY_SHORT[self.carrier].name]
        # of rounding to the carrier, in units of the scale
        error = torch.maximum(q.abs(), carrier.smallest / scale.abs()) / carrier.exact
        moved = self.grid.into_cells(along / scale, q, error) * scale
        same = self.grid.nearest(self._along(held(weight, self.carrier)) / scale) == q
        return self._as_weight(torch.where(same, along, moved), weight)

    def _scale_of_codes(
        self, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> Tensor:
        scale = self.used_scale(weight, bias, activation)
        return scale if self.common is None else scale * self.common

    def _as_weight(self, along: Tensor, weight: Tensor) -> Tensor:
        """The reverse of `_along`, in the shape of the weight."""
        if self.format.block_size is not None:
            along = along.flatten(1)[:, : weight[0].numel()]
        return along.reshape(weight.shape)


class FrozenWeight(nn.Module):
    """In the place of a WeightQuantizer: the weight of the product `node` already has the numbers
    of the graph, whose scales are `scale`, and is not trained."""

    common = None
    scale: Tensor

    def __init__(self, node: str, scale: Tensor) -> None:
        super().__init__()
        self.node = node
        self.register_buffer("scale", scale.float())

    def used_scale(self, weight: Tensor, bias: Tensor | None, activation: Tensor | None) -> Tensor:
        """As that of WeightQuantizer."""
        return self.scale

    def forward(
        self, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return weight, bias


def _in_steps(bias: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
    """The bias in whole steps of s_x s_w, as the int32 bias of the graph; the gradient passes."""
    step = (activation.detach() * weight.detach().double()).float()
    codes = (bias.detach().double() / step.double()).round()
    return bias + (codes.float() * step - bias).detach()


class _Ratio(torch.autograd.Function):
    """ratio * start, with the gradient of the result over `start`."""

    @staticmethod
    def forward(ctx: Any, ratio: Tensor, start: Tensor) -> Tensor:
        ctx.save_for_backward(start)
        return ratio * start

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (start,) = ctx.saved_tensors
        return grad / start, None


def _learned(start: Tensor, ratio: Tensor | None) -> Tensor:
    """The scale that a ratio has learned; None: it learns nothing."""
    if ratio is None:
        return start
    scale: Tensor = _Ratio.apply(ratio, start)  # type: ignore[no-untyped-call]
    return scale


def _register(module: nn.Module, start: Tensor, *, learned: bool) -> None:
    """The buffer `start`, and the parameter `scale` if it is learned. A state without them leaves
    them as they are."""
    names = ["start", "scale"] if learned else ["start"]
    module.register_buffer("start", start.float())
    ratio = nn.Parameter(torch.ones_like(start, dtype=torch.float32)) if learned else None
    module.register_parameter("scale", ratio)

    def keep(module: nn.Module, state: dict[str, Any], prefix: str, *others: object) -> None:
        for name in names:
            state.setdefault(prefix + name, getattr(module, name).detach())

    module.register_load_state_dict_pre_hook(keep)  # type: ignore[no-untyped-call]
