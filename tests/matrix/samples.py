"""Calibration samples for every family: random, of the shapes that its inputs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optkit.facts.tensors import Feed, InputSpec, TensorInfo
from optkit.ground.data.synthetic import random_feed

SIZES = {"batch": 8, "sequence": 16, "past_sequence": 8, "encoder_sequence": 12, "samples": 4000,
         "frames": 100}  # fmt: skip
# behind the special tokens; a mask without a token in it would say nothing
RANGES = {"input_ids": (3, 96), "encoder_attention_mask": (1, 1)}


def samples(inputs: Mapping[str, TensorInfo]) -> Iterator[Feed]:
    specs = [InputSpec(info, RANGES.get(name)) for name, info in inputs.items()]
    for seed in range(8):
        yield random_feed(specs, SIZES, seed)
