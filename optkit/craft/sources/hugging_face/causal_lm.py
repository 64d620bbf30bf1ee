"""A causal language model with its cache as inputs and outputs: one graph for prefill and decode.

    input_ids, position_ids           [batch, sequence]
    attention_mask                    [batch, past_sequence + sequence]
    past_key_values.{i}.key|value     [batch, kv_heads, past_sequence, head_dim]
    logits                            [batch, sequence, vocab]
    present.{i}.key|value             [batch, kv_heads, past_sequence + sequence, head_dim]

An empty past is a prefill. The names are those of optimum's exports, which ONNX Runtime GenAI and
others read. The shapes of the cache are read from a cache that the model filled, so they hold for
every architecture that keeps keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optkit.craft.sources import export_failures
from optkit.craft.sources.hugging_face.inputs import (
    BATCH,
    TOKENS,
    ModelInputs,
    integers,
    keys_and_values,
    learned_positions,
    position_limit,
    present,
)
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PAST = "past_sequence"
_ALL = f"{PAST} + sequence"
_CONTEXT = 2048  # default for the largest numbers of past and of new tokens


def describe(model: PreTrainedModel) -> ModelInputs:
    """The inputs of the decoder. Its forward is replaced by one with only these inputs and with
    named outputs.

    Raises InputRefused for a model without keys and values.
    """
    text = model.config.get_text_config()
    limit = position_limit(model)
    positions = "position_ids" in inspect.signature(model.forward).parameters
    specs = [
        integers("input_ids", TOKENS, text.vocab_size),
        integers("attention_mask", ("batch", _ALL), 2),
        *([integers("position_ids", TOKENS, limit or _CONTEXT)] if positions else []),
    ]
    layers = _layers(model)
    for index, pair in enumerate(layers):
        for what, tensor in zip(("key", "value"), pair, strict=True):
            shape = ("batch", tensor.shape[1], PAST, tensor.shape[3])
            specs.append(InputSpec(TensorInfo(f"past_key_values.{index}.{what}", "float32", shape)))
    names = [spec.info.name for spec in specs]
    _present_cache(model, names, first=len(names) - 2 * len(layers))
    half = (limit or 2 * _CONTEXT) // 2
    tokens = min(half, _CONTEXT // 2)
    # in use, a decoder runs almost always one token at a time
    axes = {
        "batch": BATCH,
        "sequence": AxisRange(1, 1, tokens),
        PAST: AxisRange(0, min(128, tokens), tokens),
    }
    limits = {"sequence": half, PAST: half}
    return ModelInputs(tuple(specs), axes, limits, learned_positions(model))


def _layers(model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer after two tokens, [1, kv_heads, 2, head_dim]."""
    import torch
    from transformers import DynamicCache

    try:
        with torch.no_grad():
            returned = model(
                input_ids=torch.zeros((1, 2), dtype=torch.int64),
                past_key_values=DynamicCache(),
                use_cache=True,
            )
        return keys_and_values(returned.past_key_values)
    except Exception as error:  # a state of another kind, or none: each raises another exception
        known = isinstance(error, AttributeError | IndexError | TypeError)
        detail = "" if known else f": {export_failures.first_line(error)}"
        raise InputRefused(
            f"{type(model).__name__} has no key-value cache in all of its layers{detail}",
            where=model.config.model_type,
            hint="optkit exports the cache of attention, and no other state (Mamba, linear "
            "attention); give a Python factory, file.py:function, of a module that computes the "
            "logits of a fixed number of tokens without a cache",
        ) from error


def _present_cache(model: PreTrainedModel, names: Sequence[str], first: int) -> None:
    """Make forward take the cache as tensors (from index `first` on) and return it as tensors."""
    from transformers import DynamicCache

    forward = model.forward

    def call(*values: Tensor) -> dict[str, Tensor]:
        past, cache = values[first:], DynamicCache()
        for index in range(len(past) // 2):
            cache.update(past[2 * index], past[2 * index + 1], index)
        given = dict(zip(names, values[:first], strict=False))
        returned = forward(**given, past_key_values=cache, use_cache=True, return_dict=True)
        named = {"logits": returned.logits}
        for index, pair in enumerate(keys_and_values(returned.past_key_values)):
            named[f"present.{index}.key"], named[f"present.{index}.value"] = pair
        return named

    present(model, names, call)
