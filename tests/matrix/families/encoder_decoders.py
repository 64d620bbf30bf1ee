"""Encoder-decoders: two graphs each."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.matrix.families.sizes import CAUSAL, TOKENS, VOCAB, Family

_BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "decoder_start_token_id": 3, "forced_eos_token_id": None, **TOKENS,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_GEMMA: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6, **CAUSAL}

FAMILIES: dict[str, Family] = {
    "t5": Family("T5", lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)), paired=True),
    "longt5": Family(
        "LongT5",
        lambda: hf.LongT5ForConditionalGeneration(
            hf.LongT5Config(local_radius=7, global_block_size=4,
                            encoder_attention_type="transient-global", **_T5)
        ),
        paired=True,
    ),
    "t5gemma": Family(
        "T5Gemma",
        lambda: hf.T5GemmaForConditionalGeneration(
            hf.T5GemmaConfig(encoder=hf.T5GemmaModuleConfig(**_GEMMA),
                             decoder=hf.T5GemmaModuleConfig(**_GEMMA), vocab_size=VOCAB)
        ),
        paired=True,
    ),
    "bart": Family(
        "BART",
        lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(max_position_embeddings=64, **_BART)
        ),
        paired=True,
    ),
    "marian": Family(
        "Marian",
        lambda: hf.MarianMTModel(hf.MarianConfig(max_position_embeddings=64, **_BART)),
        paired=True,
    ),
    "pegasus": Family(
        "Pegasus",
        lambda: hf.PegasusForConditionalGeneration(
            hf.PegasusConfig(max_position_embeddings=64, **_BART)
        ),
        paired=True,
    ),
    "m2m100": Family(
        "M2M100 (NLLB)",
        lambda: hf.M2M100ForConditionalGeneration(
            hf.M2M100Config(max_position_embeddings=64, **_BART)
        ),
        paired=True,
    ),
    "moonshine": Family(
        "Moonshine",
        lambda: hf.MoonshineForConditionalGeneration(
            hf.MoonshineConfig(encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
                               encoder_num_attention_heads=4, decoder_num_attention_heads=4,
                               hidden_size=32, intermediate_size=64, max_position_embeddings=64,
                               decoder_start_token_id=1, **TOKENS)
        ),
        paired=True,
    ),
    "whisper": Family(
        "Whisper",
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(max_source_positions=50, max_target_positions=64, num_mel_bins=20,
                             suppress_tokens=None, begin_suppress_tokens=None,
                             **{k: v for k, v in _BART.items() if k != "forced_eos_token_id"})
        ),
        paired=True,
    ),
}  # fmt: skip
