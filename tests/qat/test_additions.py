"""A module whose additions are quantized takes the arguments of the float module."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from optkit.qat.additions import RESULT, as_plain, quantize_addition


class Doubled(nn.Module):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        return input_ids + input_ids


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_forward_keeps_its_signature_and_quantizes() -> None:
    net = Doubled()
    float_signature = inspect.signature(net.forward)
    x = torch.ones(2, 3)
    quantize_addition(net, 0, RESULT, Halved())
    assert inspect.signature(net.forward) == float_signature
    assert torch.equal(net(x, labels=None), x)
    as_plain(net)
    assert inspect.signature(net.forward) == float_signature
    assert torch.equal(net(input_ids=x), 2 * x)
