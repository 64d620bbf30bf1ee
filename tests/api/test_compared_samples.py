"""An export is compared on the samples of its recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import optkit
from optkit.ground.workspace import Workspace

MODEL = """
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4000, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids, mask):
        return self.layer(self.table(ids - 100), src_mask=mask)


def create():
    torch.manual_seed(0)
    return Net().eval()


def samples():
    for length in (5, 9, 3, 7, 7, 7, 7, 7, 7, 7):
        ids = np.random.default_rng(length).integers(100, 4100, (2, length))
        yield {"ids": ids, "mask": np.triu(np.full((length, length), -np.inf, np.float32), 1)}
"""
RECIPE = """
name: net
model: {factory: "net.py:create"}
inputs:
  ids: {dtype: int64, shape: [batch, t]}
  mask: {dtype: float32, shape: [t, t]}
axes:
  batch: {min: 1, opt: 2, max: 4}
  t: {min: 3, opt: 7, max: 16}
calibration: {source: "net.py:samples"}
"""


@pytest.mark.slow
def test_samples_of_the_recipe_reach_the_export(tmp_path: Path) -> None:
    """Ids from 100 on, which random ones are not, and a mask of floats."""
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "optkit.yaml").write_text(RECIPE)
    optkit.export(
        out=tmp_path / "out", recipe=tmp_path / "optkit.yaml",
        workspace=Workspace(cache=tmp_path / "cache"),
    )  # fmt: skip
    checks = json.loads((tmp_path / "out" / "details.json").read_text())["log"]["checks"]
    own = [check["sizes"]["t"] for check in checks if check["masks"] is None]
    assert {check["values"] for check in checks} == {"samples"}
    assert {3, 5, 7, 9} <= set(own) and {3, 16} <= set(own)
