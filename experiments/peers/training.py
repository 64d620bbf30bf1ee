"""A training loop that a kill cannot spoil: a fixed number of steps, each drawn from its own seed.

Step s draws its batch from a generator seeded with s; weights, AdamW moments and the step are
written every so many steps in one atomic rename, so a run that is killed and started again ends
with the weights of a run that was not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Schedule:
    """AdamW over `steps` batches: a linear warm-up, then a cosine down to 5 % of `rate`."""

    steps: int
    rate: float
    decay: float = 0.05
    warm_up: int = 50
    betas: tuple[float, float] = (0.9, 0.95)

    def at(self, step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1, (step + 1) / self.warm_up) * (0.05 + 0.95 * cosine)


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, torch.Generator], Tensor],
    schedule: Schedule,
    checkpoint: Path,
    every: int = 100,
) -> None:
    """Train `model` in place, from `checkpoint` where it exists; leaves the last one there."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schedule.rate, betas=schedule.betas, weight_decay=schedule.decay
    )
    first = resume(model, optimizer, checkpoint)
    model.train()
    begun = time.monotonic()
    for step in range(first, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        torch.manual_seed(step)  # dropout
        value = loss(model, torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if done % every == 0 or done == schedule.steps:
            save(model, optimizer, done, checkpoint)
            seconds = (time.monotonic() - begun) / (done - first)
            print(f"step {done}/{schedule.steps} loss {value:.3f} {seconds:.3f} s", flush=True)
    model.eval()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{key}.{name}": value for key, value in state.items() if value.dim()}
    unfinished = path.with_suffix(".tmp")
    copies = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    save_file(copies, unfinished, metadata={"step": json.dumps(step)})
    unfinished.replace(path)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Load weights and moments from `path`, if it exists; returns the steps already done."""
    if not path.exists():
        return 0
    with safe_open(path, "pt") as stored:
        step = int(json.loads(stored.metadata()["step"]))
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    model.load_state_dict(
        {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
    )
    for name, parameter in model.named_parameters():
        if f"exp_avg.{name}" in tensors:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step)),
                "exp_avg": tensors[f"exp_avg.{name}"],
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"],
            }
    return step
