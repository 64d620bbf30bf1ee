"""A network whose INT8 build is slower than FP32 on a CPU: its products are so narrow that rounding
their inputs takes longer than 8 bits save. `create` is the factory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, DEPTH = 16, 8


class Narrow(nn.Module):
    """image [B, 1, 32, 32] → logits [B, 10]"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(1, WIDTH)
        self.body = nn.Sequential(*(self._block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def _block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image.flatten(1).unsqueeze(-1))  # [B, 1024, WIDTH]
        for block in self.body:
            x = x + block(x)
        return self.head(x.mean(dim=1))


def create() -> nn.Module:
    """The network with numbers from a fixed seed as its weights: speed and fidelity are measured,
    and they do not depend on what a network has learned."""
    numbers, model = np.random.default_rng(0), Narrow().eval()
    with torch.no_grad():
        for one in model.parameters():
            fan = max(one[0].numel(), 1)
            one.copy_(torch.from_numpy(numbers.normal(0, fan**-0.5, one.shape)))
    return model
