"""Random networks with strides, pools, padding, resizing and concatenations over pictures of free
size: the graph equals torch at random sizes of the declared range, or the export is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optkit.craft.sources import torch_module
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.runtimes import backend

IMAGE = InputSpec(TensorInfo("image", "float32", ("batch", 3, "h", "w")))
CHANNELS = 6
SIZES = 10

Part = Callable[[torch.Tensor], torch.Tensor]


def conv(rng: random.Random) -> Part:
    kernel, stride = rng.choice([1, 3, 5]), rng.choice([1, 2, 2, 3])
    layer = nn.LazyConv2d(CHANNELS, kernel, stride, padding=rng.choice([0, kernel // 2]),
                          dilation=rng.choice([1, 1, 2]))  # fmt: skip
    return nn.Sequential(layer, rng.choice([nn.ReLU(), nn.SiLU(), nn.Identity()]))


def pool(rng: random.Random) -> Part:
    kernel, ceil = rng.choice([2, 3]), rng.random() < 0.5
    if rng.random() < 0.5:
        return nn.MaxPool2d(kernel, 2, padding=rng.choice([0, 1]), ceil_mode=ceil)
    return nn.AvgPool2d(kernel, rng.choice([1, 2]), padding=rng.choice([0, 1]), ceil_mode=ceil,
                        count_include_pad=rng.random() < 0.5)  # fmt: skip


def pyramid(rng: random.Random) -> Part:
    """Adaptive pools beside what they pool."""
    kind = rng.choice([F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
    bins = rng.choice([1, 2, 3, 4, 6, (2, 3)])
    mode = rng.choice(["nearest", "bilinear"])

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.interpolate(kind(x, bins), size=x.shape[2:], mode=mode)], 1)

    return run


def across(rng: random.Random) -> Part:
    """A coarser branch, resized and concatenated."""
    down = rng.choice([conv, pool])(rng)
    mode = rng.choice(["nearest", "bilinear", "bicubic", "area"])

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.interpolate(down(x), size=x.shape[2:], mode=mode)], 1)

    return run


def padded(rng: random.Random) -> Part:
    """Padded to a multiple, as in windowed attention, or by a border."""
    of, mode = rng.choice([4, 7, 8]), rng.choice(["constant", "replicate", "reflect"])
    if rng.random() < 0.5:
        border = [rng.choice([0, 1, 2]) for _ in range(4)]
        return lambda x: F.pad(x, border, mode=mode)
    return lambda x: F.pad(x, (0, -x.shape[3] % of, 0, -x.shape[2] % of))


def sliced(rng: random.Random) -> Part:
    """Every second place, places near an end, or the quarters as channels (YOLO's Focus)."""
    return rng.choice(
        [
            lambda x: x[:, :, ::2, 1:],
            lambda x: x[:, :, 1:-1, :-1],
            lambda x: x[:, :, x.shape[2] // 3 :, : x.shape[3] // 2],
            lambda x: torch.cat([x[..., : x.shape[3] // 2], x[..., -(x.shape[3] // 2) :]], 1),
            lambda x: torch.roll(x, (1, -1), (2, 3)),
        ]
    )


def mixed(rng: random.Random) -> Part:
    """What all places together decide."""
    return rng.choice(
        [
            lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
            lambda x: x + x.flatten(2).softmax(-1).reshape(x.shape),
            lambda x: x - x.amax((2, 3), keepdim=True),
            lambda x: x.cumsum(3) / x.shape[3],
        ]
    )


class Network(nn.Module):
    """A convolution and 1 to `most` random parts; the outputs are the means over the last map, and
    the map."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        kinds = [conv, conv, pool, pyramid, across, padded, sliced, mixed]
        self.parts = [conv(rng)] + [rng.choice(kinds)(rng) for _ in range(rng.randint(1, most))]
        self.layers = nn.ModuleList(part for part in self.parts if isinstance(part, nn.Module))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = image
        for part in self.parts:
            x = part(x)
        return x.mean((2, 3)), x


def runs(net: Network, side: int) -> bool:
    """Whether the smallest feature map is large enough for the kernels."""
    try:
        net(torch.zeros(1, 3, side, side))
    except RuntimeError:
        return False
    return True


def exported(seed: int, out: Path, most: int = 4) -> bool:
    """Export the network, and compare it at random sizes; False if it is refused."""
    torch.manual_seed(seed)
    net = Network(seed, most).eval()
    rng = np.random.default_rng(seed)
    low = int(rng.integers(40, 60))
    while not runs(net, low):
        low += 20
    high = low + int(rng.integers(20, 60))
    side = AxisRange(low, (low + high) // 2, high)
    axes = {"batch": AxisRange(1, 1, 2), "h": side, "w": side}
    try:
        torch_module.export(
            net, [IMAGE], axes, out, session=lambda path: backend("onnxruntime").session(path),
            progress=lambda what, fraction: None,
        )  # fmt: skip
    except ExportFailed:
        return False
    with backend("onnxruntime").session(out) as session:
        for _ in range(SIZES):
            shape = (int(rng.integers(1, 3)), 3, *rng.integers(low, high + 1, 2).tolist())
            image = rng.standard_normal(shape).astype(np.float32)
            found = session.run({"image": image})
            with torch.no_grad():
                expected = net(torch.from_numpy(image))
            for one, tensor in zip(found.values(), expected, strict=True):
                assert one.shape == tuple(tensor.shape)
                scale = float(tensor.abs().max())
                np.testing.assert_allclose(
                    one, tensor, rtol=0, atol=2e-3 * scale, err_msg=str(shape)
                )
    return True


@pytest.mark.parametrize("seeds", [range(3), range(3, 6)])
def test_a_network_is_right_at_random_sizes_or_refused(seeds: range, tmp_path: Path) -> None:
    assert sum(exported(seed, tmp_path / f"{seed}.onnx", most=2) for seed in seeds) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(at, at + 30) for at in range(0, 300, 30)])
def test_networks_are_right_at_random_sizes_or_refused(seeds: range, tmp_path: Path) -> None:
    assert sum(exported(seed, tmp_path / f"{seed}.onnx") for seed in seeds) >= 27
