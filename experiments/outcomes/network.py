"""A network whose INT8 build is slower than FP32 on a CPU: nearly all of its time is in depthwise
convolutions, for which ONNX Runtime has no fast 8-bit kernel. `create` is the factory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, DEPTH = 96, 6


class Depthwise(nn.Module):
    """image [B, 1, 32, 32] → logits [B, 10]"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.body = nn.Sequential(*(self._block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def _block(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH), nn.SiLU())

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.body:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


def create() -> nn.Module:
    """The network with numbers from a fixed seed as its weights: speed and fidelity are measured,
    and they do not depend on what a network has learned."""
    numbers, model = np.random.default_rng(0), Depthwise().eval()
    with torch.no_grad():
        for one in model.parameters():
            fan = max(one[0].numel(), 1)
            one.copy_(torch.from_numpy(numbers.normal(0, fan**-0.5, one.shape)))
    return model
