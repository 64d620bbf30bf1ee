"""The networks of the comparison, in plain torch and transformers.

W1 a residual CNN with BatchNorm, W2 a pre-LayerNorm vision transformer, W3 a post-LayerNorm
BERT-like encoder with an attention mask, W4 a Llama-like decoder with grouped queries. W5 and W6
are ResNet-50 and BERT-base with random weights: they show time and memory at a usual size. W3 to W6
come from transformers, because its exports are what users meet: masks as huge constants.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 2048
SEQUENCE = 128  # tokens of every W3 and W4 sample


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut: [B, inner, H, W] → [B, outer, H/stride, W/stride]."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            projection = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class CNN(nn.Module):
    """W1: images [B, 3, 32, 32] → logits [B, 10]; 20 convolutions, 2.80 M parameters."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(widths[0]), nn.ReLU())
        blocks, width = [], widths[0]
        for depth, outer in enumerate(widths):
            blocks += [ResidualBlock(width, outer, 1 if depth == 0 else 2)]
            blocks += [ResidualBlock(outer, outer, 1)]
            width = outer
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class VisionBlock(nn.Module):
    """Pre-LayerNorm attention and GELU MLP: [B, T, D] → [B, T, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, heads, T, D/heads]
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(mixed.reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """W2: images [B, 3, 32, 32] → logits [B, 10]; 64 patches of 4×4 and a class token."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.blocks = nn.Sequential(*[VisionBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)  # [B, 64, D]
        tokens = torch.cat([self.cls.expand(x.shape[0], -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class BertBase(nn.Module):
    """W6: token ids and mask [B, 128] → token embeddings [B, 128, 768]; 72 linear layers.

    `sizes`: those that differ from BERT-base's.
    """

    def __init__(self, **sizes: float) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.body = BertModel(BertConfig(**sizes), add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Encoder(BertBase):
    """W3: token ids and mask [B, 128] → token embeddings [B, 128, 384]; 36 linear layers.

    `unmask` is for training alone; the exported graph ends at the embeddings.
    """

    def __init__(self) -> None:
        super().__init__(
            vocab_size=VOCABULARY,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            max_position_embeddings=SEQUENCE,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.unmask = nn.Linear(384, VOCABULARY)


class Decoder(nn.Module):
    """W4: token ids [B, 128] → logits [B, 128, 2048]; 8 layers, 10.16 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=320,
            intermediate_size=896,
            num_hidden_layers=8,
            num_attention_heads=10,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            use_cache=False,
        )
        self.body = LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.body(input_ids=input_ids).logits


class ResNet50(nn.Module):
    """W5: images [B, 3, 224, 224] → logits [B, 1000]; 53 convolutions, 25.6 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import ResNetConfig, ResNetForImageClassification

        self.body = ResNetForImageClassification(ResNetConfig(num_labels=1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).logits
