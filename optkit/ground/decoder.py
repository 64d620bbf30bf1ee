"""A decoder with a key-value cache: how its graph is called, and what its Hugging Face files say.

    input_ids                      int64 [batch, sequence]
    attention_mask                 int64 [batch, past_sequence + sequence], 1 for a token;
                                   [batch, sequence] if the past is states alone
    position_ids                   int64 [batch, sequence], where the model takes them
    past_key_values.{i}.key|value  [batch, heads, past_sequence, head size]
                                   float32; as codes int8, or uint8 with half the head size
    past_conv.{i}                  [batch, channels, kernel], of a convolution over tokens
    past_recurrent.{i}             [batch, …], of a linear recurrence
    → logits                       [batch, sequence, vocabulary]
    → present.{i}.key|value        [batch, heads, past_sequence + sequence, head size]
    → present_conv.{i}, present_recurrent.{i}   of the same shape as before

One graph for prompts and continuations; the cache of the first run is empty, and states of fixed
shape are zero. The names are those of Hugging Face's exporters, of ONNX Runtime GenAI and, of
states, those of transformers.js. The decoder of an encoder-decoder calls its
own cache past_key_values.{i}.decoder.key|value, and also takes what its encoder made:

    encoder_attention_mask                 int64 [batch, encoder_sequence], of text
    past_key_values.{i}.encoder.key|value  [batch, heads, encoder_sequence, head size]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Literal, Self

import numpy as np

from optkit.facts.errors import InputRefused, ToolchainMissing, UsageError
from optkit.facts.tensors import Feed, TensorInfo

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
PAST, PRESENT = "past_key_values", "present"
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"

KV_CACHE = "kv_cache.json"
"""File of an artifact: output with a cache → the largest magnitude in it for the calibration
samples, for servers that keep the cache in FP8."""

CACHE_AXIS = 2
"""The axis of a cache that has one row per token."""

IN_PLACE = "optkit.in_place"
"""Metadata of a graph: a JSON list of the longer caches among its outputs that may be written into
the buffer which the shorter one is read from. Its length is then that of the buffer."""

WINDOW = "optkit.window"
"""Metadata of a graph, if no attention with a cache in place sees more than this number of keys: a
row of the cache that is further from the next token than that is never read again."""

_PAST = re.compile(rf"{PAST}\.\d+(?:\.decoder)?\.(?:key|value)")
_STATE = re.compile(r"past_(?:conv|recurrent)\.\d+(?:\.\d+)?")
_CROSSED = re.compile(rf"{PAST}\.\d+\.encoder\.(?:key|value)|encoder_attention_mask")
_CODES: dict[str, Literal["int8", "int4"]] = {"int8": "int8", "uint8": "int4"}  # by dtype
_CODES_SINCE = (1, 28)
_GLOBAL_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}  # defaults of their configurations
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class Decoder:
    """A decoder. `cache`: the inputs with its keys and values, layer by layer, key before value.
    `crossed`: the inputs with the keys and values of an encoder, which are the same for every
    token. `states`: the inputs with states whose shape does not depend on the number of tokens."""

    cache: tuple[TensorInfo, ...]
    vocabulary: int
    positions: bool
    masked: bool = True
    crossed: tuple[TensorInfo, ...] = ()
    states: tuple[TensorInfo, ...] = ()

    @classmethod
    def of(cls, inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo]) -> Self | None:
        """The decoder with these inputs and outputs; None if they are those of another kind of
        model."""
        taken, given = {info.name: info for info in inputs}, {info.name: info for info in outputs}
        cache, crossed, states = (
            tuple(info for name, info in taken.items() if kind.fullmatch(name))
            for kind in (_PAST, _CROSSED, _STATE)
        )
        rest = taken.keys() - {info.name for info in (*cache, *crossed, *states)}
        logits = given.get(LOGITS)
        if not (cache or states) or logits is None or not {IDS} <= rest <= {IDS, MASK, POSITIONS}:
            return None
        vocabulary = logits.shape[-1]
        if not isinstance(vocabulary, int) or not all(map(_has_fixed_heads, cache)):
            return None
        decoder = cls(cache, vocabulary, POSITIONS in rest, MASK in rest, crossed, states)
        return decoder if decoder.carried.keys() <= given.keys() else None

    @property
    def carried(self) -> dict[str, str]:
        """The output with the longer cache or the next state → the input that gets it in the next
        run."""
        return {continued(info.name): info.name for info in (*self.cache, *self.states)}

    def empty(self, rows: int) -> Feed:
        """The cache before the first run, [rows, heads, 0, head size], and states of zeros."""
        return {
            info.name: np.zeros(
                (rows, *(size if isinstance(size, int) else 0 for size in info.shape[1:])),
                info.dtype,
            )
            for info in (*self.cache, *self.states)
        }

    @property
    def layers(self) -> int:
        return len(self.cache) // 2

    @property
    def heads(self) -> int:
        """The number of heads of keys and values."""
        return int(self.cache[0].shape[1])

    @property
    def head_size(self) -> int:
        return int(self.cache[0].shape[3]) * (2 if self.codes == "int4" else 1)

    @property
    def token_bytes(self) -> int:
        """What one token of one text adds to the cache."""
        rows = ((info, int(info.shape[1]) * int(info.shape[3])) for info in self.cache)
        return sum(numbers * np.dtype(info.dtype).itemsize for info, numbers in rows)

    @property
    def codes(self) -> Literal["int8", "int4"] | None:
        """The format of a cache of codes; None: it has floats."""
        return _CODES.get(self.cache[0].dtype) if self.cache else None


def is_state(name: str) -> bool:
    """Whether an input is a state of fixed shape, which is zero before the first token."""
    return _STATE.fullmatch(name) is not None


def continued(name: str) -> str:
    """The output that an input with a cache or a state gets in the next run."""
    return re.sub(rf"^({PAST}|past)", PRESENT, name)


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens by id, and the number of positions of the model (None: its files name no
    limit)."""

    begin: int | None
    ends: tuple[int, ...]
    pad: int
    context: int | None

    @classmethod
    def of(cls, config: Mapping[str, object], generation: Mapping[str, object]) -> Self:
        """From config.json and generation_config.json; if they differ, the second decides."""
        text = config.get("text_config")  # the files of a model that also takes images or sound
        inner = text if isinstance(text, dict) else {}
        said = {**inner, **_present(config), **_present(generation)}
        end, pad, begin = (said.get(f"{name}_token_id") for name in ("eos", "pad", "bos"))
        ends = tuple(end) if isinstance(end, list) else (end,) if isinstance(end, int) else ()
        limits = (limit for name in _CONTEXT if isinstance(limit := said.get(name), int))
        pad = pad if isinstance(pad, int) and pad >= 0 else next(iter(ends), 0)
        return cls(begin if isinstance(begin, int) else None, ends, pad, next(limits, None))


