"""Detectors and a pitch tracker whose second head is dead in eight bits: every layout says so.

The dead head reads small features beside large ones, which share one scale. The figures are
compared with numpy over the simulation of the artifact and the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import optkit

CLASSES = 3
Layout = Callable[[Tensor, Tensor], Any]


class Detector(nn.Module):
    """images [B, 3, 16, 16] → places [B, 4, 64] (a half to 1.5 of `scale`) and scores."""

    def __init__(self, layout: Layout, scale: float, classes: int) -> None:
        super().__init__()
        self.layout, self.scale = layout, scale
        self.stem, self.body = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.box, self.score = nn.Conv2d(16, 4, 1), nn.Conv2d(32, classes, 1)
        with torch.no_grad():
            self.score.weight[:, :16] *= 1e-2
            self.score.weight[:, 16:] *= 3e3

    def forward(self, images: Tensor) -> Any:
        large = torch.relu(self.stem(images))
        small = torch.relu(self.body(large))
        places = self.scale * (0.5 + torch.sigmoid(self.box(small)))
        scores = torch.sigmoid(self.score(torch.cat([100 * large, 0.01 * small], 1)) - 3)
        return self.layout(places.flatten(2), scores.flatten(2))


LAYOUTS: dict[str, tuple[Layout, float, int]] = {
    "YOLO, channels first": (lambda b, s: torch.cat([b, s], 1), 64.0, CLASSES),
    "YOLO, channels last": (lambda b, s: torch.cat([b, s], 1).transpose(1, 2), 64.0, 1 + CLASSES),
    "one class": (lambda b, s: torch.cat([b, s], 1), 640.0, 1),
    "shares of the picture": (lambda b, s: torch.cat([b, s], 1).transpose(1, 2), 0.6, CLASSES),
    "two outputs": (lambda b, s: (b.transpose(1, 2), s.transpose(1, 2)), 64.0, CLASSES),
    "pitch in Hz and its certainty": (
        lambda b, s: torch.stack([b[:, 0], s[:, 0]], 2), 300.0, 1,
    ),
}  # fmt: skip


def pictures(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.rand(4, 8, 3, 16, 16, generator=generator))


def heads(name: str, outputs: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Those that were joined to one output."""
    if len(outputs) > 1:
        yield from outputs
        return
    (whole,) = outputs
    axis = 1 if whole.shape[2] == 64 else 2
    yield from np.split(whole, [1 if "pitch" in name else 4], axis=axis)


def sqnr(r: np.ndarray, c: np.ndarray) -> float:
    r, c = r.astype(np.float64), c.astype(np.float64)
    return float(10 * np.log10((r**2).sum() / ((r - c) ** 2).sum()))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_dead_head_decides_the_figures_of_a_build(name: str, tmp_path: Path) -> None:
    layout, scale, classes = LAYOUTS[name]
    torch.manual_seed(0)
    model, images = Detector(layout, scale, classes).eval(), pictures(0)
    artifact = optkit.build(
        model, images[0], target="l4", precision="int8", calibration=images, out=tmp_path,
        recipe={"gates": {"min_sqnr": 20}}, workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    figures = artifact.result["fidelity"]
    with torch.no_grad():
        expected = [model(batch) for batch in images]
    with optkit.load(artifact.path).session() as session:
        actual = [session.run({"images": batch.numpy()}) for batch in images]
    each = [
        heads(name, [np.concatenate(side) for side in zip(*batches, strict=True)])
        for batches in (
            [[one.numpy() for one in ([b] if isinstance(b, Tensor) else b)] for b in expected],
            [list(outputs.values()) for outputs in actual],
        )
    ]
    known = [sqnr(*pair) for pair in zip(*each, strict=True)]
    told = min(row["sqnr_db"] for row in figures["outputs"])
    assert told == pytest.approx(min(known), abs=0.1) and told < 10 < max(known)
    gate, advice = artifact.result["gate"], artifact.result["recommendation"]
    assert gate["verdict"] == "fail" and advice["ship"] == "none"
    (reason,) = (one for one in gate["reasons"] if one.startswith("min_sqnr"))
    assert f"{told:.1f} dB" in reason and "; the worst is output" in reason
    assert any("has become constant" in one for one in gate["reasons"])
    workspace = optkit.Workspace(tmp_path / "cache")
    first = optkit.explain(artifact.path, workspace=workspace)["findings"][0]
    assert first["nodes"] == ["score/Conv"] and first["question"] == "accuracy"
