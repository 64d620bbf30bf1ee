"""Fake quantization at additions that the code of a module writes, such as those of shortcuts.

A module that `quantize_addition` has changed runs its `forward` in a TorchFunctionMode that counts
the additions of two tensors. It is entered by the module itself, so it is there too when gradient
checkpointing runs the module again, and torch.compile traces it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from optkit.satellites.qat.derived import derive, restore

RESULT = 2
"""The place of the sum, beside those of its operands, 0 and 1."""
QUANTIZERS = "addition_quantizers"

_ADDS = frozenset(
    {
        torch.add,
        *(torch.Tensor.add, torch.Tensor.add_),
        *(torch.Tensor.__add__, torch.Tensor.__iadd__, torch.Tensor.__radd__),
    }
)


class _Additions(TorchFunctionMode):
    """`quantizers`: "n_place" → the quantizer of an operand or of the result of addition n."""

    def __init__(self, quantizers: nn.ModuleDict) -> None:
        super().__init__()
        self.quantizers = quantizers
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in _ADDS or not _of_values(args):
            return func(*args, **(kwargs or {}))
        number, self.count = self.count, self.count + 1
        operands = [self._quantized(number, place, args[place]) for place in (0, 1)]
        return self._quantized(number, RESULT, func(*operands, *args[2:], **(kwargs or {})))

    def _quantized(self, number: int, place: int, x: Tensor) -> Tensor:
        key = f"{number}_{place}"
        return self.quantizers[key](x) if key in self.quantizers else x


def _of_values(args: tuple[Any, ...]) -> bool:
    """Whether two float tensors are added, neither a parameter nor of less than two axes: numbers,
    and biases of products."""
    return len(args) > 1 and all(
        isinstance(x, Tensor)
        and not isinstance(x, nn.Parameter)
        and x.ndim > 1
        and x.is_floating_point()
        for x in args[:2]
    )


class QuantizedAdditions(nn.Module):
    """The first base of the classes of modules whose additions are quantized."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Additions(getattr(self, QUANTIZERS)):
            return super().forward(*args, **kwargs)


def quantize_addition(module: nn.Module, number: int, place: int, quantizer: nn.Module) -> None:
    """Quantize an operand (0 or 1) of the addition `number` of the module, or its RESULT."""
    if not isinstance(module, QuantizedAdditions):
        derive(module, QuantizedAdditions, "Quantized")
        module.register_module(QUANTIZERS, nn.ModuleDict())
    getattr(module, QUANTIZERS)[f"{number}_{place}"] = quantizer


def as_plain(module: nn.Module) -> None:
    """Change the module back to its own class."""
    delattr(module, QUANTIZERS)
    restore(module)