@dataclass(frozen=True)
class Windows:
    """Sliding windows: `layers` layers read at most `window` tokens, the others all."""

    window: int
    layers: int

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Self | None:
        """From config.json; None if it names no layer with a window. Older files have no
        `layer_types`: all layers have the window, or those from `max_window_layers` on (Qwen2), or
        all but each n-th (Gemma, Cohere)."""
        text = config.get("text_config")
        said = text if isinstance(text, dict) else config
        window, count = said.get("sliding_window"), said.get("num_hidden_layers")
        if not isinstance(window, int) or not isinstance(count, int) or window < 1:
            return None
        kinds, first = said.get("layer_types"), said.get("max_window_layers")
        every = said.get("sliding_window_pattern", _GLOBAL_EVERY.get(str(said.get("model_type"))))
        if isinstance(kinds, list):
            layers = kinds.count("sliding_attention")
        elif said.get("use_sliding_window") is False:
            layers = 0
        elif isinstance(every, int) and every > 0:
            layers = count - count // every
        else:
            layers = count - min(first, count) if isinstance(first, int) else count
        return cls(window, layers) if layers else None


def require_codes(version: str, where: str) -> None:
    """Raises ToolchainMissing if this version of ONNX Runtime does not compute attention on codes,
    or, as 1.27, computes it wrongly for several samples."""
    if tuple(map(int, version.split(".")[:2])) < _CODES_SINCE:
        since = ".".join(map(str, _CODES_SINCE))
        raise ToolchainMissing(
            f"a key-value cache of codes needs onnxruntime {since} or newer, not {version}",
            where=where,
            hint=f"pip install 'onnxruntime>={since}'",
        )


def read_json(content: bytes, where: str) -> dict[str, object]:
    """One of the two files. Raises InputRefused unless it holds one JSON object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputRefused("not JSON", where=where) from error
    if not isinstance(found, dict):
        raise InputRefused("not a JSON object", where=where)
    return found


def _has_fixed_heads(cache: TensorInfo) -> bool:
    """Whether it is [batch, heads, length, head size] with numbers for heads and head size."""
    sizes = (*cache.shape[1:2], *cache.shape[3:])
    return len(sizes) == 2 and all(isinstance(size, int) for size in sizes)


def _present(said: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class DecoderSizes:
    """A decoder by its sizes, without a model; None: estimated from the others.

    parameters: all of them. layers: num_hidden_layers of config.json. kv_heads:
    num_key_value_heads. heads: num_attention_heads. hidden: hidden_size. ffn: intermediate_size.
    vocabulary: vocab_size. tied: the embedding is the vocabulary projection too
    (tie_word_embeddings).

    Raises UsageError for a size below 1, or that is no finite number.
    """

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    heads: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    tied: bool = False

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            number = isinstance(size, int | float) and 1 <= size < inf
            if name != "tied" and size is not None and not number:
                raise UsageError(f"{name} must be at least 1", where="decoder")
