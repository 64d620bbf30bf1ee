"""Decoders of transformers with random weights, as Hugging Face folders and as artifacts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import optkit
from optkit.ground.artifact import Artifact

VOCABULARY, CONTEXT = 320, 160
WINDOW = 13
"""Of the families with a sliding window: one prompt is as long, two are shorter, two longer."""

LOCAL, MIXED = ("mistral", "phi3"), ("qwen2", "gemma2", "gemma3")
"""The families with a sliding window in all layers, and in the first of two or the last."""

PROMPTS = (
    "import os\n",
    "def find(path: Path, name: str) -> list[Path]:",
    "x",
    "class Node:\n    def __init__(self, value):\n        self.",
    "for line in file.read().splitlines():",
)


def network(family: str, end: int | None) -> PreTrainedModel:
    """With weights large enough that the most likely token is not always the same. `end`: the token
    that ends a text."""
    torch.manual_seed(3)
    shared = {"vocab_size": VOCABULARY, "initializer_range": 0.2, "bos_token_id": None,
              "eos_token_id": end, "pad_token_id": 0}  # fmt: skip
    if family == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT, **shared)
        ).eval()
    shared |= {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    if family in (*LOCAL, *MIXED):
        return _windowed(family, {**shared, "sliding_window": WINDOW}).eval()
    return LlamaForCausalLM(LlamaConfig(**shared)).eval()


def _windowed(family: str, shared: dict[str, Any]) -> PreTrainedModel:
    """Gemma multiplies its embeddings by 8, so that a tied last layer repeats the last token."""
    gemma = {**shared, "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": False}
    if family == "mistral":
        return MistralForCausalLM(MistralConfig(**shared))
    if family == "phi3":
        return Phi3ForCausalLM(Phi3Config(**shared))
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(use_sliding_window=True, max_window_layers=1, **shared))
    if family == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(attn_logit_softcapping=1.5, **gemma))
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(layer_types=kinds, **gemma))


def write(family: str, folder: Path, end: int | None = None) -> PreTrainedModel:
    """The network, saved with a tokenizer."""
    made = network(family, end)
    made.save_pretrained(folder)
    tokenizer(PROMPTS).save_pretrained(folder)
    return made


def tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def build(folder: Path, out: Path, precision: str = "fp32") -> Artifact:
    return optkit.build(
        str(folder),
        target="cpu",
        precision=precision,
        out=out,
        workspace=optkit.Workspace(out / "cache"),
    )
