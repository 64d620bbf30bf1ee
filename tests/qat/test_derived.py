"""A module whose class is changed for the training takes the arguments of the float module."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from optkit.satellites.qat import activations, additions, products


class Doubled(nn.Module):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        return input_ids + input_ids


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def quantized_sum(net: nn.Module) -> None:
    additions.quantize_addition(net, 0, additions.RESULT, Halved())


def quantized_result(net: nn.Module) -> None:
    activations.quantize_result(net, Halved())


@pytest.mark.parametrize(
    ("change", "as_plain"),
    [(quantized_sum, additions.as_plain), (quantized_result, activations.as_plain)],
)
def test_forward_keeps_its_signature_and_quantizes(
    change: Callable[[nn.Module], None], as_plain: Callable[[nn.Module], None]
) -> None:
    net = Doubled()
    float_signature = inspect.signature(net.forward)
    x = torch.ones(2, 3)
    change(net)
    assert isinstance(net, Doubled) and type(net).__name__ == "QuantizedDoubled"
    assert inspect.signature(net.forward) == float_signature
    assert torch.equal(net(x, labels=None), x)
    as_plain(net)
    assert type(net) is Doubled
    assert torch.equal(net(input_ids=x), 2 * x)


def test_products_and_norms_take_their_input_by_name() -> None:
    """As nn.Linear and nn.BatchNorm1d do."""
    linear, norm, x = nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), torch.ones(2, 4)
    expected = norm(input=linear(input=x))
    products.fold(linear, norm)
    torch.testing.assert_close(norm(input=linear(input=x)), expected)
    products.unfold(linear, norm)
    assert type(norm) is nn.BatchNorm1d
    assert torch.equal(norm(input=linear(input=x)), expected)
