"""A causal language model with its cache as inputs and outputs: one graph for prefill and decode.

    input_ids, position_ids           [batch, sequence]
    attention_mask                    [batch, past_sequence + sequence], or without keys and values
                                      [batch, sequence]
    past_key_values.{i}.key|value     [batch, kv_heads, past_sequence, head_dim]
    past_conv.{i}, past_recurrent.{i}    [batch, …], states of other layers (`decoder_cache`)
    logits                            [batch, sequence, vocab]
    present.{i}.key|value             [batch, kv_heads, past_sequence + sequence, head_dim]
    present_conv.{i}, present_recurrent.{i}

An empty past is a prefill. The names are those of optimum's exports, which ONNX Runtime GenAI and
others read. The shapes of the cache are read from a cache that the model filled, so they hold for
every architecture that keeps keys and values, or such states.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optkit.craft.sources import export_failures
from optkit.craft.sources.hugging_face import decoder_cache
from optkit.craft.sources.hugging_face.inputs import (
    BATCH,
    TOKENS,
    ModelInputs,
    integers,
    learned_positions,
    position_limit,
    present,
)
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.decoder import PAST as PAST_VALUES
from optkit.ground.decoder import continued, is_state

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PAST = "past_sequence"
_ALL = f"{PAST} + sequence"
_CONTEXT = 2048  # default for the largest numbers of past and of new tokens


def describe(model: PreTrainedModel) -> ModelInputs:
    """The inputs of the decoder. Its forward is replaced by one with only these inputs and with
    named outputs.

    Raises InputRefused for a model that keeps neither keys and values nor such states.
    """
    text = model.config.get_text_config()
    limit = position_limit(model)
    positions = "position_ids" in inspect.signature(model.forward).parameters
    kept = _kept(model)
    grows = not all(map(is_state, kept))
    specs = [
        integers("input_ids", TOKENS, text.vocab_size),
        integers("attention_mask", ("batch", _ALL) if grows else TOKENS, 2),
        *([integers("position_ids", TOKENS, limit or _CONTEXT)] if positions else []),
    ]
    given = len(specs)
    for name, tensor in kept.items():
        sizes = tensor.shape[1:] if is_state(name) else (tensor.shape[1], PAST, tensor.shape[3])
        specs.append(InputSpec(TensorInfo(name, "float32", ("batch", *sizes))))
    _present_cache(model, [spec.info.name for spec in specs], given)
    half = (limit or 2 * _CONTEXT) // 2
    tokens = min(half, _CONTEXT // 2)
    # in use, a decoder runs almost always one token at a time
    axes = {
        "batch": BATCH,
        "sequence": AxisRange(1, 1, tokens),
        **({PAST: AxisRange(0, min(128, tokens), tokens)} if grows else {}),
    }
    limits = {"sequence": half, PAST: half}
    return ModelInputs(tuple(specs), axes, limits, learned_positions(model))


def _kept(model: PreTrainedModel) -> dict[str, Tensor]:
    """The cache after two tokens: keys and values are [1, kv_heads, 2, head_dim]."""
    import torch

    try:
        cache = decoder_cache.empty(model.config)
        with torch.no_grad():
            model(
                input_ids=torch.zeros((1, 2), dtype=torch.int64),
                use_cache=True,
                **{_taken(model): cache},
            )
        return decoder_cache.tensors(cache)
    except Exception as error:  # a state of another kind, or none: each raises another exception
        known = isinstance(error, AttributeError | IndexError | TypeError)
        detail = "" if known else f": {export_failures.first_line(error)}"
        raise InputRefused(
            f"{type(model).__name__} has no cache that transformers' Cache keeps in all of its "
            f"layers{detail}",
            where=model.config.model_type,
            hint="optkit exports keys and values, and states of convolutions and recurrences; give "
            "a Python factory, file.py:function, of a module that computes the "
            "logits of a fixed number of tokens without a cache",
        ) from error


def _taken(model: PreTrainedModel) -> str:
    """The parameter of forward that takes the cache."""
    parameters = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in parameters else PAST_VALUES


def _present_cache(model: PreTrainedModel, names: Sequence[str], first: int) -> None:
    """Make forward take the cache as tensors (from index `first` on) and return it as tensors."""
    forward, parameter = model.forward, _taken(model)

    def call(*values: Tensor) -> dict[str, Tensor]:
        given = dict(zip(names, values, strict=True))
        held = {name: given.pop(name) for name in names[first:]}
        cache = decoder_cache.filled(model.config, held)
        returned = forward(**given, **{parameter: cache}, use_cache=True, return_dict=True)
        kept = {continued(name): one for name, one in decoder_cache.tensors(cache).items()}
        return {"logits": returned.logits, **kept}

    present(model, names, call)
