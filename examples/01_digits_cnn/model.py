"""A residual CNN with BatchNorm for digits upscaled to 32×32.

All widths are multiples of 8 and at least 32, so that integer convolutions have enough to do.
`create` is the factory that a recipe names; building the model reads no file and trains nothing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A padded convolution followed by BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """relu(shortcut(x) + conv(relu(conv(x)))); where shapes change the shortcut is a 1×1 conv."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.conv2 = convolution(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.conv2(F.relu(self.conv1(x))))


class ResidualNet(nn.Module):
    """image [B, 1, 32, 32] → logits [B, 10]"""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = convolution(1, widths[0], 3)
        pairs = zip(widths[:1] + widths, widths, strict=False)
        self.blocks = nn.Sequential(*(Block(i, o, 1 if i == o else 2) for i, o in pairs))
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(image)))  # [B, widths[-1], 8, 8]
        return self.head(x.mean(dim=(2, 3)))


def create(widths: tuple[int, ...] = (32, 64, 64, 96)) -> nn.Module:
    """The model with fresh weights; the committed ones are in weights.safetensors."""
    return ResidualNet(tuple(widths))
