"""Three transformers of Hugging Face as torch exports them, with random weights, and their inputs.

BERT, ViT: 4 layers of 384; Llama: 4 layers of 512, 8 heads on 4 of keys and values. Opset 18, named
axes. The cache of the decoder goes in and out as pairs: one graph serves prompts and continuations.
Llama comes twice: its mask has an axis of its own, which is all that torch can say, or one that is
declared to be as long as the cache and the new tokens together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTModel,
)

from optkit import graph
from optkit.sources import axes
from optkit.tensors import InputSpec

Feed = dict[str, np.ndarray]
OPSET, LAYERS, VOCABULARY, GROUPS, SIZE = 18, 4, 4000, 4, 64
ALL = "past_sequence + sequence"


@dataclass(frozen=True)
class Workload:
    """What is timed, on one feed."""

    name: str
    feed: Feed


@dataclass(frozen=True)
class Network:
    """`shapes`: feeds on which the forms are compared. `write` exports to a path."""

    name: str
    write: Callable[[Path], None]
    shapes: tuple[Feed, ...]
    workloads: tuple[Workload, ...]


class Encoder(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.model(*inputs)
        return made.last_hidden_state, made.pooler_output


class Decoder(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        cache = DynamicCache()
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
        )
        return made.logits, [(each.keys, each.values) for each in made.past_key_values.layers]


def networks() -> tuple[Network, ...]:
    return (
        Network(
            "bert",
            _write_bert,
            (_tokens(2, 9, 4), _tokens(1, 16), _tokens(3, 1)),
            (Workload("batch 1, 128 tokens", _tokens(1, 128)),),
        ),
        Network("vit", _write_vit, (_image(1), _image(3)), (Workload("batch 1", _image(1)),)),
        Network(
            "llama",
            _write_llama,
            (
                _continued(2, 3, 5, 2), _continued(1, 1, 9), _continued(3, 7, 0, 4),
                _continued(1, 1, 0), _continued(3, 1, 9, 4),
            ),
            _DECODING,
        ),
        Network(
            "llama, declared",
            _write_declared,
            # the kernel takes one sample of several tokens behind a cache, and leaves padding open
            (
                _continued(1, 3, 5), _continued(1, 1, 9), _continued(3, 7, 0),
                _continued(1, 1, 0), _continued(3, 1, 9),
            ),
            _DECODING,
        ),
    )  # fmt: skip


def _tokens(batch: int, length: int, padding: int = 0) -> Feed:
    mask = np.ones((batch, length), np.int64)
    mask[1:2, length - padding :] = 0
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _image(batch: int) -> Feed:
    pixels = np.random.default_rng(0).standard_normal((batch, 3, 224, 224))
    return {"pixel_values": pixels.astype(np.float32)}


def _continued(batch: int, new: int, past: int, padding: int = 0) -> Feed:
    """`new` tokens behind a cache of `past`; the second sample is padded on the left."""
    rng = np.random.default_rng(0)
    mask = np.ones((batch, past + new), np.int64)
    mask[1:2, :padding] = 0
    positions = np.maximum(mask.cumsum(1) - 1, 0)[:, past:]
    ids = rng.integers(0, VOCABULARY, (batch, new))
    feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    for name in _cache_names("past"):
        feed[name] = rng.standard_normal((batch, GROUPS, past, SIZE)).astype(np.float32)
    return feed


def _cache_names(which: str) -> list[str]:
    return [f"{which}.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


_DECODING = (
    Workload("prefill, 128 tokens", _continued(1, 128, 0)),
    Workload("decode behind 512", _continued(1, 1, 512)),
)


def _write_bert(path: Path) -> None:
    config = BertConfig(
        hidden_size=384, num_hidden_layers=LAYERS, num_attention_heads=12, intermediate_size=1536,
        vocab_size=VOCABULARY,
    )  # fmt: skip
    axes = {0: "batch", 1: "sequence"}
    feed = _tokens(2, 16, 6)
    sample = tuple(map(torch.from_numpy, feed.values()))
    _export(Encoder(BertModel(config)), sample, path, [*feed], _ENCODED, ((axes, axes, axes),))


def _write_vit(path: Path) -> None:
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=LAYERS, num_attention_heads=6, intermediate_size=1536
    )
    sample = (torch.from_numpy(_image(2)["pixel_values"]),)
    axes = (({0: "batch"},),)
    _export(Encoder(ViTModel(config)), sample, path, ["pixel_values"], _ENCODED, axes)


def _write_llama(path: Path) -> None:
    config = LlamaConfig(
        hidden_size=512, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=GROUPS, intermediate_size=1408, vocab_size=VOCABULARY,
    )  # fmt: skip
    feed = _continued(2, 3, 5, 2)
    tokens, past = list(feed.values())[:3], list(feed.values())[3:]
    pairs = [(past[at], past[at + 1]) for at in range(0, len(past), 2)]
    sample = (
        *map(torch.from_numpy, tokens),
        [(torch.from_numpy(key), torch.from_numpy(value)) for key, value in pairs],
    )
    row, cache = {0: "batch", 1: "sequence"}, {0: "batch", 2: "past_sequence"}
    axes = (row, {0: "batch", 1: "total_sequence"}, row, [(cache, cache)] * LAYERS)
    outputs = ["logits", *_cache_names("present")]
    _export(Decoder(LlamaForCausalLM(config)), sample, path, [*feed], outputs, axes)


def _write_declared(path: Path) -> None:
    _write_llama(path)
    model = graph.load(path)
    named = list(graph.inputs(model))
    mask = next(info for info in named if info.name == "attention_mask")
    named[named.index(mask)] = replace(mask, shape=(mask.shape[0], ALL))
    axes.declare(model, [InputSpec(info) for info in named])
    graph.save(model, path)


_ENCODED = ["last_hidden_state", "pooler_output"]


def _export(
    module: torch.nn.Module,
    sample: tuple[Any, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    axes: tuple[Any, ...],
) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), sample, str(path), dynamo=True, opset_version=OPSET, verbose=False,
            external_data=False, input_names=inputs, output_names=outputs, dynamic_shapes=axes,
        )  # fmt: skip
