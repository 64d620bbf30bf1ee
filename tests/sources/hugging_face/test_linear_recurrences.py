"""Recurrences read token by token are those that transformers computes in chunks or steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba import modeling_mamba as mamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from optkit.craft.sources.hugging_face import linear_recurrences

LENGTHS = st.integers(1, 9)
SEEDS = st.integers(0, 2**16)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(length=LENGTHS, seed=SEEDS, begun=st.booleans())
def test_the_gated_delta_rule(length: int, seed: int, begun: bool) -> None:
    torch.manual_seed(seed)
    query, key = torch.randn(2, 2, length, 2, 8)
    value, state = torch.randn(2, length, 4, 6), torch.randn(2, 4, 8, 6)
    gates = {"g": -torch.rand(2, length, 4), "beta": torch.rand(2, length, 4)}
    options = {"initial_state": state if begun else None, "use_qk_l2norm_in_kernel": True}
    found = linear_recurrences.gated_delta_rule(query, key, value, **gates, **options)
    own = {"chunk_size": 4, "output_final_state": True}
    close(found, qwen.torch_chunk_gated_delta_rule(query, key, value, **gates, **options, **own))


@settings(max_examples=10, deadline=None)
@given(length=LENGTHS, seed=SEEDS)
def test_its_form_with_a_decay_for_each_channel(length: int, seed: int) -> None:
    torch.manual_seed(seed)
    query, key = torch.randn(2, 2, length, 4, 8)
    value, state = torch.randn(2, length, 4, 6), torch.randn(2, 4, 8, 6)
    gates = {"g": -torch.rand(2, length, 4, 8), "beta": torch.rand(2, length, 4)}
    options = {"initial_state": state, "use_qk_l2norm_in_kernel": True}
    found = linear_recurrences.gated_delta_rule(query, key, value, **gates, **options)
    own = {"chunk_size": 4, "output_final_state": True}
    close(found, kimi.chunk_kimi_delta_attention(query, key, value, **gates, **options, **own))


@settings(max_examples=10, deadline=None)
@given(length=LENGTHS, seed=SEEDS, begun=st.booleans())
def test_the_scan_of_mamba_2(length: int, seed: int, begun: bool) -> None:
    torch.manual_seed(seed)
    x, dt, a = torch.randn(2, length, 4, 6), torch.randn(2, length, 4), -torch.rand(4)
    b, c = torch.randn(2, 2, length, 2, 5)
    options = {
        "D": torch.randn(4), "dt_bias": torch.randn(4), "dt_softplus": True, "dt_limit": (0.1, 0.9),
        "initial_states": torch.randn(2, 4, 6, 5) if begun else None, "return_final_states": True,
    }  # fmt: skip
    found = linear_recurrences.chunk_scan(x, dt, a, b, c, **options)
    close(found, mamba2.mamba2_chunk_scan(x, dt, a, b, c, chunk_size=4, **options))


@settings(max_examples=10, deadline=None)
@given(length=LENGTHS, seed=SEEDS, begun=st.booleans())
def test_the_scan_of_mamba(length: int, seed: int, begun: bool) -> None:
    """transformers begins a scan with zeros; after a state it reads one token."""
    torch.manual_seed(seed)
    x, dt, z = torch.randn(3, 2, 7, length)
    b, c = torch.randn(2, 2, 5, length)
    a, d, bias = -torch.rand(7, 5), torch.randn(7), torch.randn(7)
    options = {"z": z, "delta_bias": bias, "delta_softplus": True, "return_last_state": True}
    state = torch.randn(2, 7, 5)
    found = linear_recurrences.selective_scan(
        x, dt, a, b, c, D=d, initial_state=state if begun else None, **options
    )
    if not begun:
        close(found, mamba.mamba_selective_scan(x, dt, a, b, c, D=d, **options))
        return
    outputs = [
        mamba.mamba_selective_state_update(
            state, x[..., t], dt[..., t], a, b[..., t], c[..., t], d, z=z[..., t], dt_bias=bias,
            dt_softplus=True,
        )
        for t in range(length)
    ]  # fmt: skip
    close(found, (torch.stack(outputs, dim=-1), state))


def test_transformers_has_its_own_functions_again() -> None:
    class Mixer(torch.nn.Module):
        __module__ = qwen.__name__

    own = qwen.torch_chunk_gated_delta_rule
    with pytest.raises(RuntimeError), linear_recurrences.scanned(Mixer()):  # type: ignore[arg-type]
        assert qwen.torch_chunk_gated_delta_rule is not own
        raise RuntimeError
    assert qwen.torch_chunk_gated_delta_rule is own
