"""`len` of a tensor in a model's code keeps the axis dynamic, and only while it is traced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from optkit.craft.sources import tensor_lengths
from tests.sources.test_torch_module import export, spec


class Counting(nn.Module):
    """Its batch size is a `len`, as in RT-DETR."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        return x.reshape(rows, -1) * 2 + len([1, 2])


def test_an_axis_read_by_len_stays_dynamic(tmp_path: Path) -> None:
    log = export(Counting(), tmp_path / "model.onnx", spec("x", "batch", 2, 3))
    assert log.inputs[0].shape == ("batch", 2, 3)
    assert {check.sizes["batch"] for check in log.checks} >= {1}


def test_the_code_of_a_model_is_as_before_afterwards() -> None:
    names = vars(sys.modules[__name__])
    with pytest.raises(KeyError), tensor_lengths.symbolic(nn.Sequential(Counting())):
        assert names["len"](torch.ones(3, 2)) == 3 and names["len"]([1]) == 1
        with pytest.raises(TypeError):
            names["len"](torch.tensor(1))
        assert "len" not in vars(sys.modules["torch.nn.modules.container"])
        raise KeyError
    assert "len" not in names
