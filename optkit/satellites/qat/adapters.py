"""Adapters: two small float matrices beside a linear layer whose codes stay as they are.

    y = W_q x + b + up (down x)          down [rank, K], up [N, rank]

The form is that of LoRA (Hu et al. 2021, arXiv:2106.09685); on quantized weights it is QLoRA
(Dettmers et al. 2023, arXiv:2305.14314).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from optkit.ground.intake import ADAPTER_CONFIG, ADAPTER_WEIGHTS

NAME = "adapter"
"""Of the adapter in its layer."""


class Adapter(nn.Module):
    """x [..., K] → up(down(x)) [..., N]"""

    down: nn.Linear
    up: nn.Linear

    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.down = _linear(down)
        self.up = _linear(up)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.down(x))
        return y

    def product(self) -> Tensor:
        """up · down, [N, K]"""
        return torch.mm(self.up.weight, self.down.weight)


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter, in floats: what a build reads."""

    adapter: Adapter

    def forward(self, input: Tensor) -> Tensor:
        side: Tensor = self.adapter(input)
        return F.linear(input, self.weight, self.bias) + side


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Add each adapter to the weight of its layer, in place."""
    for part in list(model.modules()):
        if isinstance(part, AdaptedLinear):
            part.weight += part.adapter.product()
            delattr(part, NAME)
            setattr(part, "__class__", nn.Linear)  # noqa: B010  (of another type)


def paths(model: nn.Module) -> list[str]:
    """The paths of the two linear layers of each adapter."""
    return [
        f"{path}.{part}" if path else part
        for path, adapter in model.named_modules()
        if isinstance(adapter, Adapter)
        for part in ("down", "up")
    ]


@torch.no_grad()
def save(model: nn.Module, folder: Path) -> None:
    """Write the adapters of a module into this new folder as PEFT does. Their scaling, alpha / rank
    there, is 1."""
    layers = {
        path.removesuffix(NAME).removesuffix("."): adapter
        for path, adapter in model.named_modules()
        if isinstance(adapter, Adapter)
    }
    ranks = {path: len(adapter.down.weight) for path, adapter in layers.items()}
    largest = max(ranks.values())
    patterns = {re.escape(path): rank for path, rank in ranks.items() if rank != largest}
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "bias": "none",
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "target_modules": sorted(layers),
        "inference_mode": True,
    }
    weights = {
        f"base_model.model.{path}.lora_{side}.weight": part.weight.float().cpu().contiguous()
        for path, adapter in layers.items()
        for side, part in (("A", adapter.down), ("B", adapter.up))
    }
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text(f"{json.dumps(config, indent=2)}\n")
    save_file(weights, folder / ADAPTER_WEIGHTS)


def _linear(weight: Tensor) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer
