"""Casts of what transformers' families export to: valid, agreeing, caches without casts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft import fusion
from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.precision_cast import magnitude
from optkit.craft.precision_cast.cast import HALVES, CastLog, to_half
from optkit.craft.precision_cast.kept_in_fp32 import dividends
from optkit.craft.precision_cast.simulation import simulate
from optkit.facts.tensors import Feed, narrowed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers", exc_type=ImportError)
torch = pytest.importorskip("torch")

TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 200,
        "intermediate_size": 128, "max_position_embeddings": 128}  # fmt: skip
VISION = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
          "intermediate_size": 128, "patch_size": 8}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
SIZES = {"batch": 2, "sequence": 7, "past": 4, "total": 11}
TOLERANCE = {"fp16": 2e-3, "bf16": 2e-2}  # rms of the error over rms of the output
# a cosine of random vectors is small beside its terms, and CLIP multiplies it by e^4.6
STEEP = {"clip": 10.0}

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", TEXT),
    "roberta": ("RobertaModel", "RobertaConfig", TEXT),
    "distilbert": ("DistilBertModel", "DistilBertConfig",
                   {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 200}),
    "deberta-v2": ("DebertaV2Model", "DebertaV2Config",
                   {**TEXT, "relative_attention": True, "position_buckets": 16,
                    "pos_att_type": ["p2c", "c2p"], "share_att_key": True}),
    "vit": ("ViTModel", "ViTConfig", VISION),
    # sdpa: torch 2.13 decomposes it to a view that its strides forbid
    "swin": ("SwinModel", "SwinConfig",
             {"image_size": 32, "patch_size": 4, "embed_dim": 24, "depths": [2, 2],
              "num_heads": [2, 4], "window_size": 4, "attn_implementation": "eager"}),
    "resnet": ("ResNetModel", "ResNetConfig",
               {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
                "layer_type": "basic"}),
    "convnext": ("ConvNextModel", "ConvNextConfig",
                 {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32}),
    "clip": ("CLIPModel", "CLIPConfig",
             {"text_config": {**TEXT, "projection_dim": 32, "eos_token_id": 2},
              "vision_config": {**VISION, "projection_dim": 32}, "projection_dim": 32}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 200, "n_positions": 128}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": None}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "pad_token_id": 0}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**GROUPED, "head_dim": 16}),
}  # fmt: skip
DECODERS = ("gpt2", "llama", "qwen2", "mistral", "phi3", "gemma")
SEEING = ("vit", "swin", "resnet", "convnext", "clip")
CACHES = [f"{i}.{what}" for i in range(2) for what in ("key", "value")]


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """Pairs of keys and values in and out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        return found.logits, [(one.keys, one.values) for one in found.past_key_values.layers]


