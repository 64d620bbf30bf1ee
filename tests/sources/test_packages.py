"""Models of packages that a new user has: one factory and one file of arrays, to an INT8 graph.

The export itself compares the graph with the model at two other sizes. A package that is not
installed skips its case.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx
import pytest

import optkit
from optkit import Request

UNET = """
from diffusers import UNet2DConditionModel

def create():
    return UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), layers_per_block=1, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=4,
    )
"""
VAE = """
from diffusers import AutoencoderKL

def create():
    return AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
"""
TIMM = """
import timm

def create():
    return timm.create_model("test_efficientnet", num_classes=10)
"""
WHISPER = """
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

def create():
    return WhisperEncoder(WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4,
        encoder_ffn_dim=64, num_mel_bins=8, max_source_positions=50))
"""
DLRM = """
import torch
from torch import nn

class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, 16) for rows in (90, 30))
        self.top = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, ids):
        bags = [bag(ids[:, k]) for k, bag in enumerate(self.bags)]
        return self.top(torch.cat([self.bottom(dense), *bags], 1))

def create():
    return DLRM()
"""
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=(32, *shape)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "code", "arrays"),
    [
        (
            "diffusers",
            UNET,
            {
                "sample": floats(4, 8, 8),
                "timestep": RNG.integers(0, 1000, 32),
                "encoder_hidden_states": floats(3, 16),
            },
        ),
        ("diffusers", VAE, {"sample": floats(3, 16, 16)}),
        ("timm", TIMM, {"x": floats(3, 64, 64)}),
        ("transformers", WHISPER, {"input_features": floats(8, 100)}),
        ("torch", DLRM, {"dense": floats(5), "ids": RNG.integers(0, 30, (32, 2, 4))}),
    ],
    ids=["unet", "vae", "timm", "whisper", "dlrm"],
)
def test_a_factory_and_its_arrays_are_enough(
    package: str, code: str, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    pytest.importorskip(package, exc_type=Exception)
    (tmp_path / "model.py").write_text(dedent(code))
    np.savez(tmp_path / "samples.npz", **arrays)  # type: ignore[arg-type]
    request = Request(f"{tmp_path / 'model.py'}:create", calibration=str(tmp_path / "samples.npz"))
    out = optkit.quantize(request, target="cpu", precision="int8", out=tmp_path / "int8")
    graph = onnx.load(out / "model.onnx").graph
    assert {info.name for info in graph.input} == arrays.keys()
    assert all(info.type.tensor_type.shape.dim[0].dim_param == "batch" for info in graph.input)
    assert any(tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
               for tensor in graph.initializer)  # fmt: skip
