"""Greedy text of the graph with its cache is that of transformers' `generate`, for each prompt
alone and for all of them in one padded batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from optkit.facts.tensors import Feed
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Session
from optkit.satellites.generation.decoding import Choose, Ending, decode
from optkit.satellites.generation.sampling import greedy
from optkit.satellites.generation.starting import DecoderStart
from tests.matrix import padding
from tests.matrix.families.sizes import VOCAB
from tests.matrix.row import Missed, Row, session

NEW = 12


def greedy_text(row: Row) -> str | None:
    """Prompts × tokens that are equal. None if the family does not generate, or for its encoder."""
    if not row.generates:
        return None
    model = row.transformers_model()
    model.generation_config.eos_token_id = None  # all texts have the same length
    if row.part is None:
        prompts = [padding.integers(np.random.default_rng(1), length) for length in (3, 7, 5)]
        given = [{"input_ids": p, "attention_mask": np.ones_like(p)} for p in prompts]
        wanted = [_transformers(model, feed, feed["input_ids"].shape[1]) for feed in given]
        with session(row.exported.path) as graph:
            read = [prompt[0].tolist() for prompt in prompts]
            check_equal(_decoded(graph, read, greedy), wanted, "together")
            check_equal([_decoded(graph, [one], greedy)[0] for one in read], wanted, "alone")
    else:
        wanted = _encoded(row, model)
    return f"{len(wanted)} × {NEW} tokens"


def _encoded(row: Row, model: Any) -> list[list[int]]:
    """The tokens of an encoder-decoder."""
    files = [json.loads((row.folder / name).read_bytes())
             for name in ("config.json", "generation_config.json")]  # fmt: skip
    start = DecoderStart.of(*files, str(row.folder))
    feeds = _sources(row.part_beside("encoder"))
    skipped = 0 if model.config.model_type == "whisper" else 1  # it leaves the start out
    wanted = [_transformers(model, feed, skipped) for feed in feeds]
    encoder = row.part_beside("encoder").exported.path
    with session(encoder) as first, session(row.exported.path) as second:
        batches = [feeds] + [[feed] for feed in feeds]
        found = []
        for batch in batches:
            given = {name: padding.stacked([feed[name] for feed in batch], 0)
                     for name in batch[0]}  # fmt: skip
            states = first.run(given)
            crossed = {name.replace("present", "past_key_values"): array
                       for name, array in states.items()}  # fmt: skip
            if "attention_mask" in given:
                crossed["encoder_attention_mask"] = given["attention_mask"]
            read = [[token for token in start.read if token is not None]] * len(batch)
            found.append(_decoded(second, read, start.choosing(greedy), crossed))
    check_equal(found[0], wanted, "together")
    check_equal([one for (one,) in found[1:]], wanted, "alone")
    return wanted


def _sources(encoder: Row) -> list[Feed]:
    """The inputs of three samples."""
    numbers = np.random.default_rng(1)
    (first, *masks) = [spec.info for spec in encoder.exported.specs]
    if not masks:
        shape = (1, *(padding.SAMPLES[0] if isinstance(size, str) else size
                      for size in first.shape[1:]))  # fmt: skip
        return [{first.name: numbers.standard_normal(shape).astype(np.float32)} for _ in range(3)]
    prompts = [padding.integers(numbers, length) for length in (3, 7, 5)]
    return [{"input_ids": p, "attention_mask": np.ones_like(p)} for p in prompts]


def _transformers(model: Any, feed: Feed, read: int) -> list[int]:
    """The new tokens, after the first `read` ones."""
    with torch.no_grad():
        (whole,) = model.generate(
            **{name: torch.from_numpy(array) for name, array in feed.items()},
            max_new_tokens=NEW, do_sample=False, num_beams=1, pad_token_id=0,
        )  # fmt: skip
    tokens: list[int] = whole[read:].tolist()
    return tokens


def _decoded(
    graph: Session, prompts: Sequence[Sequence[int]], choose: Choose, crossed: Feed | None = None
) -> list[list[int]]:
    decoder = Decoder.of(graph.inputs, graph.outputs)
    assert decoder is not None
    ending = Ending(frozenset(), NEW, 0)
    return decode(graph, decoder, prompts, ending, choose, lambda row, token: None, crossed).tokens


def check_equal(found: list[list[int]], wanted: list[list[int]], how: str) -> None:
    assert all(len(tokens) == NEW and max(tokens) < VOCAB for tokens in wanted)
    for index, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if a != b:
            raise Missed(f"text {index} is {b} and not {a} ({how})")
