"""A batch of samples of unequal lengths gives what transformers computes for each sample alone,
without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from optkit.facts.tensors import Feed
from optkit.ground.decoder import Decoder
from tests.matrix.families import FAMILIES
from tests.matrix.families.sizes import TOKENS, VOCAB
from tests.matrix.row import Row, apart, session

LENGTHS = (5, 9, 7)
SAMPLES, FRAMES = (4000, 2500, 3200), (96, 40, 72)
"""Of sound, in place of tokens. The frames are whole strides, since a stride that is half padding
is a frame of its own."""
TARGETS = 6
"""Tokens that the decoder of an encoder-decoder reads."""


def padded_batch(row: Row) -> str | None:
    """The largest difference at the real tokens. None without a mask, or if it means nothing."""
    masks = {"attention_mask", "encoder_attention_mask"}
    masked = any(spec.info.name in masks for spec in row.exported.specs)
    if not masked or FAMILIES[row.family].reads_padding:
        return None
    if row.part is not None:
        return f"{_part(row):.0e}"
    return f"{(_decoder(row) if row.generates else _encoder(row)):.0e}"


def _encoder(row: Row) -> float:
    names = {spec.info.name: spec.info for spec in row.exported.specs}
    numbers, model = np.random.default_rng(0), row.transformers_model()
    alone = []
    for tokens, samples, frames in zip(LENGTHS, SAMPLES, FRAMES, strict=True):
        feed: Feed = {}
        for name, info in names.items():
            if name == "input_values":
                feed[name] = numbers.standard_normal((1, samples)).astype(np.float32)
            elif name == "input_features":
                shape = (1, frames, int(info.shape[2]))
                feed[name] = numbers.standard_normal(shape, np.float32)
            elif name == "pixel_values":
                feed[name] = numbers.standard_normal((1, *map(int, info.shape[1:])), np.float32)
            else:
                lengths = {"samples": samples, "frames": frames}
                length = lengths.get(str(info.shape[1]), tokens)
                feed[name] = _taken(numbers, name, length)
        alone.append(feed)
    pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
    left = FAMILIES[row.family].pads_left
    batch = {
        name: stacked([feed[name] for feed in alone], pad if name == "input_ids" else 0, left=left)
        for name in names
    }
    with session(row.exported.path) as graph:
        found = graph.run(batch)
    return worst(found, [_computed(model, feed, found) for feed in alone])


def _decoder(row: Row) -> float:
    numbers, model = np.random.default_rng(0), row.transformers_model()
    prompts = [integers(numbers, length) for length in LENGTHS]
    masks = [np.ones_like(prompt) for prompt in prompts]
    mask = stacked(masks, 0, left=True)
    feed: Feed = {"input_ids": stacked(prompts, 0, left=True), "attention_mask": mask,
                  "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0)}  # fmt: skip
    with session(row.exported.path) as graph:
        decoder = Decoder.of(graph.inputs, graph.outputs)
        assert decoder is not None
        feed |= decoder.empty(len(prompts))
        logits = graph.run({info.name: feed[info.name] for info in graph.inputs})["logits"]
    alone = [_computed(model, {"input_ids": p, "attention_mask": m}, ("logits",))
             for p, m in zip(prompts, masks, strict=True)]  # fmt: skip
    return worst({"logits": logits[:, ::-1]}, [{"logits": a["logits"][::-1]} for a in alone])


def _part(row: Row) -> float:
    """Keys and values of the encoder, or the logits of the decoder, which gets noise in place of
    the padded keys and values."""
    numbers, model = np.random.default_rng(0), row.transformers_model()
    sources = [integers(numbers, length) for length in LENGTHS]
    masks = [np.ones_like(source) for source in sources]
    targets = [integers(numbers, TARGETS) for _ in sources]
    alone, crossed = [], []
    for source, mask, target in zip(sources, masks, targets, strict=True):
        given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        with torch.no_grad():
            returned = model(**tensors, use_cache=True)
        alone.append({"logits": returned.logits[0].numpy()})
        layers = returned.past_key_values.cross_attention_cache.layers
        crossed.append({f"{index}.encoder.{what}": getattr(layer, f"{what}s")[0].numpy()
                        for index, layer in enumerate(layers)
                        for what in ("key", "value")})  # fmt: skip
    feed: Feed
    if row.part == "encoder":
        feed = {"input_ids": stacked(sources, 0), "attention_mask": stacked(masks, 0)}
        wanted = [{f"present.{k}": v for k, v in each.items()} for each in crossed]
    else:
        feed = {"input_ids": np.concatenate(targets),
                "encoder_attention_mask": stacked(masks, 0)}  # fmt: skip
        wanted = alone
        for spec in row.exported.specs:
            info = spec.info
            if ".decoder." in info.name:
                feed[info.name] = np.zeros((len(targets), info.shape[1], 0, info.shape[3]),
                                           np.float32)  # fmt: skip
            elif ".encoder." in info.name:
                arrays = [one[info.name.removeprefix("past_key_values.")] for one in crossed]
                shape = (len(arrays), info.shape[1], max(LENGTHS), info.shape[3])
                feed[info.name] = numbers.standard_normal(shape).astype(np.float32)
                for place, array in zip(feed[info.name], arrays, strict=True):
                    place[:, : array.shape[1]] = array
    with session(row.exported.path) as graph:
        found = graph.run(feed)
    return worst({name: found[name] for name in wanted[0]}, wanted)


def integers(numbers: np.random.Generator, length: int) -> np.ndarray:
    """Tokens [1, length] behind the special ones, and the end token."""
    tokens = numbers.integers(3, VOCAB, (1, length))
    tokens[:, -1] = TOKENS["eos_token_id"]
    return tokens


def _taken(numbers: np.random.Generator, name: str, length: int) -> np.ndarray:
    if name == "attention_mask":
        return np.ones((1, length), np.int64)
    if name == "token_type_ids":
        return numbers.integers(0, 2, (1, length))
    return integers(numbers, length)


def stacked(arrays: Sequence[np.ndarray], fill: int, *, left: bool = False) -> np.ndarray:
    """[batch, …] of [1, …], padded on axis 1 to the longest."""
    longest = max(array.shape[1] for array in arrays)
    padded = []
    for array in arrays:
        missing = longest - array.shape[1]
        widths = [(0, 0), (missing, 0) if left else (0, missing)] + [(0, 0)] * (array.ndim - 2)
        padded.append(np.pad(array, widths, constant_values=fill))
    return np.concatenate(padded)


def _computed(model: Any, feed: Feed, names: Any) -> Feed:
    """The outputs of transformers for one sample, without the batch axis."""
    with torch.no_grad():
        returned = model(**{name: torch.from_numpy(array) for name, array in feed.items()})
    return {name: returned[name][0].numpy() for name in names}


def worst(found: Feed, alone: Sequence[Feed]) -> float:
    """The largest difference of the real part of each sample. Raises Missed."""
    worst = 0.0
    for index, wanted in enumerate(alone):
        real = {name: found[name][index][tuple(map(slice, array.shape))]
                for name, array in wanted.items()}  # fmt: skip
        worst = max(worst, apart(wanted, real, {"sample": index}))
    return worst
