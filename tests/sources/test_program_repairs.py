"""What is changed in a captured program before torch's exporter reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.sources import torch_module
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground.runtimes import backend

AXES = {"batch": AxisRange(1, 2, 8), "n": AxisRange(1, 3, 9)}


class Masked(nn.Module):
    """`1.0 - mask` of an integer mask, as XLNet computes it."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (1.0 - mask) * x, 3 - mask, torch.rsub(mask, 2.5, alpha=2)


class Checked(nn.Module):
    """A check of values and one of sizes, as D-FINE has them."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(mask.sum() >= 0)
        torch._check(x.shape[1] == mask.shape[1])
        return x * mask


class Classes(nn.Module):
    """As many classes as an axis has places."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hot = nn.functional.one_hot(mask.long(), mask.shape[1] + 2)
        return hot.to(x.dtype).sum(-1) * x, hot


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
@pytest.mark.parametrize("made", [Masked, Checked, Classes])
def test_the_graph_equals_the_module(made: type[nn.Module], dtype: str, tmp_path: Path) -> None:
    module, out = made().eval(), tmp_path / "model.onnx"
    specs = [InputSpec(TensorInfo("mask", dtype, ("batch", "n")), (0, 1)),
             InputSpec(TensorInfo("x", "float32", ("batch", "n")))]  # fmt: skip
    torch_module.export(
        module, specs, AXES, out,
        session=lambda path: backend("onnxruntime").session(path), progress=lambda *_: None,
    )  # fmt: skip
    for batch, n in ((1, 1), (3, 7), (8, 2)):
        rng = np.random.default_rng(n)
        feed: Feed = {
            "mask": rng.integers(0, 2, (batch, n)).astype(dtype),
            "x": rng.standard_normal((batch, n)).astype(np.float32),
        }
        returned = module(*map(torch.from_numpy, feed.values()))
        expected = returned if isinstance(returned, tuple) else (returned,)
        with backend("onnxruntime").session(out) as session:
            found = session.run(feed).values()
        for a, b in zip(expected, found, strict=True):
            assert b.dtype == a.numpy().dtype
            np.testing.assert_allclose(b, a.numpy(), atol=1e-6)
