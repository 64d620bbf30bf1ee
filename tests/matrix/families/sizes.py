"""The sizes of the tiny models, and what a row of the matrix is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 97
EDGE = 32
"""Height and width of images, in pixels."""

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4}  # fmt: skip
TOKENS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL = {**SMALL, **TOKENS, "num_key_value_heads": 2, "max_position_embeddings": 64}
MASKED = {"vocab_size": VOCAB, "max_position_embeddings": 64, **SMALL}
IMAGES = {"image_size": EDGE, "patch_size": 8}
CLIP_VISION = {**IMAGES, **SMALL}
SIZED = {"size": {"height": EDGE, "width": EDGE}}
"""Of an image processor."""

Made = Callable[[], Any]


@dataclass(frozen=True)
class Family:
    """`made`: the model with random weights of torch. `paired`: encoder and decoder are two graphs.
    `processor`: preprocessor_config.json, for a model whose config.json lacks the size of its
    input. `reads_padding`: the model has no use for a padded batch (SigLIP pools the last place and
    is trained on texts of full length). `pads_left`: as its tokenizer does, so that the last place
    is a token (XLNet classifies by it)."""

    title: str
    made: Made
    paired: bool = False
    reads_padding: bool = False
    pads_left: bool = False
    processor: Mapping[str, Any] = field(default_factory=dict)
