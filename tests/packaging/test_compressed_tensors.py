"""The form of compressed-tensors: its library reads the same codes, scales and numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers as hf
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from optkit.craft.quantization.qdq import dynamic
from optkit.craft.quantization.qdq.codes import Codes, FloatCodes
from optkit.craft.sources.hugging_face.network_layout import NetworkLayout, network_layout
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats
from optkit.road.packaging.compressed_tensors import config, fp8_cache
from optkit.road.packaging.compressed_tensors.kept_parameters import kept_parameters
from optkit.road.packaging.compressed_tensors.schemes import (
    CodeArguments,
    LinearScheme,
    Tensors,
    store,
)
from optkit.road.packaging.decoders import Parameter, QuantizedInput
from optkit.road.packaging.shards import ShardWriter
from optkit.road.packaging.variants import PackageSubject
from tests.generation import families
from tests.packaging import tiny
from tests.packaging.coded import random_codes

INT8 = QuantizedInput("uint8", np.array(0.25, np.float32), 131)


def read(
    folder: Path, tensors: Tensors, scheme: LinearScheme
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """What the library reads in a file with these tensors, and the weight that it decompresses."""
    shards = ShardWriter(folder, "pt")
    shards.add(tensors)
    (file,) = shards.files().values()
    found = {key.removeprefix("m."): value for key, value in load_file(str(file)).items()}
    args = QuantizationScheme.model_validate({"targets": ["Linear"], **scheme.to_json()})
    compressor = BaseCompressor.load_from_registry(scheme.format)
    weight = compressor.decompress(dict(found), args)["weight"]
    return found, weight.to(torch.float32).numpy()


@settings(max_examples=40)
@given(
    st.integers(0, 99), st.sampled_from((16, 24, 32, 64, 128)), st.sampled_from((2, 4, 8)),
    st.booleans(), st.booleans(), st.sampled_from(("float32", "float16")),
)  # fmt: skip
def test_the_library_reads_the_codes_of_weights(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int, block: int, bits: int, symmetric: bool, unsigned: bool, scales: str,
) -> None:  # fmt: skip
    codes = random_codes(seed, bits, block, symmetric, scales).rows(np.arange(21) % 3)
    if symmetric and unsigned:  # as MatMulNBits has them
        half = 1 << bits - 1
        held = (codes.codes.astype(np.int16) + half).astype(np.uint8)
        codes = replace(codes, codes=held, zero_points=np.full_like(codes.zero_points, half, "u1"))
    tensors, scheme = store("m", codes, None)
    found, weight = read(tmp_path_factory.mktemp("w"), tensors, scheme)
    assert scheme.format == "pack-quantized" and scheme.inputs is None
    assert (scheme.weights.bits, scheme.weights.group) == (bits, block)
    assert scheme.weights.symmetric is ("weight_zero_point" not in found)
    centre = 1 << bits - 1 if codes.codes.dtype == np.uint8 else 0
    unpacked = unpack_from_int32(found["weight_packed"], bits, torch.Size(codes.shape)).numpy()
    np.testing.assert_array_equal(unpacked, codes.codes.astype(int) - centre)
    np.testing.assert_array_equal(found["weight_scale"].numpy(), codes.scales)
    numbers = codes.centred().astype(scales) * np.repeat(codes.scales, block, 1)
    np.testing.assert_array_equal(weight, numbers.astype(np.float32))
    if scales == "float32":
        np.testing.assert_array_equal(weight, codes.numbers())


def test_one_block_is_a_channel_and_short_blocks_are_divided() -> None:
    codes = random_codes(0, 8, 24, symmetric=True)
    scales, zeros = codes.scales, codes.zero_points
    one = replace(codes, scales=scales[:, :1], zero_points=zeros[:, :1], block=128)
    assert store("m", one, None)[1].weights.strategy == "channel"
    short = replace(one, scales=scales[:, :2], zero_points=zeros[:, :2], block=64)
    tensors, scheme = store("m", short, None)  # blocks of 64 and 32 codes
    assert scheme.weights.group == 32
    np.testing.assert_array_equal(
        tensors["m.weight_scale"], np.repeat(short.scales, 2, axis=1)[:, :3]
    )


@pytest.mark.parametrize(
    ("given_input", "point", "symmetric"),
    [
        (INT8, 3, False),
        (replace(INT8, zero_point=128), None, True),
        (replace(INT8, dtype="int8", zero_point=0), None, True),
        (replace(INT8, dtype="int8", zero_point=-7), -7, False),
    ],
)
def test_int8_with_a_scale_for_the_input(
    given_input: QuantizedInput, point: int | None, symmetric: bool, tmp_path: Path
) -> None:
    codes = random_codes(0, 8, 96, symmetric=True)
    whole = replace(
        codes, scales=codes.scales[:, :1], zero_points=codes.zero_points[:, :1], block=384
    )
    tensors, scheme = store("m", whole, given_input)
    found, weight = read(tmp_path, tensors, scheme)
    assert scheme.format == "int-quantized" and found["weight"].dtype == torch.int8
    np.testing.assert_array_equal(found["weight"].numpy(), whole.codes)
    np.testing.assert_array_equal(weight, whole.numbers())
    assert scheme.inputs == CodeArguments(8, "int", "tensor", symmetric=symmetric)
    assert found["input_scale"].tolist() == [0.25]
    points = found.get("input_zero_point")
    assert (None if points is None else points.tolist()) == (None if point is None else [point])


def e4m3(seed: int) -> FloatCodes:
    rng = np.random.default_rng(seed)
    codes = rng.normal(0, 100, (6, 48)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(1e-4, 1, (6, 1)).astype(np.float32)
    return FloatCodes(codes, scales, np.float32(1), 48)


def e2m1(seed: int, outer: float) -> FloatCodes:
    rng = np.random.default_rng(seed)
    codes = rng.normal(0, 3, (6, 48)).astype(ml_dtypes.float4_e2m1fn)
    scales = rng.uniform(0.1, 400, (6, 3)).astype(ml_dtypes.float8_e4m3fn)
    return FloatCodes(codes, scales, np.float32(outer), 16)


def test_fp8(tmp_path: Path) -> None:
    codes = e4m3(0)
    given_input = QuantizedInput("float8e4m3fn", np.array(0.5, np.float16), 0)
    tensors, scheme = store("m", codes, given_input)
    found, weight = read(tmp_path, tensors, scheme)
    assert scheme.format == "float-quantized" and found["weight"].dtype == torch.float8_e4m3fn
    np.testing.assert_array_equal(
        found["weight"].view(torch.uint8).numpy(), codes.codes.view(np.uint8)
    )
    np.testing.assert_array_equal(weight, codes.numbers())
    assert scheme.inputs == CodeArguments(8, "float", "tensor")
    assert found["input_scale"].tolist() == [0.5]


@pytest.mark.parametrize("kind", ["int", "float"])
def test_inputs_with_a_scale_for_each_token_at_run_time(kind: str, tmp_path: Path) -> None:
    """The codes and scales of weights are the same; the library computes the scales of inputs."""
    codes = random_codes(0, 8, 96, symmetric=True)
    one = replace(codes, scales=codes.scales[:, :1], zero_points=codes.zero_points[:, :1])
    weight = replace(one, block=384) if kind == "int" else e4m3(0)
    given_input = INT8 if kind == "int" else QuantizedInput("float8e4m3fn", np.array(0.5), 0)
    static, _ = store("m", weight, given_input)
    tensors, scheme = store("m", weight, given_input, by_token=True)
    assert tensors.keys() == {"m.weight", "m.weight_scale"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, static[name])
    _, read_weight = read(tmp_path, tensors, scheme)
    np.testing.assert_array_equal(read_weight, weight.numbers())
    assert scheme.inputs == CodeArguments(8, kind, "token", dynamic=True)
    assert str(scheme).endswith("by token at run time")
    args = QuantizationArgs.model_validate(scheme.inputs.to_json())
    x = np.random.default_rng(0).normal(0, 2, (5, 7, 48)).astype(np.float32)
    x[0, 3] *= 100  # a token with outliers does not change the others
    scale, zero = compute_dynamic_scales_and_zp(torch.from_numpy(x), args, torch.nn.Linear(48, 6))
    theirs = fake_quantize(torch.from_numpy(x), scale, zero, args).numpy()
    error, largest = np.abs(theirs - x), np.abs(x).max(-1, keepdims=True)
    step = largest / 127 if kind == "int" else np.maximum(np.abs(x) / 8, largest / 448)
    assert scale.shape == (5, 7, 1) and (error <= 0.51 * step).all()


def test_only_compressed_tensors_takes_dynamic(tmp_path: Path) -> None:
    made = tiny.artifact(tmp_path / "artifacts")
    subject = PackageSubject.of(made.path, dynamic=True)
    with pytest.raises(UsageError, match="graph with its own scales") as refused:
        formats.package(subject, "slim", tmp_path / "out")
    assert refused.value.hint == "choose the format compressed-tensors"


def test_nvfp4(tmp_path: Path) -> None:
    codes = e2m1(0, 0.25)
    tensors, scheme = store("m", codes, QuantizedInput("float4e2m1", np.array(0.5, np.float32), 0))
    found, weight = read(tmp_path, tensors, scheme)
    assert scheme.format == "nvfp4-pack-quantized"
    unpacked = unpack_fp4_from_uint8(found["weight_packed"], 6, 48, torch.float32)
    np.testing.assert_array_equal(unpacked.numpy(), codes.codes.astype(np.float32))
    np.testing.assert_array_equal(
        found["weight_scale"].view(torch.uint8).numpy(), codes.scales.view(np.uint8)
    )
    np.testing.assert_allclose(weight, codes.numbers(), rtol=2.0**-8)  # it computes in bfloat16
    assert found["weight_global_scale"].tolist() == [4.0]
    assert found["input_global_scale"].tolist() == [2.0]


def test_inputs_in_nvfp4_are_rounded_as_by_the_artifact() -> None:
    given_input = QuantizedInput("float4e2m1", np.array(0.003, np.float32), 0)
    tensors, scheme = store("m", e2m1(0, 0.25), given_input)
    assert scheme.inputs is not None
    args = QuantizationArgs.model_validate(scheme.inputs.to_json())
    scale_of_scales = torch.from_numpy(tensors["m.input_global_scale"])
    x = np.random.default_rng(0).normal(0, 2, (5, 7, 48)).astype(np.float32)
    x[0, 0, :16] = 0
    given_x, linear = torch.from_numpy(x), torch.nn.Linear(48, 6)
    scale, zero = compute_dynamic_scales_and_zp(
        value=given_x, args=args, module=linear, global_scale=scale_of_scales
    )
    theirs = fake_quantize(given_x, scale, zero, args, global_scale=scale_of_scales).numpy()
    activations = PRECISIONS["nvfp4"].activations
    assert activations is not None
    ours = dynamic.rounded(x, 0.003, activations)
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)


def test_inputs_in_e4m3_are_rounded_as_by_the_artifact() -> None:
    given_input = QuantizedInput("float8e4m3fn", np.array(0.01, np.float32), 0)
    tensors, scheme = store("m", e4m3(0), given_input)
    assert scheme.inputs is not None
    args = QuantizationArgs.model_validate(scheme.inputs.to_json())
    x = np.random.default_rng(0).normal(0, 2, (5, 48)).astype(np.float32)
    x[0, 0] = 100  # beyond the range
    scale = torch.from_numpy(tensors["m.input_scale"])
    theirs = fake_quantize(torch.from_numpy(x), scale, None, args).numpy()
    clipped = np.clip(x / np.float32(0.01), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(theirs, clipped.astype(np.float32) * np.float32(0.01))


def test_rows_times_powers_of_two_keep_scales_of_scales() -> None:
    codes, factors = e2m1(1, 0.25), np.array([1, 0.5, 0.25, 1, 1, 0.5], np.float32)
    held = codes.scaled(factors)
    assert held.scales.dtype == ml_dtypes.float8_e4m3fn and held.outer == codes.outer
    np.testing.assert_array_equal(held.numbers(), codes.numbers() * factors[:, None])
    other = codes.scaled(factors * np.float32(0.7))
    with pytest.raises(UsageError, match="not E4M3 numbers"):
        store("m", other, None)


def test_weights_and_inputs_of_two_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="weights in E4M3 by inputs in uint8") as refused:
        store("m", e4m3(0), INT8)
    assert "int8-weight-only" in str(refused.value.hint)


def test_config_is_what_the_library_reads(tmp_path: Path) -> None:
    said = {"model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(said))
    w4 = LinearScheme("pack-quantized", CodeArguments(4, "int", "group", True, 32), None)
    w8 = LinearScheme("pack-quantized", CodeArguments(8, "int", "channel"), None)
    a8 = LinearScheme("int-quantized", w8.weights, CodeArguments(8, "int", "tensor", False))

    def written(schemes: dict[str, LinearScheme]) -> tuple[dict[str, object], QuantizationConfig]:
        content = config.config(
            tmp_path, "LlamaForCausalLM", config.quantization(schemes, ["head"], "lm_head"),
            np.dtype(np.float16), False,
        )  # fmt: skip
        found = json.loads(content)
        return found, QuantizationConfig.model_validate(found["quantization_config"])

    found, one = written({"a": w4, "b": w4})
    assert (found["dtype"], found["tie_word_embeddings"]) == ("float16", False)
    assert "torch_dtype" not in found and found["architectures"] == ["LlamaForCausalLM"]
    assert [scheme.targets for scheme in one.config_groups.values()] == [["Linear"]]
    _, tied = written({"a": w4, "lm_head": w4})  # no Linear in vLLM, which knows its name alone
    assert tied.config_groups["group_0"].targets == ["Linear", "lm_head"]
    assert (one.format, one.ignore) == ("pack-quantized", ["head"])
    assert one.quantization_status == "compressed"
    found, several = written({"a": w4, "b": a8, "c": w4, "lm_head": w8})
    assert several.format == "mixed-precision"
    groups = {tuple(each.targets): each for each in several.config_groups.values()}
    assert groups.keys() == {("a", "c"), ("b",), ("lm_head",)}
    assert groups["b",].format == "int-quantized"
    assert groups["a", "c"].weights.group_size == 32
    assert groups["b",].input_activations.symmetric is False


def test_modelopt_knows_fp8_by_channel_and_token() -> None:
    """The keys are those that TensorRT-LLM's load_modelopt_quant_config reads."""
    weights, tokens = CodeArguments(8, "float", "channel"), CodeArguments(8, "float", "token")
    known = LinearScheme("float-quantized", weights, replace(tokens, dynamic=True))
    static = replace(known, inputs=CodeArguments(8, "float", "tensor"))
    said = json.loads(config.of_modelopt({"a": known, "b": known}, ["lm_head"], cache=True) or b"")
    assert said["producer"]["name"] == "optkit" and said["producer"]["version"]
    assert said["quantization"] == {
        "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
    without = json.loads(config.of_modelopt({"a": known}, [], cache=False) or b"")
    assert without["quantization"]["kv_cache_quant_algo"] is None
    assert config.of_modelopt({"a": known, "b": static}, [], cache=False) is None
    assert config.of_modelopt({"a": static}, [], cache=True) is None
    assert config.of_modelopt({"a": known}, ["re:experts[.].*"], cache=False) is None


def with_cache(folder: Path, reach: str) -> Artifact:
    return tiny.artifact(folder, content={**tiny.files(), "kv_cache.json": reach.encode()})


def test_scales_of_a_cache_in_fp8(tmp_path: Path) -> None:
    reach = {"present.0.key": 8.96, "present.0.value": 448, "present.1.key": 0.0}
    modules = {0: "model.layers.0.self_attn", 1: "model.layers.1.self_attn"}
    scales = fp8_cache.cache_scales(with_cache(tmp_path, json.dumps(reach)), modules)
    assert {name: scale.tolist() for name, scale in scales.items()} == {
        "model.layers.0.self_attn.k_scale": [pytest.approx(0.02)],
        "model.layers.0.self_attn.v_scale": [1.0],
        "model.layers.1.self_attn.k_scale": [1.0],  # a cache that is always zero
    }
    assert all(scale.dtype == np.float32 for scale in scales.values())
    w8 = LinearScheme("int-quantized", CodeArguments(8, "int", "channel"), None)
    said = config.quantization({"a": w8}, [], cache=fp8_cache.SCHEME)
    cache = QuantizationConfig.model_validate(said).kv_cache_scheme
    assert cache is not None and cache.symmetric and not cache.dynamic
    assert (cache.num_bits, cache.type, cache.strategy) == (8, "float", "tensor")
    assert config.quantization({"a": w8}, [])["kv_cache_scheme"] is None


def test_without_the_reach_of_a_cache_there_are_no_scales(tmp_path: Path) -> None:
    assert fp8_cache.cache_scales(tiny.artifact(tmp_path), {}) == {}
    with pytest.raises(UsageError, match="no scale for the cache of layer 0"):
        fp8_cache.cache_scales(with_cache(tmp_path, '{"present.0.key": 1}'), {})


@pytest.mark.parametrize(
    "reach",
    ["", "[]", "{1}", '{"present.0.key": null}', '{"present.0.key": -1}', '{"logits": 1}',
     '{"present.0.key": NaN}', '{"present.0.key": "9"}'],
)  # fmt: skip
def test_a_damaged_reach_is_refused(reach: str, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="how far a cache reaches"):
        fp8_cache.cache_scales(with_cache(tmp_path, reach), {0: "a"})


def save(model: hf.PreTrainedModel, folder: Path) -> NetworkLayout:
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return network_layout(folder, None)


def test_the_layout_has_the_parameters_of_the_model(tmp_path: Path) -> None:
    for family in ("llama", "qwen2", "gemma3", "phi3"):
        model = families.network(family, None)
        layout = save(model, tmp_path / family)
        expected = {name: tuple(each.shape) for name, each in model.named_parameters()}
        vectors = {name: (size,) for name, size in {**layout.norms, **layout.biases}.items()}
        assert {**layout.linear, **layout.embedded, **vectors} == expected
        offset = 1.0 if family == "gemma3" else 0.0
        assert all(layout.offsets.get(name, 0.0) == offset for name in layout.norms)
        assert "model.rotary_emb" in layout.computed and layout.shared == ()
        assert layout.head == "lm_head"
        attentions = {at: f"model.layers.{at}.self_attn" for at in (0, 1)}
        assert layout.attentions == attentions


def test_the_layout_of_an_encoder_whose_last_layer_is_tied(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config_of_bert = hf.BertConfig(vocab_size=50, num_attention_heads=2, **sizes)
    layout = save(hf.BertForMaskedLM(config_of_bert), tmp_path)
    word, head = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder"
    assert {frozenset(group) for group in layout.shared} == {
        frozenset({word, f"{head}.weight"}),
        frozenset({"cls.predictions.bias", f"{head}.bias"}),
    }
    assert layout.tables() >= {"bert.embeddings.position_embeddings"}
    assert layout.norms["cls.predictions.transform.LayerNorm.bias"] == 32


def test_a_model_with_other_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a parameter of Conv1D") as refused:
        save(families.network("gpt2", None), tmp_path)
    assert "huggingface, oci and slim" in str(refused.value.hint)


LAYOUT = NetworkLayout(
    "Net", "net", linear={"head.weight": (3, 8)}, embedded={"embed.weight": (3, 8)},
    norms={"norm.weight": 8}, offsets={"norm.weight": 1.0}, biases={"head.bias": 3},
    shared=(("embed.weight", "head.weight"),), computed={},
)  # fmt: skip


def found(**numbers: np.ndarray | Codes) -> dict[str, Parameter]:
    names = {name.replace("_", "."): held for name, held in numbers.items()}
    return {name: Parameter(name, lambda held=held: held) for name, held in names.items()}  # type: ignore[misc]


def test_one_parameter_of_two_names_is_written_once_if_it_is_still_one() -> None:
    table = np.arange(24, dtype=np.float32).reshape(3, 8)
    norm = np.array([1.5] * 8, np.float32)
    kept = kept_parameters(
        LAYOUT, found(embed_weight=table, head_weight=table.copy(), norm_weight=norm)
    )
    assert kept.tied and kept.written.keys() == {"embed.weight", "norm.weight", "head.bias"}
    assert kept.written["norm.weight"].read().tolist() == [0.5] * 8
    assert kept.written["head.bias"].read().tolist() == [0.0] * 3
    other = kept_parameters(
        LAYOUT, found(embed_weight=table, head_weight=table + 1, norm_weight=norm)
    )
    assert other.tied is False and other.written["head.weight"].read()[0, 0] == 1


def test_a_bias_without_a_place_is_refused_with_the_way_to_build_without_it() -> None:
    with pytest.raises(UsageError, match="Net has no parameter for it") as refused:
        kept_parameters(LAYOUT, found(norm_bias=np.ones(8, np.float32)))
    assert "bias_correction: false" in str(refused.value.hint)


def test_an_artifact_that_is_no_hugging_face_model_is_refused(tmp_path: Path) -> None:
    made = tiny.artifact(tmp_path / "artifacts")
    with pytest.raises(UsageError, match=r"no config\.json"):
        formats.package(PackageSubject.of(made.path), "compressed-tensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()
