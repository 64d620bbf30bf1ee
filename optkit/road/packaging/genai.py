"""A decoder's artifact is also a folder that ONNX Runtime GenAI loads, because of its
genai_config.json.

    model = onnxruntime_genai.Model("artifacts/tiny-llama-cpu-int4")

The graph does not change: GenAI feeds the inputs that the file names. If the graph can write its
cache in place (`decoder.IN_PLACE`), `past_present_share_buffer` is true, and GenAI gives it one
buffer of full length; otherwise GenAI uses tensors that grow. "decoder" is GenAI's word for any
causal language model without special code. GenAI requires an end-of-sequence token, so a model
without one ends at the padding token. Verified with 0.18; the fields are those of GenAI's model
builder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from optkit.ground.artifact import MODEL
from optkit.ground.decoder import (
    CONFIG,
    GENERATION_CONFIG,
    IDS,
    LOGITS,
    MASK,
    PAST,
    POSITIONS,
    PRESENT,
    Decoder,
    SpecialTokens,
    read_json,
)

FILE = "genai_config.json"

_SEARCH = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
# GenAI's name → possible names in config.json
_SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
}


def files(
    decoder: Decoder | None, present: Mapping[str, Path | bytes], in_place: Collection[str] = ()
) -> dict[str, bytes]:
    """The file to add to those `present` in an artifact, by its name. `in_place`: the outputs that
    may be written into the buffer of the cache that they continue.

    None if the model is not a decoder of text with a mask, as GenAI needs it, if its cache has
    codes, which no released GenAI feeds (onnxruntime-genai #2187), if it has other states, or if
    its config.json is missing or names no context length, which GenAI needs. Raises InputRefused if
    one of the files is not a JSON object.
    """
    if decoder is None or decoder.crossed or not decoder.masked or CONFIG not in present:
        return {}
    if decoder.codes is not None or decoder.states:
        return {}
    config, generation = (_read(present, name) for name in (CONFIG, GENERATION_CONFIG))
    tokens = SpecialTokens.of(config, generation)
    if tokens.context is None:
        return {}
    shared = decoder.carried.keys() <= set(in_place)
    described = _config(decoder, tokens, tokens.context, config, generation, shared)
    return {FILE: f"{json.dumps(described, indent=2)}\n".encode()}


def _config(
    decoder: Decoder,
    tokens: SpecialTokens,
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
    """GenAI's names for the cache, and the pattern of ours: %d is the layer."""
    return {f"{which}_{part}_names": f"{prefix}.%d.{part}" for part in ("key", "value")}


def _read(present: Mapping[str, Path | bytes], name: str) -> dict[str, object]:
    found = present.get(name, b"{}")
    return read_json(found if isinstance(found, bytes) else found.read_bytes(), name)
