"""A residual CNN for pictures of 96×96, as wide as those that classify photos.

`create` is the factory that a recipe names; building the model reads no file and trains nothing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
    """A convolution followed by BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """relu(x + conv(relu(conv(x))))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = convolution(width, width, 3, 1, 1)
        self.conv2 = convolution(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class HouseNumbers(nn.Module):
    """image [B, 3, 96, 96] → logits [B, 10]"""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = convolution(3, width, 4, 4, 0)  # patches, as in ConvNeXt
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(9 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(image)))  # [B, width, 24, 24]
        places = F.avg_pool2d(x, 8)  # 3×3: the digit in the middle, apart from its neighbours
        return self.head(places.flatten(1))


def create(width: int = 128, blocks: int = 3) -> nn.Module:
    """The model with fresh weights; the committed ones are in weights.safetensors."""
    return HouseNumbers(width, blocks)
