"""The user's model."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Branching(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        if hidden.sum() > 0:
            return self.head(hidden)
        return -self.head(hidden)


def create(classes: int = 4) -> nn.Module:
    return Net(classes)


def sized(classes: int) -> nn.Module:
    return Net(classes)


def on_gpu() -> nn.Module:
    return Net().cuda()


def state() -> dict:
    return Net().state_dict()


def branching() -> nn.Module:
    return Branching()
