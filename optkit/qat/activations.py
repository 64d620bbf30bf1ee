"""Fake quantization of the result of a module that has no parts, such as an activation function or
an embedding."""

from __future__ import annotations

from typing import Any

from torch import nn

QUANTIZER = "output_quantizer"


class QuantizedResult(nn.Module):
    """The first base of the classes of `quantize_result`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, QUANTIZER)(super().forward(*args, **kwargs))


def quantize_result(module: nn.Module, quantizer: nn.Module) -> None:
    """Quantize what the module returns."""
    plain = type(module)
    module.__class__ = type(f"Quantized{plain.__name__}", (QuantizedResult, plain), {})
    module.register_module(QUANTIZER, quantizer)


def as_plain(module: nn.Module) -> None:
    """Change the module back to its own class."""
    delattr(module, QUANTIZER)
    module.__class__ = type(module).__bases__[1]
