"""Pools that round the number of their windows up, over axes of free size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch._meta_registrations import pooling_output_shape_pad_lr

from optkit.craft.sources import pool_sizes
from optkit.facts.tensors import AxisRange
from tests.sources.test_torch_module import export, spec


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 3), st.integers(0, 3),
       st.integers(1, 5), st.integers(1, 3), st.booleans())  # fmt: skip
def test_the_number_of_windows_is_torchs(
    size: int, kernel: int, left: int, right: int, stride: int, dilation: int, ceil: bool
) -> None:
    span = dilation * (kernel - 1) + 1
    assume(max(left, right) <= span // 2 and size + left + right >= span)
    expected = pooling_output_shape_pad_lr(size, kernel, left, right, stride, dilation, ceil)
    assert pool_sizes.windows(size, kernel, left, right, stride, dilation, ceil) == expected


class Pools(nn.Module):
    """A maximum whose last window may begin behind the picture, behind a stride, and a mean."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.first = nn.MaxPool2d(2, 2, padding=padding, ceil_mode=True)
        self.second = nn.AvgPool2d(3, 2, padding=padding, ceil_mode=True, count_include_pad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


@pytest.mark.parametrize("padding", [0, 1])
def test_pools_over_pictures_of_free_size(padding: int, tmp_path: Path) -> None:
    side = AxisRange(9, 14, 40)
    axes = {"batch": AxisRange(1, 2, 3), "h": side, "w": side}
    export(Pools(padding), tmp_path / "model.onnx", spec("x", "batch", 2, "h", "w"), axes=axes)
