"""Quantization and dequantization in floats, with gradients: the numbers of QuantizeLinear and
DequantizeLinear, bit by bit.

    u = x / s,   q = round(clip(u, low, high)),   y = s q

LSQ (Esser et al. 2020, arXiv:1902.08153, eq. 3 and section 2.2) gives the gradients:

    dy/dx = 1 inside [low, high], else 0
    dy/ds = q - u inside, low or high outside;   scaled by 1 / sqrt(N high), N numbers per scale

A zero point moves the range: low = qmin - z, high = qmax - z.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from optkit.dtypes import BY_SHORT, FLOATS
from optkit.precisions import NumberFormat


@dataclass(frozen=True)
class Grid:
    """The numbers that codes represent with scale 1. `integers`: all between `low` and `high`;
    otherwise those of E4M3."""

    low: float
    high: float
    integers: bool

    @classmethod
    def of(cls, fmt: NumberFormat, zero_point: int) -> Grid:
        if fmt.is_integer:
            return cls(fmt.qmin - zero_point, fmt.qmax - zero_point, True)
        return cls(-fmt.largest, fmt.largest, False)

    def nearest(self, u: Tensor) -> Tensor:
        """The nearest numbers of the grid; halves go to the even one."""
        u = u.clamp(self.low, self.high)
        return u.round() if self.integers else u.to(torch.float8_e4m3fn).to(u.dtype)


class _FakeQuantize(torch.autograd.Function):
    """x float32 of any shape, s float32 that broadcasts against it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, grid: Grid, count: int) -> Tensor:
        ctx.save_for_backward(x, s)
        ctx.grid, ctx.count = grid, count
        return grid.nearest(x / s) * s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, s = ctx.saved_tensors
        grid: Grid = ctx.grid
        u = x / s
        inside = (u > grid.low) & (u < grid.high)
        grad_s = None
        if ctx.needs_input_grad[1]:
            slope = torch.where(inside, grid.nearest(u) - u, u.clamp(grid.low, grid.high))
            grad_s = (grad * slope).sum_to_size(s.shape) / sqrt(ctx.count * grid.high)
        return grad * inside, grad_s, None, None


def fake_quantize(x: Tensor, s: Tensor, grid: Grid, count: int) -> Tensor:
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


def held_scale(scale: Tensor, carrier: str) -> Tensor:
    """As `held`, but neither zero, subnormal nor infinite."""
    limits = FLOATS[BY_SHORT[carrier].name]
    return held(scale.clamp(limits.smallest, limits.largest), carrier)


class ActivationQuantizer(nn.Module):
    """Fake quantization of one value of the graph, `value`, with one scale. Several readers of the
    value share it.

    A state without its scale, such as that of the float model, leaves the scale as it is.
    """

    scale: Tensor

    def __init__(
        self, value: str, fmt: NumberFormat, scale: float, zero_point: int, carrier: str, *,
        learned: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.value = value
        self.zero_point = zero_point
        self.grid = Grid.of(fmt, zero_point)
        self.carrier = carrier
        _register(self, "scale", torch.tensor(scale), learned=learned)

    def used_scale(self) -> Tensor:
        """The scale of the graph, of rank 0."""
        return held_scale(self.scale, self.carrier)

    def forward(self, x: Tensor) -> Tensor:
        return fake_quantize(x, self.used_scale(), self.grid, x[:1].numel())


class WeightQuantizer(nn.Module):
    """Fake quantization of the weight of the product `node`. Axis 0 has the output channels.

    `common`: the scalar scale before the product, if the ratios of the channels are applied after
    it; None: the scale is before the product. `floored`: the bias becomes int32 in steps of s_x
    s_w. Learned scales have a parameter `scale`; others follow the weights: max|w| / largest.
    """

    scale: Tensor | None

    def __init__(
        self, node: str, fmt: NumberFormat, scale: Tensor, common: float | None, carrier: str, *,
        floored: bool, learned: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.node = node
        self.largest = fmt.largest
        self.grid = Grid.of(fmt, 0)
        self.common = common
        self.carrier = carrier
        self.floored = floored
        self.per_channel = scale.ndim > 0
        if learned:
            _register(self, "scale", scale, learned=True)
        else:
            self.scale = None

    def used_scale(self, weight: Tensor, bias: Tensor | None, activation: Tensor | None) -> Tensor:
        """What is applied before the product or, if it is split, after it: [channels], or rank 0
        for one scale. `weight`: with BatchNorm."""
        scale = self.scale
        if scale is None:
            size = held(weight.detach(), self.carrier).abs()
            scale = size.flatten(1).amax(1) if self.per_channel else size.max()
            scale = torch.where(scale == 0, torch.ones_like(scale), scale / self.largest)
        if self.floored and bias is not None and activation is not None:
            least = bias.detach().abs() / (activation.detach() * _BIAS_STEPS)
            scale = torch.maximum(scale, least if self.per_channel else least.max())
        return held_scale(scale if self.common is None else scale / self.common, self.carrier)

    def forward(
        self, weight: Tensor, bias: Tensor | None, activation: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias as the graph has them. `activation`: the scale of the input."""
        scale = self.used_scale(weight, bias, activation)
        w = held(weight, self.carrier)
        if self.common is not None:
            scale = scale * self.common
        along = scale.reshape(-1, *[1] * (w.ndim - 1)) if scale.ndim else scale
        shared = w[0].numel() if scale.ndim else w.numel()
        if self.floored and bias is not None and activation is not None:
            bias = _in_steps(bias, activation, scale)
        return fake_quantize(w, along, self.grid, shared), bias


_BIAS_STEPS = 2.0**30  # the largest bias, see `quantization.numerics.scales`


def _in_steps(bias: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
    """The bias in whole steps of s_x s_w, as the int32 bias of the graph; the gradient passes."""
    step = (activation.detach() * weight.detach().double()).float()
    codes = (bias.detach().double() / step.double()).round()
    return bias + (codes.float() * step - bias).detach()


def _register(module: nn.Module, name: str, number: Tensor, *, learned: bool) -> None:
    number = number.float()
    if learned:
        module.register_parameter(name, nn.Parameter(number))
    else:
        module.register_buffer(name, number)

    def keep(module: nn.Module, state: dict[str, Any], prefix: str, *others: object) -> None:
        state.setdefault(prefix + name, getattr(module, name).detach())

    module.register_load_state_dict_pre_hook(keep)  # type: ignore[no-untyped-call]
