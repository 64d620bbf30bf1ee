"""A decoder's artifact is also a folder that ONNX Runtime GenAI loads, by its genai_config.json.

    model = onnxruntime_genai.Model("artifacts/tiny-llama-cpu-int4")

The graph is taken as it is: GenAI feeds whatever inputs the file names. Where the graph can write
its cache in place (`decoder.IN_PLACE`), `past_present_share_buffer` says so, and GenAI gives it one
buffer of full length; else tensors that grow. "decoder" is its word for any causal language model
that needs no code of its own. A model that names no end-of-sequence token ends at the padding token
there: GenAI knows no text without end. Verified with 0.18; the fields are those of its model
builder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from optkit.artifact import MODEL
from optkit.decoder import (
    CONFIG,
    GENERATION_CONFIG,
    IDS,
    LOGITS,
    MASK,
    PAST,
    POSITIONS,
    PRESENT,
    Decoder,
    Tokens,
    read_json,
)

FILE = "genai_config.json"

_SEARCH = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
# what GenAI calls it → what config.json may call it
_SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
}


def files(
    decoder: Decoder | None, present: Mapping[str, Path | bytes], in_place: Collection[str] = ()
) -> dict[str, bytes]:
    """The file that is to be added to those `present` in an artifact, by its name. `in_place`: the
    outputs that may be written into the buffer of the cache they continue.

    None for a model that is no decoder of text alone with a mask, as GenAI feeds it, or whose
    config.json is not there or names no length of context, which GenAI must know. Raises
    InputRefused where one of the files is no JSON object.
    """
    if decoder is None or decoder.crossed or not decoder.masked or CONFIG not in present:
        return {}
    config, generation = (_read(present, name) for name in (CONFIG, GENERATION_CONFIG))
    tokens = Tokens.of(config, generation)
    if tokens.context is None:
        return {}
    shared = decoder.carried.keys() <= set(in_place)
    described = _config(decoder, tokens, tokens.context, config, generation, shared)
    return {FILE: f"{json.dumps(described, indent=2)}\n".encode()}


def _config(
    decoder: Decoder,
    tokens: Tokens,
    context: int,
    config: Mapping[str, object],
    generation: Mapping[str, object],
    shared: bool,
) -> dict[str, object]:
    sizes = {
        name: next((config[word] for word in words if word in config), None)
        for name, words in _SIZES.items()
    }
    inputs = {name: name for name in (IDS, MASK, *([POSITIONS] if decoder.positions else []))}
    begin = {} if tokens.begin is None else {"bos_token_id": tokens.begin}
    search = {name: generation[name] for name in _SEARCH if generation.get(name) is not None}
    return {
        "model": {
            "type": "decoder",
            **begin,
            "eos_token_id": list(tokens.ends),
            "pad_token_id": tokens.pad,
            "context_length": context,
            "vocab_size": decoder.vocabulary,
            "decoder": {
                "filename": MODEL,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "head_size": decoder.head_size,
                **{name: value for name, value in sizes.items() if value is not None},
                "num_hidden_layers": decoder.layers,
                "num_key_value_heads": decoder.heads,
                "inputs": {**inputs, **_cache(PAST, "past")},
                "outputs": {LOGITS: LOGITS, **_cache(PRESENT, "present")},
            },
        },
        "search": {
            "do_sample": False,
            **search,
            "max_length": context,
            "past_present_share_buffer": shared,
        },
    }


def _cache(prefix: str, which: str) -> dict[str, str]:
    """GenAI's names for the cache, and how ours are written: %d is the layer."""
    return {f"{which}_{part}_names": f"{prefix}.%d.{part}" for part in ("key", "value")}


def _read(present: Mapping[str, Path | bytes], name: str) -> dict[str, object]:
    found = present.get(name, b"{}")
    return read_json(found if isinstance(found, bytes) else found.read_bytes(), name)
