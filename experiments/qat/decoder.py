"""A Llama of bytes on Python's standard library: 0.9 M parameters, four layers of 128.

It reads the text of examples/02_tiny_llama one byte at a time, so it is trained to its end in
minutes, and each weight counts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "02_tiny_llama"))
import corpus

WINDOW, BATCH = 128, 16
INPUT = "ids"
FLOAT_STEPS, FLOAT_RATE = 2000, 3e-3


class Decoder(nn.Module):
    """ids int64 [B, T] → logits [B, T, 256]"""

    def __init__(self) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=WINDOW,
                tie_word_embeddings=False, use_cache=False, bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.llama(input_ids=ids).logits)


def training_bytes() -> Tensor:
    """uint8 [bytes]"""
    return _bytes("".join(corpus.training()))


def held_out() -> Tensor:
    """512 windows, int64 [512, WINDOW], spread over the held-out files."""
    windows = _bytes("".join(corpus.held_out()))
    windows = windows[: len(windows) // WINDOW * WINDOW].view(-1, WINDOW)
    return windows[torch.linspace(0, len(windows) - 1, 512).long()].long()


def calibration() -> list[Tensor]:
    """256 windows of the training text, in batches of 8."""
    text = training_bytes()
    windows = text[: len(text) // WINDOW * WINDOW].view(-1, WINDOW)
    return list(windows[torch.linspace(0, len(windows) - 1, 256).long()].long().split(8))


def losses(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The mean loss of each window in nats per byte, [B]."""
    each = _loss(torch.from_numpy(logits), torch.from_numpy(ids), "none")
    return each.view(len(ids), -1).mean(1).double().numpy()


def train(net: nn.Module, steps: int, rate: float) -> None:
    """AdamW with one cycle, on random windows."""
    text = training_bytes()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    net.train()
    for _ in range(steps):
        starts = torch.randint(len(text) - WINDOW, (BATCH, 1))
        ids = text[starts + torch.arange(WINDOW)].long()
        optimizer.zero_grad()
        _loss(net(ids), ids, "mean").backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    net.eval()


def _loss(logits: Tensor, ids: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction=reduction)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
