"""Encoder-decoders of transformers with random weights, as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from tests.generation.families import PROMPTS, VOCABULARY, tokenizer

END, START = 1, 3
SPREAD = {"t5": 0.35, "bart": 0.8, "whisper": 0.4}  # the most likely token is not always the same
LANGUAGES = {"<|en|>": 314, "<|de|>": 315}
TASKS = {"transcribe": 316, "translate": 317}
SILENT = 319  # what follows would be time stamps


def t5() -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                 decoder_start_token_id=0, eos_token_id=END, pad_token_id=0,
                 tie_word_embeddings=False)
    )  # fmt: skip


def bart() -> PreTrainedModel:
    made = BartForConditionalGeneration(
        BartConfig(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
                   encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                   decoder_ffn_dim=64, max_position_embeddings=96,
                   bos_token_id=2, eos_token_id=END, pad_token_id=0, decoder_start_token_id=END,
                   forced_eos_token_id=None, tie_word_embeddings=False)
    )  # fmt: skip
    made.generation_config.forced_bos_token_id = 2
    return made


def whisper() -> PreTrainedModel:
    """Of one second, with the special tokens that checkpoints of many languages name."""
    made = WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
                      encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                      decoder_ffn_dim=64, max_source_positions=50, max_target_positions=64,
                      num_mel_bins=20, pad_token_id=0, bos_token_id=END,
                      eos_token_id=END, decoder_start_token_id=START, suppress_tokens=None,
                      begin_suppress_tokens=None, tie_word_embeddings=False)
    )  # fmt: skip
    generation = made.generation_config
    generation.lang_to_id, generation.task_to_id = LANGUAGES, TASKS
    generation.forced_decoder_ids = [[1, None], [2, TASKS["transcribe"]]]
    generation.no_timestamps_token_id, generation.is_multilingual = SILENT, True
    generation.suppress_tokens = [*LANGUAGES.values(), *TASKS.values(), SILENT]
    generation.begin_suppress_tokens = [END, 20]
    return made


MODELS = {"t5": t5, "bart": bart, "whisper": whisper}


def write(family: str, folder: Path, *, wide: bool = True) -> PreTrainedModel:
    """The network, saved with its tokenizer, and its feature extractor where it hears. `wide`:
    weights of SPREAD, else as the family starts its training."""
    torch.manual_seed(3)
    made: Any = MODELS[family]().eval()
    for weight in made.parameters():
        if wide and weight.dim() > 1:
            torch.nn.init.normal_(weight, std=SPREAD[family])
    made.save_pretrained(folder)
    words: PreTrainedTokenizerFast = tokenizer(PROMPTS)
    words.pad_token = words.convert_ids_to_tokens(0)
    words.save_pretrained(folder)
    if family == "whisper":
        WhisperFeatureExtractor(feature_size=20, chunk_length=1).save_pretrained(folder)
    return made
