"""`scatter_reduce` in all its ways, as torch computes it."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.runtimes import backend
from tests.sources.test_torch_module import export, spec

AXES = {"batch": AxisRange(1, 2, 3), "items": AxisRange(1, 5, 12)}
INDEX = InputSpec(TensorInfo("index", "int64", ("batch", "items")), (0, 6))


class Scattered(nn.Module):
    """Each way with and without the tensor itself; the last place of it gets nothing."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {}
        for reduce in ("sum", "mean", "prod", "amin", "amax"):
            for own in (True, False):
                tensor = torch.full((x.shape[0], 8), 0.5)
                found[f"{reduce}_{own}"] = tensor.scatter_reduce(
                    1, index, x, reduce, include_self=own
                )
        whole = torch.full((x.shape[0], 8), 7, dtype=torch.int64)
        found["whole"] = whole.scatter_reduce(1, index, (9 * x).long(), "mean")
        return found


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scattered") / "model.onnx"
    export(Scattered(), out, spec("x", "batch", "items"), INDEX, axes=AXES)
    return out


@pytest.mark.parametrize("odd", [0.0, inf, -inf])
def test_it_is_torchs(graph_file: Path, odd: float) -> None:
    rng = np.random.default_rng(0)
    with backend("onnxruntime").session(graph_file) as runner:
        for items in (1, 4, 12):
            x = rng.normal(size=(2, items)).astype(np.float32)
            x[1, -1] = odd or x[1, -1]
            index = rng.integers(0, 7, (2, items))
            expected = Scattered()(torch.from_numpy(x), torch.from_numpy(index))
            if not np.isfinite(odd):
                expected.pop("whole")  # an infinity is no integer
            found = runner.run({"x": x, "index": index})
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
