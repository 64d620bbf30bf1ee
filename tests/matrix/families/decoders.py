"""Language models that generate with a cache."""

from __future__ import annotations

import transformers as hf

from tests.matrix.families.sizes import CAUSAL, TOKENS, Family

_HEADS = {k: v for k, v in CAUSAL.items() if k != "num_key_value_heads"}
_EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT-2",
        lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **TOKENS)
        ),
    ),
    "llama": Family("Llama", lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**CAUSAL))),
    "qwen2": Family("Qwen2", lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**CAUSAL))),
    "mistral": Family(
        "Mistral", lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=6, **CAUSAL))
    ),
    "phi3": Family("Phi-3", lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**CAUSAL))),
    "gemma": Family("Gemma", lambda: hf.GemmaForCausalLM(hf.GemmaConfig(head_dim=16, **CAUSAL))),
    "gemma2": Family(
        "Gemma 2",
        lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(head_dim=16, sliding_window=6, query_pre_attn_scalar=16, **CAUSAL)
        ),
    ),
    "gemma3": Family(
        "Gemma 3",
        lambda: hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(head_dim=16, sliding_window=6, query_pre_attn_scalar=16,
                                layer_types=["sliding_attention", "full_attention"], **CAUSAL)
        ),
    ),
    "qwen3": Family("Qwen3", lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(head_dim=8, **CAUSAL))),
    "phi": Family("Phi-2", lambda: hf.PhiForCausalLM(hf.PhiConfig(**CAUSAL))),
    "granite": Family(
        "Granite",
        lambda: hf.GraniteForCausalLM(
            hf.GraniteConfig(attention_multiplier=0.3, residual_multiplier=0.5, **CAUSAL)
        ),
    ),
    "smollm3": Family(
        "SmolLM3",
        lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(no_rope_layers=[1, 0], **CAUSAL)),
    ),
    "olmo": Family("OLMo", lambda: hf.OlmoForCausalLM(hf.OlmoConfig(**CAUSAL))),
    "olmo2": Family("OLMo 2", lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**CAUSAL))),
    "falcon": Family(
        "Falcon",
        lambda: hf.FalconForCausalLM(hf.FalconConfig(new_decoder_architecture=True, num_kv_heads=2,
                                                     **{**_HEADS, "intermediate_size": None})),
    ),
    "falcon-alibi": Family(
        "Falcon with ALiBi",
        lambda: hf.FalconForCausalLM(hf.FalconConfig(alibi=True, multi_query=False,
                                                     **{**_HEADS, "intermediate_size": None})),
    ),
    "opt": Family(
        "OPT",
        lambda: hf.OPTForCausalLM(
            hf.OPTConfig(hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
                         max_position_embeddings=64, word_embed_proj_dim=32, **TOKENS)
        ),
    ),
    "bloom": Family(
        "BLOOM",
        lambda: hf.BloomForCausalLM(hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **TOKENS)),
    ),
    "gpt-neox": Family(
        "GPT-NeoX", lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_HEADS))
    ),
    "gptj": Family(
        "GPT-J",
        lambda: hf.GPTJForCausalLM(
            hf.GPTJConfig(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, **TOKENS)
        ),
    ),
    "stablelm": Family("StableLM", lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**CAUSAL))),
    "starcoder2": Family(
        "StarCoder2",
        lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(sliding_window=6, **CAUSAL)),
    ),
    "cohere": Family("Cohere", lambda: hf.CohereForCausalLM(hf.CohereConfig(**CAUSAL))),
    "mixtral": Family(
        "Mixtral",
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(num_local_experts=4, **_EXPERTS, **CAUSAL)),
    ),
    "qwen3-moe": Family(
        "Qwen3-MoE",
        lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(num_experts=4, moe_intermediate_size=32, head_dim=8,
                              **_EXPERTS, **CAUSAL)
        ),
    ),
    "gpt-oss": Family(
        "gpt-oss",
        lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(num_local_experts=4, head_dim=8, sliding_window=6,
                            layer_types=["sliding_attention", "full_attention"],
                            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                            **_EXPERTS, **CAUSAL)
        ),
    ),
    "lfm2": Family(
        "LFM2",
        lambda: hf.Lfm2ForCausalLM(
            hf.Lfm2Config(block_auto_adjust_ff_dim=False,
                          layer_types=["conv", "full_attention"], **CAUSAL)
        ),
    ),
    "mamba": Family(
        "Mamba",
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=8, **TOKENS)
        ),
    ),
    "mamba2": Family(
        "Mamba 2",
        lambda: hf.Mamba2ForCausalLM(
            hf.Mamba2Config(hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=8,
                            head_dim=8, n_groups=2, chunk_size=4, **TOKENS)
        ),
    ),
    "falcon-h1": Family(
        "Falcon-H1 (attention and Mamba 2 in each layer)",
        lambda: hf.FalconH1ForCausalLM(
            hf.FalconH1Config(mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=2,
                              mamba_d_state=8, mamba_chunk_size=4, **CAUSAL)
        ),
    ),
    "qwen3-next": Family(
        "Qwen3-Next (linear attention)",
        lambda: hf.Qwen3NextForCausalLM(
            hf.Qwen3NextConfig(num_experts=4, moe_intermediate_size=32, head_dim=8,
                               shared_expert_intermediate_size=32, linear_num_value_heads=4,
                               linear_num_key_heads=2, linear_key_head_dim=8,
                               linear_value_head_dim=8,
                               layer_types=["linear_attention", "full_attention"],
                               **_EXPERTS, **CAUSAL)
        ),
    ),
}  # fmt: skip
