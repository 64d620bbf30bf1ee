"""Branches on buffers are decided, branches on inputs are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.sources import constant_branches, torch_module
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.runtimes import backend

AXES = {"batch": AxisRange(1, 2, 8)}
SPECS = [InputSpec(TensorInfo("x", "float32", ("batch", 4)))]


class Gated(nn.Module):
    """Buffers decide which layers run, how often, and by what the result is multiplied."""

    def __init__(self, gates: list[float], *, ready: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("gates", torch.tensor(gates))
        self.register_buffer("ready", torch.tensor([ready]))
        self.register_buffer("factor", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate in range(2):
            if self.gates[gate] * 2 > 0.5:
                x = self.layer(x)
        if not self.ready:
            x = x - 1
        return x * self.factor.item()


class Measured(Gated):
    """Its buffer is overwritten by a value of the input before the branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.gates.copy_(x[0, :2])
        return super().forward(x)


def _export(module: nn.Module, out: Path) -> None:
    torch_module.export(
        module, SPECS, AXES, out,
        session=lambda path: backend("onnxruntime").session(path), progress=lambda *_: None,
    )  # fmt: skip


@pytest.mark.parametrize(("gates", "ready"), [([1.0, 0.0], True), ([0.3, 1.0], False)])
def test_the_branch_of_the_buffers_is_exported(
    gates: list[float], ready: bool, tmp_path: Path
) -> None:
    module = Gated(gates, ready=ready).eval()
    _export(module, tmp_path / "model.onnx")
    x = torch.randn(5, 4)
    with backend("onnxruntime").session(tmp_path / "model.onnx") as session:
        (found,) = session.run({"x": x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-6)


def test_a_buffer_that_depends_on_the_input_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="only known at run time"):
        _export(Measured([1.0, 0.0], ready=True).eval(), tmp_path / "model.onnx")


def test_the_forward_of_the_module_is_its_own_again() -> None:
    module = Gated([1.0, 0.0], ready=True)
    with constant_branches.decided(module):
        assert "forward" in vars(module)
    assert "forward" not in vars(module)
