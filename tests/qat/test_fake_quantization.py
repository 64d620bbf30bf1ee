"""Fake quantization has the numbers of ONNX's QuantizeLinear and DequantizeLinear, and the
gradients of LSQ."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.quantization.numerics import format_codes, scales
from optkit.craft.quantization.numerics.scales import Scale
from optkit.facts.precisions import NumberFormat
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.satellites.qat.fake_quantization import (
    ActivationQuantizer,
    CodeGrid,
    WeightQuantizer,
    fake_quantize,
    held_scale,
)

FORMATS = {
    "s8": (NumberFormat("int8", "tensor", symmetric=True), 0),
    "u8": (NumberFormat("uint8", "tensor", symmetric=False), 114),
    "7 bits": (NumberFormat("int8", "tensor", symmetric=True, limit_bits=7), 0),
    "e4m3": (NumberFormat("float8e4m3fn", "tensor", symmetric=True), 0),
}


@pytest.fixture
def x() -> torch.Tensor:
    """Numbers inside and outside of the range, and numbers between two codes."""
    numbers = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 3
    return torch.cat([numbers, torch.arange(-300, 300) * 0.0125])


@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_are_those_of_the_quantizer(name: str, x: torch.Tensor) -> None:
    fmt, zero_point = FORMATS[name]
    scale = Scale(np.float32(0.025), np.array(zero_point, format_codes.storage(fmt)), 0)
    codes = scales.quantize(x.numpy(), scale, fmt)
    expected = scales.dequantize(codes, scale, fmt=fmt)
    found = fake_quantize(x, torch.tensor(0.025), CodeGrid.of(fmt, zero_point), 1)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", ["s8", "u8"])
def test_the_numbers_are_those_of_onnx_runtime(name: str, x: torch.Tensor, tmp_path: Path) -> None:
    fmt, zero_point = FORMATS[name]
    zero = np.array(zero_point, format_codes.storage(fmt))
    constants = [numpy_helper.from_array(np.float32(0.025), "s"),
                 numpy_helper.from_array(zero, "z")]  # fmt: skip
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [len(x)]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    # ONNX Runtime uses the code -128, which symmetric codes leave out
    inside = x[x > -127 * 0.025] if fmt.symmetric else x
    padded = torch.cat([inside, inside.new_zeros(len(x) - len(inside))])
    with simulator().session(tmp_path / "m.onnx", SessionOptions(1, level="none")) as session:
        (expected,) = session.run({"x": padded.numpy()}).values()
    found = fake_quantize(padded, torch.tensor(0.025), CodeGrid.of(fmt, zero_point), 1)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_the_gradients_are_those_of_the_paper(name: str, x: torch.Tensor) -> None:
    """Against autograd of equation 1 with a straight-through rounding, which gives equation 3."""
    grid = CodeGrid.of(*FORMATS[name])
    upstream = torch.randn(len(x), generator=torch.Generator().manual_seed(1))
    at_the_end = ((x / 0.025).abs() - torch.tensor([[-grid.low], [grid.high]])).abs().amin(0) < 0.01
    upstream[at_the_end] = 0  # autograd takes these for numbers inside
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []
    for through in (False, True):
        v, s = x.clone().requires_grad_(), torch.tensor(0.025, requires_grad=True)
        if through:
            y = fake_quantize(v, s, grid, 64)
        else:
            u = (v / s).clamp(grid.low, grid.high)
            y = (u + (grid.nearest(u) - u).detach()) * s
        (y * upstream).sum().backward()
        assert v.grad is not None and s.grad is not None
        ends.append((v.grad, s.grad))
    (expected_v, expected_s), (found_v, found_s) = ends
    torch.testing.assert_close(found_v, expected_v)
    torch.testing.assert_close(found_s * sqrt(64 * grid.high), expected_s, rtol=1e-3, atol=1e-3)


def test_the_scale_of_each_channel_has_its_own_gradient() -> None:
    w = torch.randn(3, 20)
    s = torch.tensor([[0.01], [0.02], [0.05]], requires_grad=True)
    fake_quantize(w, s, CodeGrid(-127, 127, True), 20).sum().backward()
    for channel in range(3):
        alone = s.detach()[channel].requires_grad_()
        fake_quantize(w[channel], alone, CodeGrid(-127, 127, True), 20).sum().backward()
        assert s.grad is not None and alone.grad is not None
        torch.testing.assert_close(s.grad[channel], alone.grad)


@pytest.mark.parametrize("start", [0.02, 2e-5])
def test_a_step_changes_a_scale_by_its_share(start: float) -> None:
    """Adam by the learning rate, SGD as if the scale itself were the parameter."""
    fmt = NumberFormat("float8e4m3fn", "tensor", symmetric=True)
    x = torch.randn(256, generator=torch.Generator().manual_seed(0)) * start * 300
    upstream = torch.randn(256, generator=torch.Generator().manual_seed(1))
    kinds: dict[str, tuple[Any, float]] = {
        "adam": (torch.optim.Adam, 1e-2), "sgd": (torch.optim.SGD, 1e-3 * start)
    }  # fmt: skip
    shares = {}
    for name, (kind, rate) in kinds.items():
        quantizer = ActivationQuantizer("x", fmt, start, 0, "fp32", learned=True)
        optimizer = kind(quantizer.parameters(), lr=rate)
        (quantizer(x) * upstream).sum().backward()
        optimizer.step()
        shares[name] = quantizer.used_scale().item() / start - 1
    assert abs(shares["adam"]) == pytest.approx(1e-2, rel=1e-3)
    s = torch.tensor(start, requires_grad=True)
    (fake_quantize(x, s, CodeGrid.of(fmt, 0), 1) * upstream).sum().backward()
    assert s.grad is not None
    step = -kinds["sgd"][1] * s.grad.item() / start
    assert shares["sgd"] == pytest.approx(step, rel=1e-2, abs=1e-6)


def test_a_scale_is_what_the_carrier_holds() -> None:
    found = held_scale(torch.tensor([1e-9, -1.0, 0.1]), "fp16")
    expected = np.array([2.0**-14, 2.0**-14, np.float16(0.1)], np.float32)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_fixed_scales_follow_the_weights() -> None:
    fmt = NumberFormat("int8", "channel", symmetric=True)
    quantizer = WeightQuantizer("n", fmt, torch.ones(2), None, "fp32", floored=False, learned=False)
    weight = torch.tensor([[0.5, -1.27], [0.0, 0.0]])
    expected = scales.weight_scale(weight.numpy(), 0, fmt, np.float32).scale
    np.testing.assert_array_equal(quantizer.used_scale(weight, None, None).numpy(), expected)
