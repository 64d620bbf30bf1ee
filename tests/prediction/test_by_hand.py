"""Questions about memory, beside arithmetic that needs only the published sizes of the models:
within 5 %.

By hand, in decimal gigabytes: parameters times bytes (INT4: half a byte and a scale of 16 bits per
32 weights; embedding and vocabulary stay in 16 bits), the keys and values of 1,024 read and 256
written tokens, 0.5 GB for the runtime of each device, 0.4 GB for activations and workspace of a
70B model. A device has what nvidia-smi shows: H100 85.5, H200 150.8, L4 24.2, RTX 4090 25.8 GB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit import DecoderSizes

LLAMA_2_70B = DecoderSizes(
    68_976_648_192, 80, 8, 128, heads=64, hidden=8192, ffn=28672, vocabulary=32000
)
LLAMA_3_8B = DecoderSizes(
    8_030_261_248, 32, 8, 128, heads=32, hidden=4096, ffn=14336, vocabulary=128256
)


def planned(target: str, precision: str, decoder: DecoderSizes, **more: Any) -> Any:
    asked = {"prompt": 1024, "new_tokens": 256, "batches": (1,)} | more
    return optkit.plan(target=target, precision=precision, decoder=decoder, **asked)["results"][0]


@pytest.mark.parametrize(
    ("target", "precision", "devices", "gigabytes"),
    [
        # 69.0 G × 2 B = 138.0; 2 × 80 layers × 8 heads × 128 × 2 B × 1,280 tokens = 0.42
        ("h100", "fp16", 2, 138.0 + 0.42 + 0.4 + 2 * 0.5),
        ("h200", "fp16", 1, 138.0 + 0.42 + 0.4 + 0.5),
        # 140.8 / 25.8 = 5.5 and 141.8 / 24.2 = 5.9: its 8 heads of keys are split into equal parts
        ("rtx4090", "fp16", 8, 138.0 + 0.42 + 0.4 + 8 * 0.5),
        ("l4", "fp16", 8, 138.0 + 0.42 + 0.4 + 8 * 0.5),
        # 2 × 32,000 × 8,192 = 0.52 G at 2 B, the other 68.4 G at 1 B; an FP8 cache of 0.21
        ("h100", "fp8", 1, 68.4 + 1.05 + 0.21 + 0.4 + 0.5),
        ("h200", "fp8", 1, 68.4 + 1.05 + 0.21 + 0.4 + 0.5),
        ("rtx4090", "fp8", 4, 68.4 + 1.05 + 0.21 + 0.4 + 4 * 0.5),
        ("l4", "fp8", 4, 68.4 + 1.05 + 0.21 + 0.4 + 4 * 0.5),
        # 68.4 G × 4.5 bits = 38.5
        ("h100", "int4", 1, 38.5 + 1.05 + 0.42 + 0.4 + 0.5),
        ("h200", "int4", 1, 38.5 + 1.05 + 0.42 + 0.4 + 0.5),
        ("rtx4090", "int4", 2, 38.5 + 1.05 + 0.42 + 0.4 + 2 * 0.5),
        ("l4", "int4", 2, 38.5 + 1.05 + 0.42 + 0.4 + 2 * 0.5),
    ],
)
def test_seventy_billion(target: str, precision: str, devices: int, gigabytes: float) -> None:
    row = planned(target, precision, LLAMA_2_70B)
    assert row["devices"] == devices
    assert row["memory"]["total"] / 1e9 == pytest.approx(gigabytes, rel=0.05)


@pytest.mark.parametrize(
    ("method", "gigabytes"),
    [
        # 8.03 G × 2 B; adapters of rank 16: 32 layers × 16 × (2 · 8,192 of query and output,
        # 2 · 5,120 of key and value, 3 · 18,432 of the MLP) = 41.9 M, 18 B each
        ("lora", 16.06 + 0.755),
        # 6.98 G in the layers × 4.127 bits, 1.05 G outside them × 2 B
        ("qlora", 3.60 + 2.10 + 0.755),
    ],
)
def test_adapters_of_eight_billion(method: str, gigabytes: float) -> None:
    """Activations, all of them recomputed: 32 layers × 1,024 tokens × 4,096 × 2 B = 0.27; logits in
    FP32 and their gradient: 2 × 1,024 × 128,256 × 4 B = 1.05."""
    row = planned("l4", "fp16", LLAMA_3_8B, training=[method])
    held = row["training"][0]["recompute_full"]["total"] / 1e9
    assert held == pytest.approx(gigabytes + 0.27 + 1.05, rel=0.05)


@pytest.mark.slow
def test_resnet_50(tmp_path: Path) -> None:
    """25.6 M weights. Alive at once at batch 1: the stem's 64 × 112 × 112 output twice, 3.2 MB."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).eval()
    held = exported(model, {"pixel_values": torch.zeros(2, 3, 224, 224)}, "fp16", tmp_path)
    assert held["weights"] / 1e6 == pytest.approx(51.1, rel=0.05)
    assert held["total"] / 1e6 == pytest.approx(51.1 + 2 * 3.2 + 500, rel=0.05)


@pytest.mark.slow
def test_bert_large(tmp_path: Path) -> None:
    """335 M parameters, of them 302 M in the layers: these at 1 B, the rest at 2 B."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096)  # fmt: skip
    inputs = {"input_ids": torch.zeros(2, 128, dtype=torch.int64)}
    held = exported(BertModel(config).eval(), inputs, "int8", tmp_path)
    assert held["weights"] / 1e6 == pytest.approx(302 + 2 * 33, rel=0.05)
    assert held["total"] / 1e6 == pytest.approx(302 + 2 * 33 + 500, rel=0.05)


def exported(model: Any, inputs: Any, precision: str, folder: Path) -> Any:
    import torch

    class Alone(torch.nn.Module):
        """Its first output alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first: torch.Tensor = self.model(x, return_dict=False)[0]
            return first

    found = optkit.plan(
        Alone().eval(), tuple(inputs.values()), target="l4", precision=precision, batches=(1,),
        workspace=optkit.Workspace(folder),
    )  # fmt: skip
    return found["results"][0]["memory"]


@pytest.mark.slow
def test_whisper_small_whole(tmp_path: Path) -> None:
    """242 M parameters × 2 B; 12 layers × 12 heads × 64 × 2 × 2 B for 1,500 tokens of sound and the
    448 of text: 72 MB. At the widest place of the encoder 1,500 × (768 + 3,072) × 2 B, twice."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    found = optkit.plan(
        tmp_path / "model", target="l4", precision="fp16", batches=(1,), prompt=4, new_tokens=444,
        workspace=optkit.Workspace(tmp_path / "store"),
    )  # fmt: skip
    held = found["results"][0]["memory"]
    assert held["cache"] / 1e6 == pytest.approx(72, rel=0.05)
    assert held["weights"] / 1e6 == pytest.approx(484, rel=0.05)
    assert held["total"] / 1e6 == pytest.approx(484 + 72 + 500 + 23, rel=0.05)
