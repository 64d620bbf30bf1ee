"""MLX's form: the artifact's codes bit by bit, and config.json as mlx-lm reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from optkit.facts.errors import UsageError
from optkit.road.packaging.decoders import Architecture, Parameter, RotaryParameters
from optkit.road.packaging.mlx import model_args
from optkit.road.packaging.mlx.quantized import CodeForm, MlxStorage, store
from optkit.road.packaging.shards import ShardWriter
from tests.packaging.coded import random_codes

FLOAT = np.dtype(np.float32)


def dequantized(tensors: Mapping[str, np.ndarray], form: CodeForm) -> np.ndarray:
    """What mlx documents: q * scale + bias, code i of a word in its bits from i * bits."""
    words, scales, biases = (tensors[f"m.{part}"] for part in ("weight", "scales", "biases"))
    assert words.dtype == np.uint32
    places = np.arange(32 // form.bits, dtype=np.uint32) * form.bits
    codes = (words[..., None] >> places) & ((1 << form.bits) - 1)
    by_code = [np.repeat(each.astype(np.float64), form.size, 1) for each in (scales, biases)]
    found: np.ndarray = codes.reshape(len(words), -1) * by_code[0] + by_code[1]
    return found


@settings(max_examples=40)
@given(
    st.integers(0, 99), st.sampled_from((32, 64, 128)), st.sampled_from((2, 4, 8)), st.booleans(),
    st.sampled_from(("float32", "float16")),
)  # fmt: skip
def test_codes_are_carried_over(
    seed: int, block: int, bits: int, symmetric: bool, scales: str
) -> None:
    codes = random_codes(seed, bits, block, symmetric, scales)
    tensors, stored = store("m.weight", codes, np.dtype(scales))
    assert stored.form == CodeForm(block, bits) and not stored.loosened
    assert tensors["m.scales"].dtype == tensors["m.biases"].dtype == np.dtype(scales)
    found, step = dequantized(tensors, stored.form), np.repeat(codes.scales, block, 1)
    if symmetric or scales == "float32":  # biases are exact
        assert stored.rounding == 0
        np.testing.assert_array_equal(found, codes.numbers().astype(np.float64))
    assert (np.abs(found - codes.numbers()) <= (stored.rounding * 1.001) * step).all()
    assert stored.rounding <= 255 * 2.0**-11


def test_longer_blocks_get_their_scale_repeated() -> None:
    codes = random_codes(0, 8, 384, symmetric=True)  # 128 is the longest group that divides it
    tensors, stored = store("m.weight", codes, FLOAT)
    assert stored.form == CodeForm(128, 8) and tensors["m.scales"].shape == (3, 12)
    np.testing.assert_array_equal(dequantized(tensors, stored.form), codes.numbers())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_blocks_that_mlx_does_not_have_become_floats(dtype: type) -> None:
    codes = random_codes(0, 4, 16, symmetric=True)
    tensors, stored = store("m.weight", codes, np.dtype(dtype))
    assert stored.loosened and stored.form is None and tensors.keys() == {"m.weight"}
    assert tensors["m.weight"].dtype == dtype
    np.testing.assert_allclose(tensors["m.weight"].astype(float), codes.numbers(), rtol=2.0**-8)


def test_biases_that_half_precision_does_not_hold() -> None:
    codes = random_codes(0, 8, 32, symmetric=True, scales="float16")
    codes = replace(codes, scales=np.full_like(codes.scales, 600))  # 128 * 600 is infinite in FP16
    tensors, stored = store("m.weight", codes, np.dtype(np.float16))
    assert stored.loosened and tensors["m.weight"].dtype == np.float32
    np.testing.assert_array_equal(tensors["m.weight"], codes.numbers())


def test_floats_get_the_dtype_of_the_model() -> None:
    exact, inexact = np.ones(3, np.float32), np.full(3, 1 / 3, np.float32)
    for vector, rounded in ((exact, False), (inexact, True)):
        tensors, stored = store("norm.weight", vector, np.dtype(np.float16))
        assert tensors["norm.weight"].dtype == np.float16 and stored.rounded is rounded


def test_weights_are_cut_into_files_with_an_index(tmp_path: Path) -> None:
    shards = ShardWriter(tmp_path, "mlx", limit=100)
    tensors = {f"t{at}": np.full(10, at, np.float32) for at in range(5)}  # 40 bytes each
    for name, tensor in tensors.items():
        shards.add({name: tensor})
    files = shards.files()
    index = json.loads(bytes(files["model.safetensors.index.json"]))  # type: ignore[arg-type]
    assert index["metadata"] == {"total_size": 200}
    assert set(index["weight_map"].values()) == files.keys() - {"model.safetensors.index.json"}
    assert len(files) == 4 and "model-00003-of-00003.safetensors" in files
    for name, tensor in tensors.items():
        found = load_file(str(files[index["weight_map"][name]]))
        np.testing.assert_array_equal(found[name], tensor)


def architecture(kind: str, rotation: RotaryParameters | None = None) -> Architecture:
    return Architecture(
        kind, layers=1, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16,
        vocabulary=32, epsilon=1e-6, context=128, window=None, theta=5e5,
        rotation=rotation or RotaryParameters(),
    )  # fmt: skip


def with_bias(*modules: str) -> dict[str, Parameter]:
    names = [f"model.layers.0.{module}.bias" for module in modules]
    return {name: Parameter(name, lambda: np.ones(64, np.float32)) for name in names}


def test_a_bias_of_one_product_switches_on_those_beside_it() -> None:
    found = model_args.biases(architecture("llama"), with_bias("mlp.up_proj"))
    assert found.switches == {"attention_bias": False, "mlp_bias": True}
    zeros = {name: parameter.read() for name, parameter in found.zeros.items()}
    assert {name.split(".")[-2]: len(zero) for name, zero in zeros.items()} == {
        "gate_proj": 96, "down_proj": 64,
    }  # fmt: skip


def test_qwen2_always_has_its_biases() -> None:
    found = model_args.biases(architecture("qwen2"), with_bias("self_attn.q_proj"))
    assert {name.split(".")[-2] for name in found.zeros} == {"k_proj", "v_proj"}


@pytest.mark.parametrize(
    ("kind", "module"), [("qwen2", "self_attn.o_proj"), ("qwen3", "self_attn.q_proj")]
)
def test_a_bias_without_a_place_is_refused(kind: str, module: str) -> None:
    with pytest.raises(UsageError, match="has none there") as refused:
        model_args.biases(architecture(kind), with_bias(module))
    assert "bias_correction: false" in str(refused.value.hint)


def test_heads_without_a_place_are_refused() -> None:
    with pytest.raises(UsageError, match="4 heads of 32 are not its width"):
        model_args.check(replace(architecture("qwen2"), head_size=32))


def written(folder: Path, of: Architecture, stored: Mapping[str, MlxStorage]) -> dict[str, object]:
    said = {"model_type": of.kind, "rope_parameters": {"rope_theta": 1.0}, "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(said))
    content = model_args.config(folder, of, {"tie_word_embeddings": False}, stored, FLOAT)
    found: dict[str, object] = json.loads(content)
    return found


def test_config_says_what_mlx_lm_does_not_ask_for(tmp_path: Path) -> None:
    config = written(
        tmp_path, architecture("llama", RotaryParameters(rope_type="linear", factor=4)), {}
    )
    assert config["rope_theta"] == 5e5 and config["tie_word_embeddings"] is False
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4}
    assert "quantization" not in config and "torch_dtype" not in config


def test_config_says_the_form_of_each_matrix(tmp_path: Path) -> None:
    stored = {
        "a.weight": MlxStorage(100, CodeForm(32, 4)),
        "b.weight": MlxStorage(60, CodeForm(128, 8)),
        "c.weight": MlxStorage(50, CodeForm(32, 4)),
        "norm.weight": MlxStorage(1000),
    }
    config = written(tmp_path, architecture("llama"), stored)
    usual = {"group_size": 32, "bits": 4}
    assert config["quantization"] == {**usual, "b": {"group_size": 128, "bits": 8}}
    assert config["quantization_config"] == config["quantization"]
