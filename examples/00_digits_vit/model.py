"""A small vision transformer for 8×8 digits: 2×2 patches, pre-LayerNorm blocks, mean-pooled tokens.

`create` is the factory that a recipe names; building the model reads no file and trains nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention over [B, N, dim] tokens."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)  # [B, heads, N, dim / heads]
        return self.proj(y.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """[B, N, dim] → [B, heads, N, dim / heads]"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """image [B, 1, 8, 8] → logits [B, 10]"""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, dim, kernel_size=2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2) + self.position  # [B, 16, dim]
        x = self.norm(self.blocks(x)).mean(dim=1)  # [B, dim]
        return self.head(x)


def create(dim: int = 64, depth: int = 4, heads: int = 4) -> nn.Module:
    """The model with fresh weights; the committed ones are in weights.safetensors."""
    return VisionTransformer(dim, depth, heads)
