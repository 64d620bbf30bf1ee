"""Nearest interpolation to a size reads the pixels that torch reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optkit.craft.sources import torch_module
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend


class Like(nn.Module):
    """The first picture at the size of the second."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=y.shape[2:], mode="nearest")


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(80, 80))


def export(module: nn.Module, out: Path, *specs: InputSpec, **sides: AxisRange) -> None:
    torch_module.export(
        module, specs, {"batch": AxisRange(1, 1, 2), **sides}, out,
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None,
    )  # fmt: skip


def test_every_pair_of_sizes(tmp_path: Path) -> None:
    specs = [
        InputSpec(TensorInfo(name, "float32", ("batch", 1, f"{name}_h", f"{name}_w")))
        for name in "xy"
    ]
    side = AxisRange(1, 24, 120)
    sides = {f"{name}_{axis}": side for name in "xy" for axis in "hw"}
    export(Like(), tmp_path / "m.onnx", *specs, **sides)
    wrong = 0
    with backend("onnxruntime").session(tmp_path / "m.onnx") as session:
        for size in range(1, 121, 3):
            x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
            for new in range(1, 121, 7):
                y = np.zeros((1, 1, new, 121 - new), np.float32)
                found = session.run({"x": x, "y": y})["output"]
                expected = F.interpolate(torch.from_numpy(x), size=y.shape[2:]).numpy()
                wrong += not np.array_equal(found, expected)
    assert wrong == 0


@pytest.mark.parametrize(("side", "kind"), [(40, "Resize"), (6, "Gather")])
def test_known_sizes_that_agree_stay_one_operator(side: int, kind: str, tmp_path: Path) -> None:
    spec = InputSpec(TensorInfo("x", "float32", ("batch", 1, side, side)))
    module: nn.Module = Doubled() if side == 40 else Fixed()
    export(module, tmp_path / "m.onnx", spec)
    assert kind in {node.op_type for node in graph.load(tmp_path / "m.onnx").graph}


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(74, 74))
