"""The cache of a decoder as tensors, by the names of its graph's inputs (`ground.decoder`).

    past_key_values.{i}.key|value   keys and values of attention, which grow with the text
    past_conv.{i}                   the last inputs of a convolution (LFM2, Mamba)
    past_recurrent.{i}              the state of a linear recurrence (Mamba, Qwen3-Next)

A layer that keeps several states of a kind has past_conv.{i}.{j}. States are zero before the first
token: a convolution pads with zeros, and a recurrence begins with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from optkit.ground.decoder import PAST

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache

_CONVOLVED, _RECURRENT = "past_conv", "past_recurrent"


def empty(config: PreTrainedConfig) -> Cache:
    """A cache that keeps all tokens, those behind a sliding window too, and the states that the
    layers need."""
    from transformers import DynamicCache, cache_utils

    cache, kinds = DynamicCache(config=config), cast(Any, cache_utils)
    stateful = kinds.LinearAttentionCacheLayerMixin
    if not any(isinstance(layer, stateful) for layer in cache.layers):
        return DynamicCache()
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, kinds.DynamicLayer):
            cache.layers[index] = (
                kinds.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
                if isinstance(layer, stateful)
                else kinds.DynamicLayer()
            )
    return cache


def tensors(cache: Cache) -> dict[str, Tensor]:
    """What a filled cache holds. Raises TypeError for a layer with another kind of state."""
    found: dict[str, Tensor] = {}
    for index, layer in enumerate(cache.layers):
        held = {
            f"{PAST}.{index}.key": getattr(layer, "keys", None),
            f"{PAST}.{index}.value": getattr(layer, "values", None),
            **_states(_CONVOLVED, index, getattr(layer, "conv_states", {})),
            **_states(_RECURRENT, index, getattr(layer, "recurrent_states", {})),
        }
        filled = {name: tensor for name, tensor in held.items() if tensor is not None}
        if not filled and type(layer).__name__ != "DummyLayer":  # of a block without attention
            raise TypeError(f"{type(layer).__name__} keeps neither keys and values nor states")
        found |= filled
    return found


def filled(config: PreTrainedConfig, given: Mapping[str, Tensor]) -> Cache:
    """A cache that holds these tensors."""
    cache = empty(config)
    for name, tensor in given.items():
        kind, index, *rest = name.split(".")
        if kind == PAST and rest == ["key"]:
            cache.update(tensor, given[f"{PAST}.{index}.value"], int(index))
        elif kind == _CONVOLVED:
            cache.update_conv_state(tensor, int(index), state_idx=int(*rest))
        elif kind == _RECURRENT:
            cache.update_recurrent_state(tensor, int(index), state_idx=int(*rest))
    return cache


def _states(kind: str, index: int, states: Mapping[int, Tensor | None]) -> dict[str, Tensor | None]:
    """The states of a layer; the first of them has the name of the layer alone."""
    return {f"{kind}.{index}" + (f".{at}" if at else ""): state for at, state in states.items()}
