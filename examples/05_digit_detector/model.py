"""A detector with one scale and no anchors, whose output has the form of YOLO's.

`create` is the factory that a recipe names; building the model reads no file and trains nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
STRIDE = 8  # pixels of a cell's side


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


class DigitDetector(nn.Module):
    """image [B, 3, H, W] → [B, 4 + CLASSES, H/8 · W/8]

    For each cell of 8×8 pixels: centre and sides of a box in pixels, then the probability of each
    digit. Non-maximum suppression is left to the caller.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = convolution(3, width, 4, 4, 0)  # patches, as in ConvNeXt
        self.fine = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.down = convolution(width, 2 * width, 3, 2, 1)
        self.coarse = nn.Sequential(*(Block(2 * width) for _ in range(blocks)))
        self.tower = nn.Sequential(
            *(
                nn.Sequential(convolution(2 * width, 2 * width, 3, 1, 1), nn.ReLU())
                for _ in range(2)
            )
        )
        self.sides = nn.Conv2d(2 * width, 4, 1)
        self.kinds = nn.Conv2d(2 * width, CLASSES, 1)
        nn.init.constant_(self.kinds.bias, -4.6)  # a probability of 1 %: most cells are empty

    def maps(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """What the losses need: the distances in pixels from the middle of each cell to the left,
        top, right and bottom side [B, 4, H/8, W/8], and the logits [B, CLASSES, H/8, W/8]."""
        x = self.fine(F.relu(self.stem(image)))
        x = self.tower(self.coarse(F.relu(self.down(x))))
        return F.softplus(self.sides(x)) * STRIDE, self.kinds(x)

    def forward(self, image: Tensor) -> Tensor:
        sides, logits = self.maps(image)
        before, after = sides[:, :2], sides[:, 2:]
        middle = middles(sides.shape[2], sides.shape[3])
        boxes = torch.cat([middle + (after - before) / 2, before + after], 1)
        return torch.cat([boxes, logits.sigmoid()], 1).flatten(2)


def middles(rows: int, columns: int) -> Tensor:
    """x and y of the middle of each cell, in pixels: [2, rows, columns]."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return (torch.stack([x, y]) + 0.5) * STRIDE


def create(width: int = 48, blocks: int = 2) -> DigitDetector:
    """The model with fresh weights; the committed ones are in weights.safetensors."""
    return DigitDetector(width, blocks)
