"""A small residual network, its data, and its quantization by a build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optkit.craft.backends import onnxruntime
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.pipeline import Build
from optkit.road.steps.file_names import GRAPH

RECIPE: dict[str, object] = {"axes": {"batch": {"min": 1, "opt": 4, "max": 8}}}


class Block(nn.Module):
    """relu(x + conv(relu(conv(x)))), with the sum in its own code"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        out += x
        return F.relu(out)


class Net(nn.Module):
    """image [B, 4, 12, 12] → logits [B, 5]"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(4, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.hidden, self.norm1d = nn.Linear(16, 24), nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.pool(F.relu(self.norm(self.stem(image)))))
        return self.head(F.relu(self.norm1d(self.hidden(x.mean(dim=(2, 3))))))


@pytest.fixture(autouse=True, scope="package")
def integers_in_small_networks() -> Iterator[None]:
    """These networks are too small to gain in integers on a CPU; a build would leave their
    convolutions in float."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "kernel_speeds", lambda target: None)
        yield


@pytest.fixture(scope="session")
def images() -> Tensor:
    return torch.rand(64, 4, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def net(images: Tensor) -> Net:
    """With statistics of BatchNorm, as after a training."""
    torch.manual_seed(0)
    net = Net()
    for _ in range(4):
        net(images * torch.rand(1) + torch.rand(1))
    return net.eval()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("cache"), listener=None)


def train(net: nn.Module, images: Tensor, steps: int = 3) -> None:
    """A few large steps, so that every weight and scale moves."""
    net.train()
    labels = torch.arange(len(images)) % 5
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    net.eval()


@dataclass
class Written:
    """The Q/DQ graph of a build: `graph` with the carriers of the target, and its `simulation`."""

    build: Build
    graph: ir.Model
    simulation: Path

    def run(self, images: Tensor) -> np.ndarray:
        with simulator().session(self.simulation, SessionOptions(1, level="none")) as session:
            (logits,) = session.run({"image": images.numpy()}).values()
        return logits

    def constant(self, name: str) -> np.ndarray:
        found = graph.array(self.graph.graph.initializers[name])
        assert found is not None
        return found


def written(
    net: nn.Module | Path, images: Tensor, workspace: Workspace, target: str,
    precision: str = "int8",
    stages: tuple[pipeline.Stage, ...] = pipeline.QUANTIZE,
    recipe: dict[str, object] = RECIPE,
) -> Written:  # fmt: skip
    runner = workspace.runner()
    example = None if isinstance(net, Path) else images[:4]
    job = jobs.job_of(
        net, example, jobs.pair(target, precision), recipe={"name": "net", **recipe},
        calibration=list(images.split(8)), name=None, runner=runner,
    )  # fmt: skip
    build = pipeline.run(job, runner, stages)
    assert build.quantized is not None
    path = build.quantized.path
    return Written(build, graph.load(path / GRAPH), path / build.quantized.simulation)


class Tied(nn.Module):
    """The table of the embedding is the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first = nn.Embedding(300, 64), nn.Linear(144, 64)
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, image: Tensor) -> Tensor:
        places = (image[:, :, 0, 0] * 299).long().clamp(0, 299)
        x = torch.relu(self.first(image.flatten(2))) + self.embedding(places)
        return cast(Tensor, self.head(x.mean(1)))
