"""A decoder by its inputs and outputs, with a cache of floats or of codes."""

from __future__ import annotations

import pytest
import transformers

from optkit.facts.errors import ToolchainMissing
from optkit.facts.tensors import TensorInfo
from optkit.ground.decoder import LOGITS, Decoder, Windows, require_codes

TOKENS = TensorInfo("input_ids", "int64", ("batch", "sequence"))
LOGIT = TensorInfo(LOGITS, "float32", ("batch", "sequence", 320))


def decoder(dtype: str, width: int) -> Decoder:
    names = ("0.key", "0.value")
    past = [TensorInfo(f"past_key_values.{n}", dtype, ("batch", 2, "past", width)) for n in names]
    present = [TensorInfo(f"present.{n}", dtype, ("batch", 2, "all", width)) for n in names]
    found = Decoder.of([TOKENS, *past], [LOGIT, *present])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dtype", "width", "codes"),
    [("float32", 16, None), ("float16", 16, None), ("int8", 16, "int8"), ("uint8", 8, "int4")],
)
def test_two_codes_of_four_bits_are_one_byte(dtype: str, width: int, codes: str | None) -> None:
    found = decoder(dtype, width)
    assert (found.codes, found.head_size, found.heads, found.layers) == (codes, 16, 2, 1)
    bits = {"float32": 32, "float16": 16, "int8": 8, "uint8": 4}[dtype]
    assert found.token_bytes == 2 * 2 * 16 * bits // 8  # key and value, two heads of 16


def test_states_of_fixed_shape_begin_with_zeros() -> None:
    key, value = (TensorInfo(f"past_key_values.1.{n}", "float32", ("batch", 2, "past", 8))
                  for n in ("key", "value"))  # fmt: skip
    conv = TensorInfo("past_conv.0", "float32", ("batch", 16, 3))
    second = TensorInfo("past_recurrent.0.1", "float32", ("batch", 4, 8, 8))
    names = ("present.1.key", "present.1.value", "present_conv.0", "present_recurrent.0.1")
    outputs = [LOGIT, *(TensorInfo(name, "float32", ("batch",)) for name in names)]
    found = Decoder.of([TOKENS, key, value, conv, second], outputs)
    assert found is not None and found.states == (conv, second) and found.cache == (key, value)
    assert tuple(found.carried) == names
    shapes = {name: array.shape for name, array in found.empty(5).items()}
    assert shapes == {key.name: (5, 2, 0, 8), value.name: (5, 2, 0, 8), conv.name: (5, 16, 3),
                      second.name: (5, 4, 8, 8)}  # fmt: skip
    alone = Decoder.of([TOKENS, conv], [LOGIT, TensorInfo(names[2], "float32", ("batch",))])
    assert alone is not None and alone.codes is None and alone.token_bytes == 0
    assert Decoder.of([TOKENS, conv], [LOGIT]) is None


@pytest.mark.parametrize("version", ["1.26.1", "1.27.0", "0.99"])
def test_an_older_runtime_is_refused(version: str) -> None:
    with pytest.raises(ToolchainMissing, match=version) as caught:
        require_codes(version, "model.onnx")
    assert "1.28" in str(caught.value.hint) and caught.value.where == "model.onnx"


@pytest.mark.parametrize("version", ["1.28.0", "1.32.0", "2.0.0", "1.30.0.dev20260801"])
def test_a_newer_runtime_is_not(version: str) -> None:
    require_codes(version, "model.onnx")


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, 12),
        ({"sliding_window": None}, None),
        ({"use_sliding_window": False}, None),
        ({"use_sliding_window": True, "max_window_layers": 9}, 3),
        ({"use_sliding_window": True, "max_window_layers": 28}, None),
        ({"layer_types": ["sliding_attention", "full_attention"] * 6}, 6),
        ({"layer_types": ["full_attention"] * 12, "sliding_window_pattern": 6}, None),
        ({"sliding_window_pattern": 6}, 10),
        ({"model_type": "gemma2"}, 6),
        ({"model_type": "gemma3_text"}, 10),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_windows_are_read_from_old_and_new_configurations(
    config: dict[str, object], layers: int | None, nested: bool
) -> None:
    whole = {"num_hidden_layers": 12, "sliding_window": 64, **config}
    found = Windows.of({"model_type": "of images", "text_config": whole} if nested else whole)
    assert found == (None if layers is None else Windows(64, layers))


def test_windows_of_transformers_are_those_of_its_layers() -> None:
    configs = (
        (transformers.Gemma2Config(num_hidden_layers=5, sliding_window=8), 3),
        (transformers.Gemma3TextConfig(num_hidden_layers=13, sliding_window=8), 11),
        (transformers.MistralConfig(num_hidden_layers=5, sliding_window=8), 5),
        (transformers.Qwen2Config(num_hidden_layers=5, sliding_window=8), None),
        (transformers.LlamaConfig(num_hidden_layers=5), None),
    )
    for config, layers in configs:
        said = config.to_dict()
        for known in (said, {k: v for k, v in said.items() if k != "layer_types"}):
            found = Windows.of(known)
            assert found == (None if layers is None else Windows(8, layers)), config.model_type
