"""One tiny model of each family, as its owner would save it: the rows of the matrix.

Two layers, 32 wide, of seeded random weights. transformers initializes with a spread of 0.02, with
which attention chooses nothing and logits hardly differ; here each product keeps the spread of what
it is given (1 / √fan-in), and batch norms have seen images, as in a trained model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

VOCAB = 97
EDGE = 32
"""Height and width of images, in pixels."""

_SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4}  # fmt: skip
_TOKENS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_CAUSAL = {**_SMALL, **_TOKENS, "num_key_value_heads": 2, "max_position_embeddings": 64}
_IMAGES = {"image_size": EDGE, "patch_size": 8}
CLIP_VISION = {**_IMAGES, **_SMALL}

Made = Callable[[], Any]

ENCODERS: dict[str, Made] = {
    "bert": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(vocab_size=VOCAB, max_position_embeddings=64, **_SMALL)
    ),
    "roberta": lambda: hf.RobertaForTokenClassification(
        hf.RobertaConfig(vocab_size=VOCAB, max_position_embeddings=66, type_vocab_size=1, **_SMALL)
    ),
    "distilbert": lambda: hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(vocab_size=VOCAB, max_position_embeddings=64, dim=32, hidden_dim=64,
                            n_layers=2, n_heads=4)
    ),
    "deberta-v2": lambda: hf.DebertaV2ForSequenceClassification(
        hf.DebertaV2Config(vocab_size=VOCAB, max_position_embeddings=64, relative_attention=True,
                           position_buckets=16, pos_att_type=["p2c", "c2p"], **_SMALL)
    ),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**_IMAGES, **_SMALL)),
    "deit": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**_IMAGES, **_SMALL)),
    "swin": lambda: hf.SwinForImageClassification(
        hf.SwinConfig(image_size=EDGE, patch_size=2, embed_dim=16, depths=[1, 1],
                      num_heads=[2, 4], window_size=4)
    ),
    "resnet": lambda: hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
                        layer_type="basic")
    ),
    "convnext": lambda: hf.ConvNextForImageClassification(
        hf.ConvNextConfig(image_size=EDGE, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
    ),
    "mobilenet-v2": lambda: hf.MobileNetV2ForImageClassification(
        hf.MobileNetV2Config(image_size=64, depth_multiplier=0.35)
    ),
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(text_config={**_SMALL, **_TOKENS, "max_position_embeddings": 32},
                      vision_config=CLIP_VISION, projection_dim=16)
    ),
}  # fmt: skip
DECODERS: dict[str, Made] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **_TOKENS)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_CAUSAL)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_CAUSAL)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=6, **_CAUSAL)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**_CAUSAL)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(head_dim=16, **_CAUSAL)),
}
ENCODER_DECODERS: dict[str, Made] = {
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                    decoder_start_token_id=0, eos_token_id=None, pad_token_id=0)
    ),
    "whisper": lambda: hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(d_model=32, encoder_layers=2, decoder_layers=2,
                         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                         decoder_ffn_dim=64, max_source_positions=50, max_target_positions=64,
                         num_mel_bins=20, decoder_start_token_id=3, suppress_tokens=None,
                         begin_suppress_tokens=None, **_TOKENS)
    ),
}  # fmt: skip
FAMILIES = {**ENCODERS, **ENCODER_DECODERS, **DECODERS}
PARTS = ("encoder", "decoder")


def saved(made: Made, folder: Path, **options: Any) -> Path:
    """A folder as `save_pretrained` writes it; the weights are the same on every run."""
    torch.manual_seed(0)
    model = made().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        _see_images(model)
    model.save_pretrained(folder, **options)
    return folder


def write(name: str, folder: Path) -> Path:
    """The folder of a family. A ResNet's config.json does not tell the size of its images: that is
    its processor's."""
    saved(FAMILIES[name], folder)
    if name == "resnet":
        size = {"size": {"height": EDGE, "width": EDGE}}
        (folder / "preprocessor_config.json").write_text(json.dumps(size))
    return folder


def _see_images(model: Any) -> None:
    """Give batch norms the statistics of what they see, and leave most values above the ReLU behind
    them: without the shift, MobileNetV2 of random weights has 31 dB in FP16, with it 60."""
    norms = [one for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.bias.normal_(2.0, 0.5)
    if norms:
        edge = getattr(model.config, "image_size", EDGE)
        model.train()(torch.randn(64, 3, edge, edge))
        model.eval()
