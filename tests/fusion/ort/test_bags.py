"""Sums over bags that offsets divide: each row is added to its bag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import to_ort
from optkit.craft.sources import torch_module
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, backend


class Bags(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 6, **settings)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = self.bag(ids, offsets)
        return sums


def feed(bags: int, entries: int, *, last: bool, seed: int = 0) -> Feed:
    """Offsets with empty bags, also at the end."""
    rng = np.random.default_rng(seed)
    begins = np.sort(rng.integers(0, entries + 1, bags - 1))
    ends = [entries] if last else []
    return {"ids": rng.integers(0, 50, entries), "offsets": np.array([0, *begins, *ends])}


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "mean", "padding_idx": 3},
        {"mode": "sum", "include_last_offset": True},
    ],
)
def test_rows_are_added_to_their_bags(settings: dict[str, Any], tmp_path: Path) -> None:
    module = Bags(**settings).eval()
    specs = [
        InputSpec(TensorInfo("ids", "int64", ("entries",)), (0, 49)),
        InputSpec(TensorInfo("offsets", "int64", ("bags",)), (0, 0)),
    ]
    torch_module.export(
        module, specs, {"entries": AxisRange(1, 9, 900), "bags": AxisRange(3, 4, 90)},
        tmp_path / "m.onnx", session=backend("onnxruntime").session,
        progress=lambda what, share: None,
    )  # fmt: skip
    model = graph.load(tmp_path / "m.onnx")
    fuse(model)
    log = to_ort(model)
    assert log.counts["bags"] == (2 if "padding_idx" in settings else 1)
    assert not {"MatMul", "Less", "And"} & {node.op_type for node in model.graph}
    graph.save(model, tmp_path / "ort.onnx")
    with backend("onnxruntime").session(tmp_path / "ort.onnx", SessionOptions(2)) as session:
        for bags, entries in ((1, 1), (7, 30), (80, 800)):
            given = feed(bags, entries, last="include_last_offset" in settings)
            wanted = module(*map(torch.from_numpy, given.values())).detach().numpy()
            for _ in range(5):  # rows of one bag must not be added at the same time
                np.testing.assert_allclose(session.run(given)["output"], wanted, atol=1e-5)
