"""Parts of a float32 model in bfloat16 or FP16: the graph rounds where torch rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optkit.craft.sources import export_check, in_float64, program
from optkit.facts.errors import ExportFailed, InputRefused
from optkit.facts.tensors import AxisRange
from optkit.ground import graph
from optkit.ground.runtimes import backend
from tests.sources.test_torch_module import export, spec

AXES = {"batch": AxisRange(1, 2, 3), "steps": AxisRange(2, 9, 20)}


class Rounding(nn.Module):
    """A float32 model with a product in bfloat16, as the ALiBi of Falcon."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.tensor([0.3, 1.7, 5.1], dtype=torch.bfloat16)
        return x + (x.bfloat16() * slope - x.bfloat16()).float()


class Halves(nn.Module):
    """A float32 model of which a part is in 16 bits, as autocast leaves it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.first = nn.Linear(8, 16)
        self.inner = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU()).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(self.first(x).to(self.dtype))
        return torch.softmax(y, -1).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_part_in_16_bits_is_rounded_as_torch_rounds_it(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    export(Halves(dtype), tmp_path / "model.onnx", spec("x", "batch", 8))
    weights = graph.load(tmp_path / "model.onnx").graph.initializers
    wide = dtype == torch.bfloat16
    assert str(weights["inner.0.weight"].dtype) == ("FLOAT" if wide else "FLOAT16")


def test_a_product_in_bfloat16_is_rounded_as_torch_rounds_it(tmp_path: Path) -> None:
    net, x = Rounding(), np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    export(net, tmp_path / "model.onnx", spec("x", "batch", 3))
    with backend("onnxruntime").session(tmp_path / "model.onnx") as runner:
        (found,) = runner.run({"x": x}).values()
    np.testing.assert_array_equal(found, net(torch.from_numpy(x)).numpy())


class Recurrent(nn.Module):
    """Two layers in both directions: with states in bfloat16, ONNX Runtime's optimizer crashed."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(8, 16, 2, batch_first=True, bidirectional=True).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.cell(x.bfloat16())[0]
        return outputs.float()


class Attention(nn.Module):
    def __init__(self, sharp: float, most: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.sharp, self.most = nn.Linear(32, 96), sharp, most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(3 * x).bfloat16().unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        q, k, v = parts
        y = F.scaled_dot_product_attention(self.sharp * q, self.sharp * k, v)
        return y.transpose(1, 2).flatten(2).float() * self.most


class Functions(nn.Module):
    """Operators of torch that are several nodes of the graph."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.bfloat16()
        found = (
            torch.erfc(x), torch.expm1(x), torch.log1p(x.abs()),
            F.logsigmoid(x), F.group_norm(x.transpose(1, 2), 4), F.silu(x), F.mish(x),
            torch.remainder(x, 0.3), x.std(-1), F.normalize(x, dim=-1),
            torch.cat([torch.zeros_like(x), x.flip(1)]), torch.where(x > 0, x, 0.1 * x),
        )  # fmt: skip
        return [one.float() for one in found]


def compared(net: nn.Module, out: Path, width: int, limit: float) -> None:
    """Export the net, and compare it at another size: `limit` is a share of the largest value."""
    torch.manual_seed(0)
    export(net, out, spec("x", "batch", "steps", width), axes=AXES)
    x = np.random.default_rng(0).normal(size=(2, 13, width)).astype(np.float32)
    with torch.no_grad():
        expected = net(torch.from_numpy(x))
    expected = expected if isinstance(expected, list) else [expected]
    with backend("onnxruntime").session(out) as runner:
        for found, one in zip(runner.run({"x": x}).values(), expected, strict=True):
            np.testing.assert_allclose(found, one, rtol=0, atol=limit * float(one.abs().max()))


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.RNN, marks=pytest.mark.slow)])
def test_recurrences_in_bfloat16(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    compared(Recurrent(kind), tmp_path / "model.onnx", 8, limit=2e-2)


def test_attention_in_bfloat16_rounds_once(tmp_path: Path) -> None:
    """Scores of 50 that are rounded to bfloat16 are off by 0.1, and their shares by 10 %."""
    torch.manual_seed(0)
    compared(Attention(sharp=3.0), tmp_path / "model.onnx", 32, limit=1e-2)


def test_operators_of_several_nodes_round_once(tmp_path: Path) -> None:
    compared(Functions(), tmp_path / "model.onnx", 16, limit=8e-3)


@pytest.mark.parametrize(
    "made",
    [pytest.param(partial(Recurrent, nn.LSTM), marks=pytest.mark.slow), partial(Attention, 3.0)],
)
def test_a_rounding_that_is_too_large_is_named_with_its_module(
    made: Callable[[], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where float64 cannot tell that it is one."""
    monkeypatch.setattr(in_float64, "exact", lambda *asked: None)
    monkeypatch.setattr(export_check, "_LIMITS", {2: 1e-6, 4: 1e-6, 8: 1e-6})
    torch.manual_seed(0)
    net = nn.Sequential(made())
    width = 8 if isinstance(net[0], Recurrent) else 32
    with pytest.raises(ExportFailed, match=r"It begins at .* in 0") as caught:
        export(net, tmp_path / "model.onnx", spec("x", "batch", "steps", width), axes=AXES)
    assert "test_bfloat16.py" in str(caught.value.where)
    assert "compute these parts in float32" in str(caught.value.hint)


def test_a_program_that_takes_bfloat16_is_refused(tmp_path: Path) -> None:
    saved = torch.export.export(nn.Identity(), (torch.zeros(2, 3, dtype=torch.bfloat16),))
    torch.export.save(saved, tmp_path / "model.pt2")
    with pytest.raises(InputRefused, match="is bfloat16, of which there are no arrays"):
        program.export(
            tmp_path / "model.pt2", [], {}, tmp_path / "model.onnx",
            session=lambda path: backend("onnxruntime").session(path),
            progress=lambda what, fraction: None,
        )  # fmt: skip
