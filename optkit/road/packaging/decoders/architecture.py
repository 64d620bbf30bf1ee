"""What config.json says about a decoder, and which families other programs can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optkit.craft.sources.hugging_face.expert_files import Mixtures
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import CONFIG, Decoder

EMBEDDING, HEAD, NORM = "model.embed_tokens", "lm_head", "model.norm"
_ROTARY = "rotary_emb"
_TOLERANCE = 1e-3  # of frequencies: those of a graph may have been in half precision

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Family:
    """A model_type of config.json.

    network        its class in transformers
    normalized     whether queries and keys are normalized in each head
    """

    network: str
    normalized: bool = False


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("LlamaForCausalLM"),
        "mistral": Family("MistralForCausalLM"),
        "qwen2": Family("Qwen2ForCausalLM"),
        "qwen3": Family("Qwen3ForCausalLM", normalized=True),
    }
)


OTHER_FORMATS = "choose another format: huggingface, oci and slim hold this model too"


class RotaryParameters(BaseModel):
    """Rotary embeddings: `rope_parameters`, or `rope_scaling` before transformers 5."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: Annotated[str, Field(alias="rope_type")] = "default"
    theta: Annotated[Positive | None, Field(alias="rope_theta")] = None
    part: Annotated[float, Field(alias="partial_rotary_factor")] = 1.0
    factor: Positive = 1.0
    low: Annotated[Positive, Field(alias="low_freq_factor")] = 1.0
    high: Annotated[Positive, Field(alias="high_freq_factor")] = 4.0
    original: Annotated[Count, Field(alias="original_max_position_embeddings")] = 8192


class _Config(BaseModel):
    """The fields of config.json that describe the network."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    architectures: tuple[str, ...]
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    vocab_size: Count
    rms_norm_eps: Positive
    max_position_embeddings: Count
    hidden_act: Literal["silu"]
    rope_theta: Positive | None = None
    rope_scaling: RotaryParameters | None = None
    rope_parameters: RotaryParameters | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = True
    layer_types: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Architecture:
    """A decoder of one of the `FAMILIES`.

    context  positions
    window   positions that a layer with a sliding window sees; None: no layer has one
    """

    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    epsilon: float
    context: int
    window: int | None
    theta: float
    rotation: RotaryParameters

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """The decoder of an artifact.

        Raises UsageError (no decoder with a cache, another family, or a variant of one that is not
        supported), InputRefused (config.json).
        """
        where, manifest = str(artifact.path), artifact.manifest
        decoder = Decoder.of(manifest.inputs, manifest.outputs)
        if decoder is None or decoder.crossed or CONFIG not in manifest.files:
            raise _unsupported("it is no decoder of a Hugging Face model", where)
        content = (artifact.path / CONFIG).read_bytes()
        kind = _kind_of(content, where)
        config = _validated(content, where)
        if config.architectures != (FAMILIES[kind].network,):
            named = ", ".join(config.architectures)
            raise _unsupported(f"{CONFIG} names the class {named}", where)
        rotation = _rotation_of(config, where)
        slides = config.use_sliding_window and (
            config.layer_types is None or "sliding_attention" in config.layer_types
        )
        return cls(
            kind=kind,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads or config.num_attention_heads,
            head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            epsilon=config.rms_norm_eps,
            context=config.max_position_embeddings,
            window=config.sliding_window if slides else None,
            theta=rotation.theta or config.rope_theta or 10000.0,
            rotation=rotation,
        )

    @property
    def mixtures(self) -> Mixtures:
        """The families have no experts."""
        return Mixtures()

    @property
    def family(self) -> Family:
        return FAMILIES[self.kind]

    @property
    def positions(self) -> int:
        """The context, or the window: other programs attend to the whole context."""
        return min(self.context, self.window or self.context)

    def frequencies(self) -> np.ndarray:
        """The plain rotary frequencies, before `rotation`: float64 [head_size / 2]."""
        exponents = np.arange(0, self.head_size, 2) / self.head_size
        frequencies: np.ndarray = self.theta**-exponents
        return frequencies

    def divisors(self) -> np.ndarray:
        """By what `rotation` divides the frequencies: float64 [head_size / 2].

        llama3 is Llama 3.1's scaling (transformers, `_compute_llama3_parameters`): long waves are
        divided by the factor, short ones stay, between them it changes linearly.
        """
        rotation, frequencies = self.rotation, self.frequencies()
        if rotation.kind == "default":
            return np.ones_like(frequencies)
        if rotation.kind == "linear":
            return np.full_like(frequencies, rotation.factor)
        turns = rotation.original * frequencies / (2 * np.pi)  # within the original context
        smooth = np.clip((turns - rotation.low) / (rotation.high - rotation.low), 0, 1)
        divisors: np.ndarray = 1 / ((1 - smooth) / rotation.factor + smooth)
        return divisors

    def computes(self, module: str, numbers: np.ndarray) -> bool:
        """Whether `numbers` are the rotary frequencies, which every network computes itself. Raises
        UsageError if they are other ones than those that config.json describes."""
        expected = self.frequencies() / self.divisors()
        if not module.endswith(_ROTARY) or numbers.shape != expected.shape:
            return False
        if not np.allclose(numbers, expected, rtol=_TOLERANCE, atol=0):
            raise UsageError(
                "its rotary frequencies are not those that config.json describes",
                where=f"module {module!r}",
            )
        return True

    def tables(self) -> tuple[str, ...]:
        """The module that is an embedding."""
        return (EMBEDDING,)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name of each matrix → [N, K]."""
        hidden, wide = self.hidden, self.intermediate
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        layers = {
            f"{place}.{name}": size for place in self._places() for name, size in layer.items()
        }
        ends = dict.fromkeys((EMBEDDING, HEAD), (self.vocabulary, hidden))
        return {f"{module}.weight": size for module, size in {**ends, **layers}.items()}

    def vectors(self) -> dict[str, int]:
        """Name of each vector that every model of the family has → its size."""
        layer = {"input_layernorm": self.hidden, "post_attention_layernorm": self.hidden}
        if self.family.normalized:
            layer |= {"self_attn.q_norm": self.head_size, "self_attn.k_norm": self.head_size}
        layers = {
            f"{place}.{name}": size for place in self._places() for name, size in layer.items()
        }
        return {f"{module}.weight": size for module, size in {**layers, NORM: self.hidden}.items()}

    def _places(self) -> list[str]:
        return [f"model.layers.{at}" for at in range(self.layers)]


def _kind_of(content: bytes, where: str) -> str:
    try:
        kind = json.loads(content)["model_type"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputRefused("not the configuration of a model", where=f"{where}/{CONFIG}") from error
    if kind not in FAMILIES:
        raise _unsupported(f"its model_type is {kind!r}", where)
    return str(kind)


def _validated(content: bytes, where: str) -> _Config:
    try:
        return _Config.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputRefused(f"{place}: {first['msg']}", where=f"{where}/{CONFIG}") from error


def _rotation_of(config: _Config, where: str) -> RotaryParameters:
    rotation = config.rope_parameters or config.rope_scaling or RotaryParameters()
    if rotation.kind not in ("default", "linear", "llama3") or rotation.part != 1:
        raise UsageError(
            f"its rotary embeddings are of the kind {rotation.kind!r}",
            where=where,
            hint="supported are default, linear and llama3, of whole heads",
        )
    return rotation


def _unsupported(what: str, where: str) -> UsageError:
    return UsageError(
        f"{what}: this format holds decoders of the families {', '.join(FAMILIES)}",
        where=where,
        hint=OTHER_FORMATS,
    )
