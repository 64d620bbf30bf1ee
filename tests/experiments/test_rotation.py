"""Rotations and planted channels of the study of outliers leave the function of a decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from optkit.qat.agreement import sqnr
from tests.scripts import script

ROTATION = script("experiments/outliers/rotation.py")


@pytest.fixture
def llama() -> Any:
    torch.manual_seed(0)
    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip
    for name, weight in net.named_parameters():
        if "norm" in name:
            weight.data = torch.rand(48) + 0.5
    return ROTATION.untie(net)


def test_a_rotation_leaves_the_function(llama: Any) -> None:
    ids = torch.arange(40).view(4, 10)
    before, table = ROTATION.logits(llama, ids), llama.model.embed_tokens.weight.clone()
    ROTATION.rotate(llama, values=True)
    assert sqnr(before, ROTATION.logits(llama, ids)) > 100
    assert not torch.allclose(table, llama.model.embed_tokens.weight, atol=1e-2)
    assert all((norm.weight == 1).all() for norm, _ in ROTATION._norms(llama))


def test_planted_channels_leave_the_function(llama: Any) -> None:
    ids = torch.arange(40).view(4, 10)
    before = ROTATION.logits(llama, ids)
    largest = llama.model.norm.weight.detach().max()
    ROTATION.plant(llama)
    assert sqnr(before, ROTATION.logits(llama, ids)) > 90
    assert llama.model.norm.weight.detach().max() > 100 * largest


@pytest.mark.parametrize("size", [2, 12, 20, 64, 128, 320, 384, 576])
def test_a_hadamard_matrix_is_orthogonal_with_equal_magnitudes(size: int) -> None:
    matrix = ROTATION.hadamard(size)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(np.abs(matrix), size**-0.5)


def test_an_order_without_a_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="order 6"):
        ROTATION.hadamard(6)
