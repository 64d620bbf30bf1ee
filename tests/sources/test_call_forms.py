"""Calls of torch in forms that its exporter does not take, as torch computes them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from optkit.facts.tensors import AxisRange
from tests.sources.test_torch_module import export, spec


class Rolled(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.roll(x, x.shape[1] // 2, 1), torch.roll(x, (-x.shape[1] // 3, 5), (1, -1)),
            torch.roll(x, 1), torch.roll(x, -7, 0),
        ]  # fmt: skip


class Extremes(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x.amax(), x.amin(), x.amax((0, 2)), x.amin(1, keepdim=True), x.clamp(max=x.mean())]


class Rounded(nn.Module):
    """Sizes that are divided and rounded up, as attention over blocks needs them."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        blocks = -(-x.shape[1] // 4)
        padded = nn.functional.pad(x, (0, 0, 0, 4 * blocks - x.shape[1]))
        return [padded.unflatten(1, (blocks, 4)).sum(2), x.new_zeros(x.shape[0], blocks)]


AXES = {"batch": AxisRange(1, 2, 3), "items": AxisRange(1, 5, 12)}


def test_a_roll_by_a_size(tmp_path: Path) -> None:
    """The export compares the graph with torch at several sizes."""
    export(Rolled(), tmp_path / "model.onnx", spec("x", "batch", "items", 3), axes=AXES)


def test_the_largest_of_all_axes(tmp_path: Path) -> None:
    export(Extremes(), tmp_path / "model.onnx", spec("x", "batch", "items", 3), axes=AXES)


def test_a_size_that_is_divided_and_rounded_up(tmp_path: Path) -> None:
    export(Rounded(), tmp_path / "model.onnx", spec("x", "batch", "items", 3), axes=AXES)
