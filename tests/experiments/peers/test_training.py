"""A training that was killed ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training import Schedule, train


class Killed(Exception):
    pass


torch.set_num_threads(1)


def run(checkpoint: Path, die_at: int | None = None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    steps = 0

    def loss(model: nn.Module, seed: torch.Generator) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == die_at:
            raise Killed
        x = torch.randn(16, 4, generator=seed)
        return ((model(x)[:, 0] - x.sum(1)) ** 2).mean()

    train(model, loss, Schedule(steps=12, rate=1e-2, warm_up=3), checkpoint, every=4)
    return model.state_dict()


@pytest.mark.slow  # AdamW loads the compiler of torch
def test_a_killed_training_continues_bit_equal(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole.safetensors")
    for die_at in (6, 4):  # two kills: at step 5, then at step 7
        with pytest.raises(Killed):
            run(tmp_path / "parts.safetensors", die_at)
    parts = run(tmp_path / "parts.safetensors")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_rate_warms_up_and_falls_to_a_twentieth() -> None:
    schedule = Schedule(steps=100, rate=1.0, warm_up=10)
    assert schedule.at(0) == pytest.approx(0.1, rel=0.01)
    assert schedule.at(99) == pytest.approx(0.05, rel=0.05)
    assert max(map(schedule.at, range(100))) < 1
