"""Tiny random models of each family, saved as their owners save them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from optkit.runtime import backend
from optkit.sources import hugging_face
from optkit.sources.log import ExportLog

VOCAB = 97
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4}  # fmt: skip
DECODER = {**SMALL, "vocab_size": VOCAB, "num_key_value_heads": 2, "max_position_embeddings": 64,
           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
CLIP_TEXT = {**SMALL, "vocab_size": VOCAB, "max_position_embeddings": 32, "pad_token_id": 0,
             "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
IMAGES = {"image_size": 32, "patch_size": 8}

Made = Callable[[], Any]

ENCODERS: dict[str, Made] = {
    "bert": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(vocab_size=VOCAB, max_position_embeddings=64, **SMALL)
    ),
    "roberta": lambda: hf.RobertaForTokenClassification(
        hf.RobertaConfig(vocab_size=VOCAB, max_position_embeddings=66, type_vocab_size=1, **SMALL)
    ),
    "distilbert": lambda: hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(vocab_size=VOCAB, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
    ),
    "deberta-v2": lambda: hf.DebertaV2ForSequenceClassification(
        hf.DebertaV2Config(vocab_size=VOCAB, relative_attention=True, position_buckets=16,
                           pos_att_type=["p2c", "c2p"], **SMALL)
    ),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGES, **SMALL)),
    "deit": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGES, **SMALL)),
    "swin": lambda: hf.SwinForImageClassification(
        hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4],
                      window_size=4)
    ),
    "convnext": lambda: hf.ConvNextForImageClassification(
        hf.ConvNextConfig(image_size=32, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
    ),
    "mobilenet-v2": lambda: hf.MobileNetV2ForImageClassification(
        hf.MobileNetV2Config(image_size=64, depth_multiplier=0.35)
    ),
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(text_config=CLIP_TEXT, vision_config={**IMAGES, **SMALL}, projection_dim=16)
    ),
    "clip-vision": lambda: hf.CLIPVisionModelWithProjection(
        hf.CLIPVisionConfig(projection_dim=16, **IMAGES, **SMALL)
    ),
    "llama-classifier": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**DECODER)),
}  # fmt: skip
DECODERS: dict[str, Made] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                      bos_token_id=1, eos_token_id=2)
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=6, **DECODER)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**DECODER)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(head_dim=16, **DECODER)),
}  # fmt: skip


def saved(made: Made, folder: Path, **options: Any) -> Path:
    """A folder as `save_pretrained` writes it; the weights are the same on every run."""
    torch.manual_seed(0)
    made().eval().save_pretrained(folder, **options)
    return folder


def export(folder: Path, out: Path, **options: Any) -> ExportLog:
    given = {"specs": (), "axes": {}, "task": None, "part": None, "trusted": False, **options}
    return hugging_face.export(
        folder,
        given.pop("specs"),
        given.pop("axes"),
        out,
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None,
        **given,
    )


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family, made once."""
    base = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        made = {**ENCODERS, **DECODERS}[name]
        return base / name if (base / name).exists() else saved(made, base / name)

    return folder
