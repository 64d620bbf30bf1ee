"""A Llama of bytes on Python's standard library: 0.8 M parameters, four layers of 128.

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
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "02_tiny_llama"))
import corpus

WEIGHTS = Path(__file__).with_name("weights.safetensors")
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


def trained() -> Decoder:
    """With the committed weights."""
    net = Decoder()
    net.load_state_dict(load_file(WEIGHTS))
    return cast(Decoder, net.eval())


def training_bytes() -> Tensor:
    """uint8 [bytes]"""
    return _bytes("".join(corpus.training()))


def held_out(count: int = 512) -> Tensor:
    """So many windows, int64 [count, WINDOW], spread over the held-out files."""
    return _spread(_bytes("".join(corpus.held_out())), count)


def calibration(count: int = 256) -> list[Tensor]:
    """So many windows of the training text, in batches of 8."""
    return list(_spread(training_bytes(), count).split(8))


def random_windows(text: Tensor) -> Tensor:
    """A batch of the training, int64 [BATCH, WINDOW]."""
    starts = torch.randint(len(text) - WINDOW, (BATCH, 1))
    return text[starts + torch.arange(WINDOW)].long()


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
        ids = random_windows(text)
        optimizer.zero_grad()
        _loss(net(ids), ids, "mean").backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    net.eval()


def _loss(logits: Tensor, ids: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction=reduction)


def _spread(text: Tensor, count: int) -> Tensor:
    windows = text[: len(text) // WINDOW * WINDOW].view(-1, WINDOW)
    return windows[torch.linspace(0, len(windows) - 1, count).long()].long()


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
