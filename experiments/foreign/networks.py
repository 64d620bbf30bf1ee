"""The two networks that every producer quantizes: a residual CNN and a transformer block with a
head. Random weights: the experiment compares graphs, not accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

SHAPES = {"cnn": (3, 16, 16), "block": (8, 32)}
CALIBRATION, SAMPLES = 32, 64


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.a = nn.Conv2d(16, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, 3, padding=1)
        self.c = nn.Conv2d(16, 32, 1)
        self.head = nn.Linear(32, 10)
        self.relu1, self.relu2, self.relu3, self.relu4 = (nn.ReLU() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu1(self.stem(x))
        x = self.relu3(x + self.b(self.relu2(self.a(x))))
        return self.head(self.relu4(self.c(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], 8, self.heads, 32 // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.norm1(x)
        q, k, v = self.split(self.q(z)), self.split(self.k(z)), self.split(self.v(z))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        mixed = (weights @ v).transpose(1, 2).reshape(x.shape[0], 8, 32)
        x = x + self.o(mixed)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(x)


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (Cnn() if name == "cnn" else Block()).eval()


def samples(name: str, count: int, seed: int) -> np.ndarray:
    """float32 [count, ...]: normal numbers, the same for every producer."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, *SHAPES[name])).astype(np.float32)


def export(model: nn.Module, name: str, path: Path) -> None:
    """Write the ONNX graph with a dynamic batch, without the shapes of inner values."""
    example = torch.from_numpy(samples(name, 2, 0))
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    torch.onnx.export(
        model, (example,), str(path), input_names=["x"], output_names=["y"],
        dynamic_shapes=(batch,), opset_version=18, dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    graph = onnx.load(path)
    del graph.graph.value_info[:]
    onnx.save(graph, path)