def exported(family: str) -> ir.Model:
    """The family's fused graph; weights four times as spread as at initialization, so that
    attention chooses."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    kind, config, settings = CONFIGS[family]
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    names: dict[str, Any] = {}
    ids, mask = torch.randint(3, 199, (2, 5)), torch.ones(2, 9, dtype=torch.long)
    images = torch.randn(1 if family == "swin" else 2, 3, 32, 32)
    rows = {0: "batch", 1: "sequence"}
    shapes: Any
    if family in DECODERS:
        model = Decoder(model)
        heads = getattr(model.model.config, "num_key_value_heads", 4)
        past = [(torch.randn(2, heads, 4, 16), torch.randn(2, heads, 4, 16)) for _ in range(2)]
        args = (ids, mask, torch.arange(4, 9)[None].repeat(2, 1), past)
        cache = {0: "batch", 2: "past"}
        shapes = (rows, {0: "batch", 1: "total"}, rows, [(cache, cache)] * 2)
        names = {
            "input_names": ["input_ids", "attention_mask", "position_ids",
                            *(f"past_key_values.{cache}" for cache in CACHES)],
            "output_names": ["logits", *(f"present.{cache}" for cache in CACHES)],
        }  # fmt: skip
    else:
        if family in SEEING:
            kwargs["pixel_values"] = images
        if family not in SEEING or family == "clip":
            kwargs |= {"input_ids": ids, "attention_mask": mask[:, :5]}
        shapes = {n: rows if t.dim() == 2 else {0: "images"} for n, t in kwargs.items()}
        shapes = None if family == "swin" else shapes
    program = torch.onnx.export(
        model, args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, opset_version=21,
        verbose=False, **names,
    )  # fmt: skip
    found = graph.upgrade(ir.from_proto(program.model_proto))
    fusion.fuse(found)
    return found


def feeds(model: ir.Model) -> list[Feed]:
    """Padded on the right, as no row of attention may be empty there."""
    sizes = {**SIZES, "images": 2}
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feed = {}
        for name, kind, dims in map(astuple, graph.inputs(model)):
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
            if name == "attention_mask":
                feed[name] = np.ones(shape, np.int64)
                feed[name][0, -2:] = 0
            elif name == "position_ids":
                feed[name] = np.broadcast_to(np.arange(4, 4 + shape[1]), shape).astype(np.int64)
            elif kind == "int64":
                feed[name] = rng.integers(3, 199, shape)
            else:
                feed[name] = rng.standard_normal(shape).astype(kind)
        found.append(feed)
    return found


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest) -> tuple[str, ir.Model]:
    return request.param, exported(request.param)


def session(model: ir.Model, folder: Path) -> Any:
    path = folder / "model.onnx"
    graph.save(model, path)
    graph.check(path)
    return OnnxRuntime().session(path, SessionOptions(level="none"))


def measuring(given: list[Feed], folder: Path) -> Callable[[ir.Model], magnitude.Magnitudes]:
    def measure(model: ir.Model) -> magnitude.Magnitudes:
        measuring, outputs = magnitude.magnitude_graph(model, dividends(model))
        with session(measuring, folder) as running:
            return magnitude.measure(running, given, outputs, samples=6, what="samples")

    return measure


def cast(model: ir.Model, carrier: str, folder: Path) -> tuple[ir.Model, CastLog]:
    half = graph.upgrade(model.clone(), HALVES[carrier].opset)
    return half, to_half(half, carrier, measuring(feeds(model), folder))


@pytest.mark.parametrize("carrier", ["fp16", "bf16"])
def test_a_cast_family_agrees(family: tuple[str, ir.Model], carrier: str, tmp_path: Path) -> None:
    name, model = family
    half, log = cast(model, carrier, tmp_path)
    graph.save(half, tmp_path / "half.onnx")
    graph.check(tmp_path / "half.onnx")
    made = [n for n in half.graph if n.op_type == "Cast" and str(n.name).startswith("cast_")]
    assert not [n for n in made if n.inputs[0].producer() in made], "a Cast of a Cast"
    products = [n for n in half.graph if graph.constant_weight(n) is not None]
    assert {n.outputs[0].dtype for n in products} == {HALVES[carrier].dtype}
    types = {n: kind for n, kind, _ in map(astuple, (*graph.inputs(half), *graph.outputs(half)))}
    if name in DECODERS:
        assert len(log.caches) == 8
        kind = {"fp16": "float16", "bf16": "bfloat16"}[carrier]
        assert {types[cache] for cache in log.caches} == {kind}
        assert not {str(v.name) for n in made for v in (*n.inputs, *n.outputs)} & set(log.caches)
    if carrier == "bf16":
        simulate(half)
    with session(model, tmp_path) as reference:
        expected = [reference.run(feed) for feed in feeds(model)]
    with session(half, tmp_path) as running:
        found = [running.run(narrowed(feed, running.inputs)) for feed in feeds(model)]
    for output in expected[0]:
        a, b = (np.stack([run[output].astype(np.float64) for run in runs]) for runs in
                (expected, found))  # fmt: skip
        error = np.sqrt(np.mean((a - b) ** 2) / np.mean(a**2))
        assert error < TOLERANCE[carrier] * STEEP.get(name, 1.0), f"{output}: {error:.1e}"


def test_tensorrt_rtx_parses_a_cast_family(family: tuple[str, ir.Model], tmp_path: Path) -> None:
    trt = pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    name, model = family
    half, _ = cast(model, "fp16", tmp_path)
    path = tmp_path / "half.onnx"
    graph.save(half, path)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path)), [parser.get_error(i).desc() for i in
                                               range(parser.num_errors)]  # fmt: skip
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    halves = [tensor.name for tensor in inputs if tensor.dtype == trt.DataType.HALF]
    assert len(halves) == (4 if name in DECODERS else 0)
