"""Fake quantization of the result of a module that has no parts, such as an activation function or
an embedding."""

from __future__ import annotations

from typing import Any

from torch import nn

from optkit.satellites.qat.derived import derive, restore

QUANTIZER = "output_quantizer"


class QuantizedResult(nn.Module):
    """The first base of the classes of `quantize_result`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, QUANTIZER)(super().forward(*args, **kwargs))


def quantize_result(module: nn.Module, quantizer: nn.Module) -> None:
    """Quantize what the module returns."""
    derive(module, QuantizedResult, "Quantized")
    module.register_module(QUANTIZER, quantizer)


def as_plain(module: nn.Module) -> None:
    """Change the module back to its own class."""
    delattr(module, QUANTIZER)
    restore(module)
