"""Products (convolutions and linear layers) with fake quantization, and BatchNorm folded into them.

A module keeps its place, its parameters and their names; only its class changes. BatchNorm keeps
its parameters too, but its class returns its input: the product before it multiplies its weight by
gamma / sqrt(variance + eps), with the statistics of the float training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optkit.satellites.qat.adapters import NAME, AdaptedLinear, Adapter
from optkit.satellites.qat.derived import derive, restore
from optkit.satellites.qat.fake_quantization import (
    ActivationQuantizer,
    FrozenWeight,
    RunTimeQuantizer,
    WeightQuantizer,
)


class Product(nn.Module):
    """A mixin of the classes below. `input_quantizer`, `weight_quantizer`, `output_quantizer`: None
    where the graph has floats. `adapter`: beside the product, in floats. `_norm`: the folded
    BatchNorm in a tuple, so that it is no part of this module; empty if there is none."""

    weight: Tensor
    bias: Tensor | None
    input_quantizer: ActivationQuantizer | RunTimeQuantizer | None
    weight_quantizer: WeightQuantizer | FrozenWeight | None
    output_quantizer: ActivationQuantizer | None
    adapter: Adapter | None
    _norm: tuple[Any, ...]

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with BatchNorm, float32."""
        if not self._norm:
            return self.weight, self.bias
        (norm,) = self._norm
        factor = self._factor()
        bias = -norm.running_mean if self.bias is None else self.bias - norm.running_mean
        bias = bias * factor
        if norm.bias is not None:
            bias = bias + norm.bias
        return self.weight * factor.reshape(-1, *[1] * (self.weight.ndim - 1)), bias

    @property
    def has_folded_norm(self) -> bool:
        return bool(self._norm)

    def _factor(self) -> Tensor:
        """What BatchNorm multiplies the channels by, [channels]."""
        (norm,) = self._norm
        factor = torch.rsqrt(norm.running_var + norm.eps)
        return factor if norm.weight is None else factor * norm.weight

    @torch.no_grad()
    def start_from(self, codes: Tensor) -> None:
        """Move the weight as little as possible, so that it gets these codes (numbers of the grid,
        in the shape of the weight)."""
        assert isinstance(self.weight_quantizer, WeightQuantizer)
        weight, bias = self.folded()
        moved = self.weight_quantizer.nearest_of(codes, weight, bias, self._input_scale())
        if self._norm:
            own = moved / self._factor().reshape(-1, *[1] * (weight.ndim - 1))
            moved = torch.where(moved == weight, self.weight, own)
        self.weight.copy_(moved)

    @torch.no_grad()
    def correct(self, change: Tensor) -> bool:
        """Add `change` [channels] to the bias after BatchNorm. False if there is no bias."""
        norm = self._norm[0] if self._norm else None
        if norm is not None and norm.bias is not None:
            norm.bias += change
        elif self.bias is not None:
            self.bias += change if norm is None else change / self._factor()
        else:
            return False
        return True

    def used_weight_scale(self) -> Tensor:
        """The scale of the weight as the graph has it, see `WeightQuantizer.used_scale`."""
        assert self.weight_quantizer is not None
        weight, bias = self.folded()
        return self.weight_quantizer.used_scale(weight, bias, self._input_scale())

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _input_scale(self) -> Tensor | None:
        return None if self.input_quantizer is None else self.input_quantizer.used_scale()

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.folded()
        read = input if self.input_quantizer is None else self.input_quantizer(input)
        if self.weight_quantizer is not None:
            weight, bias = self.weight_quantizer(weight, bias, self._input_scale())
        y = self.product(read, weight, bias)
        if self.adapter is not None:
            y = y + self.adapter(input)
        return y if self.output_quantizer is None else self.output_quantizer(y)


class _Convolution(Product):
    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolved: Tensor = self._conv_forward(x, weight, bias)  # type: ignore[operator]
        return convolved


class Conv1d(_Convolution, nn.Conv1d): ...


class Conv2d(_Convolution, nn.Conv2d): ...


class Conv3d(_Convolution, nn.Conv3d): ...


class Linear(Product, nn.Linear):  # type: ignore[misc]  # the bias of a Linear may be None too
    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class FoldedNorm(nn.Module):
    """The first base of the classes of BatchNorm that is folded. Only its parts run."""

    def forward(self, input: Tensor) -> Tensor:
        x = input
        for part in self.children():
            x = part(x)
        return x


MODULES: dict[type[nn.Module], type[Product]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.Linear: Linear,
}
"""A class of torch → the class that quantizes."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PARTS = ["drop", "act"]  # of timm's BatchNormAct2d, which runs them after the normalization
_PLAIN = {quantized: plain for plain, quantized in MODULES.items()}


def as_product(module: nn.Module) -> Product:
    """The module, with the class that quantizes; `module` has a class of MODULES or already such a
    class."""
    if not isinstance(module, Product):
        setattr(module, "__class__", MODULES[type(module)])  # noqa: B010  (of another type)
        vars(module)["_norm"] = ()
        for name in ("input_quantizer", "weight_quantizer", "output_quantizer", NAME):
            module.register_module(name, None)
    assert isinstance(module, Product)
    return module


def fold(product: nn.Module, norm: nn.Module) -> None:
    """Fold BatchNorm into the product before it."""
    as_product(product)._norm = (norm,)
    derive(norm, FoldedNorm, "Folded")


def unfold(product: nn.Module, norm: nn.Module) -> None:
    """The reverse of `fold`."""
    as_product(product)._norm = ()
    restore(norm)


@torch.no_grad()
def as_plain(product: Product) -> None:
    """Change the product back to its plain class, with the weights that it multiplies and its
    adapter. A weight that another module shares stays shared."""
    if product._norm:
        weight, bias = product.folded()
        product.weight = nn.Parameter(weight.detach().clone())
        product.bias = None if bias is None else nn.Parameter(bias.detach().clone())
    del product.input_quantizer, product.weight_quantizer, product.output_quantizer
    del product._norm
    plain = _PLAIN[type(product)] if product.adapter is None else AdaptedLinear
    if product.adapter is None:
        del product.adapter
    setattr(product, "__class__", plain)  # noqa: B010  (of another type)


def _is_norm(module: nn.Module) -> bool:
    parts = [name for name, _ in module.named_children()]
    return type(module) in _NORMS or (isinstance(module, _NORMS) and parts == _PARTS)


def foldable(model: nn.Module, run: Callable[[], object]) -> list[tuple[nn.Module, nn.Module]]:
    """Products with the BatchNorm that reads their result: pairs of modules, each called once by
    `run()`, in evaluation mode."""
    results: dict[int, tuple[Tensor, Any]] = {}
    pairs: list[tuple[Any, Any]] = []
    calls: dict[nn.Module, int] = {}

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if type(module) in MODULES:
            results[id(output)] = output, module
        elif _is_norm(module) and inputs and id(inputs[0]) in results:
            pairs.append((results[id(inputs[0])][1], module))

    watched = [part for part in model.modules() if type(part) in MODULES or _is_norm(part)]
    hooks = [part.register_forward_hook(watch) for part in watched]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [
        (product, norm)
        for product, norm in pairs
        if calls[product] == calls[norm] == 1
        and getattr(norm, "running_mean", None) is not None
        and (product.weight.ndim > 2 or norm.running_mean.ndim == 1)
    ]
