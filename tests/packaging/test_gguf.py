"""GGUF files: the artifact's codes bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.errors import UsageError
from optkit.road.packaging.decoders import Architecture
from tests.packaging import tiny
from tests.packaging.coded import random_codes


@settings(max_examples=30)
@given(st.integers(0, 99), st.sampled_from((32, 64, 128)), st.sampled_from((2, 4, 8)))
def test_symmetric_codes_are_carried_over_exactly(seed: int, block: int, bits: int) -> None:
    gguf = pytest.importorskip("gguf")
    from optkit.road.packaging.gguf import blocks

    codes = random_codes(seed, bits, block, symmetric=True)
    data, stored = blocks.store(codes)
    assert stored.kind.name == ("Q8_0" if bits == 8 else "Q4_0") and stored.rounding == 0
    np.testing.assert_array_equal(gguf.dequantize(data, stored.kind), codes.numbers())


def test_codes_with_zero_points_are_carried_over() -> None:
    gguf = pytest.importorskip("gguf")
    from optkit.road.packaging.gguf import blocks

    codes = random_codes(0, 4, 64, symmetric=False)
    data, stored = blocks.store(codes)
    assert stored.kind.name == "Q4_1"
    error = np.abs(gguf.dequantize(data, stored.kind) - codes.numbers()).max()
    assert 0 < error <= stored.rounding * codes.scales.max()  # the minimum is rounded to FP16
    assert stored.rounding <= 15 * 2.0**-11


def test_blocks_that_ggml_does_not_have_become_floats() -> None:
    pytest.importorskip("gguf")
    from optkit.road.packaging.gguf import blocks

    codes = random_codes(0, 4, 16, symmetric=True)
    data, stored = blocks.store(codes)
    assert stored.loosened and stored.kind.name == "F16"
    np.testing.assert_allclose(data, codes.numbers(), rtol=2.0**-11)


def test_scales_are_repeated_for_shorter_blocks() -> None:
    codes = random_codes(0, 4, 64, symmetric=True)
    shorter = codes.in_blocks_of(32)
    assert shorter is not None and shorter.scales.shape == (3, 8)
    np.testing.assert_array_equal(shorter.numbers(), codes.numbers())
    assert codes.in_blocks_of(48) is None


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llama, mistral, qwen2, qwen3"):
        Architecture.of(tiny.artifact(tmp_path))
