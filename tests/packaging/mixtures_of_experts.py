"""Decoders with mixtures of experts, with random weights, as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.generation import families

_SIZES = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160,
    "initializer_range": 0.1, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    "num_experts_per_tok": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "moe_intermediate_size": 128}


def _network(name: str) -> hf.PreTrainedModel:
    sizes: dict[str, Any] = _SIZES
    if name == "mixtral":
        return hf.MixtralForCausalLM(hf.MixtralConfig(num_local_experts=4, **sizes))
    if name == "olmoe":
        return hf.OlmoeForCausalLM(hf.OlmoeConfig(num_experts=8, **sizes))
    if name == "qwen2":
        shared = {**_EXPERTS, "shared_expert_intermediate_size": 64, **sizes}
        return hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**shared))
    if name == "gpt-oss":
        return hf.GptOssForCausalLM(hf.GptOssConfig(num_local_experts=4, head_dim=32, **sizes))
    if name == "deepseek":
        heads = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 16, "v_head_dim": 32,
                 "qk_nope_head_dim": 16, "num_key_value_heads": 4}  # fmt: skip
        routed = {"n_routed_experts": 8, "moe_intermediate_size": 128, "n_group": 2,
                  "topk_group": 1, "first_k_dense_replace": 1}  # fmt: skip
        return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**{**sizes, **heads, **routed}))
    if name == "minimax":
        return hf.MiniMaxM2ForCausalLM(
            hf.MiniMaxM2Config(num_local_experts=8, head_dim=32, **sizes)
        )
    made = {**_EXPERTS, "head_dim": 32, "norm_topk_prob": True, **sizes}
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**made))


def network(name: str) -> hf.PreTrainedModel:
    """name: qwen3, qwen2, mixtral, olmoe, gpt-oss, deepseek or minimax."""
    torch.manual_seed(3)
    model = _network(name).eval()
    for key, each in model.named_buffers():
        if "correction" in key:
            torch.nn.init.normal_(each, std=0.1)
    return model


def write(name: str, folder: Path) -> None:
    """The network, saved with a tokenizer."""
    network(name).save_pretrained(folder)
    families.tokenizer(families.PROMPTS).save_pretrained(folder)
