"""An encoder-decoder as two graphs, so that the encoder runs only once for all tokens.

    encoder    input_ids, attention_mask           [batch, encoder_sequence]       (text)
               or input_features                   [batch, bins, frames]           (sound, a window)
               or input_values                     [batch, samples]                (waveforms)
            →  present.{i}.encoder.key|value       [batch, heads, encoded, head_dim]
    decoder    input_ids                           [batch, sequence]
               encoder_attention_mask              [batch, encoder_sequence]       (text)
               past_key_values.{i}.encoder.key|value   as the encoder returned them
               past_key_values.{i}.decoder.key|value   [batch, heads, past_sequence, head_dim]
            →  logits                              [batch, sequence, vocab]
               present.{i}.decoder.key|value       [batch, heads, past_sequence + sequence,
                                                   head_dim]

Keys and values of the cross attention depend only on the encoder, so they belong to its graph. They
are read from a cache that the decoder fills for one token, so this works for every architecture
with such a cache. Nothing reads the other results for this token, so the exporter removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from optkit.craft.sources import export_failures
from optkit.craft.sources.hugging_face import sound
from optkit.craft.sources.hugging_face.inputs import (
    BATCH,
    TOKENS,
    ModelInputs,
    integers,
    keys_and_values,
    position_limit,
    present,
)
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

_PAST, _ENCODED = "past_sequence", "encoder_sequence"
_MANY = 512  # default for the largest number of tokens

Pairs = list[tuple["Tensor", "Tensor"]]


def describe(model: PreTrainedModel, part: str) -> ModelInputs:
    """What the `part` ("encoder" or "decoder") takes; the model's forward becomes the part's.

    Raises InputRefused for a model whose encoder takes neither tokens nor features, or that keeps
    no cache of its cross attention.
    """
    source = _source(model)
    if part == "encoder":
        _encode(model, source)
        axes = {"batch": BATCH, **_encoded_axes(model, source)}
        sizes = {size for spec in source for size in spec.info.shape}
        axes = {name: axis for name, axis in axes.items() if name in sizes}
        return ModelInputs(tuple(source), axes, {_ENCODED: _limit(model)})
    crossed = _crossed_layers(model, source)
    heads, width = crossed[0][0].shape[1], crossed[0][0].shape[3]
    masked, ranges = source[1:], _encoded_axes(model, source)
    encoded: int | str = _ENCODED if _ENCODED in ranges else crossed[0][0].shape[2]
    text = model.config.get_text_config(decoder=True)
    specs = [integers("input_ids", TOKENS, text.vocab_size)]
    specs += [integers("encoder_attention_mask", ("batch", _ENCODED), 2) for _ in masked]
    layers = range(len(crossed))
    shapes = {
        "encoder": ("batch", heads, encoded, width),
        "decoder": ("batch", heads, _PAST, width),
    }
    specs += [
        InputSpec(TensorInfo(f"past_key_values.{i}.{kind}.{what}", "float32", shape))
        for kind, shape in shapes.items()
        for i in layers
        for what in ("key", "value")
    ]
    _decode(model, len(layers), masked=bool(masked), names=[spec.info.name for spec in specs])
    half = _limit(model) // 2
    axes = {
        "batch": BATCH,
        **{name: axis for name, axis in ranges.items() if name == _ENCODED},
        "sequence": AxisRange(1, 1, half),  # almost always one token at a time
        _PAST: AxisRange(0, min(64, half), half),
    }
    return ModelInputs(tuple(specs), axes, {"sequence": half, _PAST: half, _ENCODED: _limit(model)})


def _source(model: PreTrainedModel) -> list[InputSpec]:
    config = model.config
    if model.main_input_name == "input_ids":
        shape = ("batch", _ENCODED)
        return [
            integers("input_ids", shape, config.get_text_config().vocab_size),
            integers("attention_mask", shape, 2),
        ]
    if model.main_input_name == "input_values":
        # no mask: the recordings of a batch are equally long
        return [InputSpec(TensorInfo("input_values", "float32", ("batch", sound.SAMPLES)))]
    bins = getattr(config, "num_mel_bins", None)
    positions = getattr(config, "max_source_positions", None)
    if model.main_input_name != "input_features" or bins is None or positions is None:
        raise InputRefused(
            f"the encoder of {type(model).__name__} takes neither tokens, nor mel bins, nor waves",
            where=str(config.model_type),
            hint="give encoder and decoder as Python factories, file.py:function",
        )
    strides = 1
    for module in model.get_encoder().modules():
        strides *= _stride(module)
    return [
        InputSpec(TensorInfo("input_features", "float32", ("batch", bins, positions * strides)))
    ]


def _stride(module: nn.Module) -> int:
    from torch import nn

    return int(module.stride[0]) if isinstance(module, nn.Conv1d) else 1


def _encoded_axes(model: PreTrainedModel, source: Sequence[InputSpec]) -> dict[str, AxisRange]:
    """Windows of sound have one length, texts and recordings have any."""
    limit = min(_MANY, _limit(model))
    if len(source) > 1:
        return {_ENCODED: AxisRange(1, min(128, limit), limit)}
    if sound.SAMPLES not in source[0].info.shape:
        return {}
    samples = sound.WAVES
    encoded = (_encoded(model, size) for size in (samples.min, samples.opt, samples.max))
    return {sound.SAMPLES: samples, _ENCODED: AxisRange(*encoded)}


def _encoded(model: PreTrainedModel, samples: int) -> int:
    """The number of states that the encoder returns for a recording."""
    import torch

    with torch.no_grad():
        return int(model.get_encoder()(torch.zeros(1, samples))[0].shape[1])


def _limit(model: PreTrainedModel) -> int:
    """The largest number of tokens that the decoder takes."""
    targets = getattr(model.config, "max_target_positions", None)
    return int(targets or position_limit(model) or 2 * _MANY)


def _crossed_layers(model: PreTrainedModel, source: Sequence[InputSpec]) -> Pairs:
    """Keys and values of the cross attention, by layer, for two encoded tokens or one window."""
    import torch

    info = source[0].info
    least = {"batch": 1, sound.SAMPLES: sound.WAVES.min}
    sizes = [dim if isinstance(dim, int) else least.get(dim, 2) for dim in info.shape]
    try:
        with torch.no_grad():
            given = torch.zeros(sizes, dtype=getattr(torch, info.dtype))
            return _crossed(model, model.get_encoder()(given)[0], None)
    except Exception as error:  # a state of another kind, or none: each raises another exception
        raise InputRefused(
            f"{type(model).__name__} has no cache for its cross attention: "
            f"{export_failures.first_line(error)}",
            where=str(model.config.model_type),
            hint="give encoder and decoder as Python factories, file.py:function",
        ) from error


def _encode(model: PreTrainedModel, source: Sequence[InputSpec]) -> None:
    encoder = model.get_encoder()
    forward, names = model.forward, [spec.info.name for spec in source]

    def call(*values: Tensor) -> dict[str, Tensor]:
        hidden = encoder(**dict(zip(names, values, strict=True)))[0]
        mask = values[1] if len(values) > 1 else None
        return _named("encoder", _crossed(model, hidden, mask, forward))

    present(model, names, call)


def _crossed(
    model: PreTrainedModel,
    hidden: Tensor,
    mask: Tensor | None,
    forward: Callable[..., object] | None = None,
) -> Pairs:
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    (forward or model.forward)(
        decoder_input_ids=torch.zeros((hidden.shape[0], 1), dtype=torch.int64),
        encoder_outputs=_states(hidden),
        past_key_values=cache,
        use_cache=True,
        **_masked(mask),
    )
    return keys_and_values(cache.cross_attention_cache)


def _states(hidden: Tensor) -> BaseModelOutput:
    """The output of an encoder; Moonshine reads the mask that its encoder would return."""
    from transformers.modeling_outputs import BaseModelOutput

    states = BaseModelOutput(last_hidden_state=hidden)
    states.attention_mask = None
    return states


def _decode(model: PreTrainedModel, layers: int, *, masked: bool, names: Sequence[str]) -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    forward = model.forward
    width = int(model.get_encoder().config.hidden_size)

    def call(*values: Tensor) -> dict[str, Tensor]:
        import torch

        ids, *rest = values
        mask = rest.pop(0) if masked else None
        crossed, past = rest[: 2 * layers], rest[2 * layers :]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for index in range(layers):
            cache.cross_attention_cache.update(crossed[2 * index], crossed[2 * index + 1], index)
            cache.self_attention_cache.update(past[2 * index], past[2 * index + 1], index)
            cache.is_updated[index] = True
        # the cache replaces the encoder's outputs; only the shape of its hidden states is read
        shape = (ids.shape[0], crossed[0].shape[2], width)
        returned = forward(
            decoder_input_ids=ids,
            encoder_outputs=_states(torch.zeros(shape)),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **_masked(mask),
        )
        named = {"logits": returned.logits}
        return named | _named("decoder", keys_and_values(cache.self_attention_cache))

    present(model, names, call)


def _named(kind: str, pairs: Pairs) -> dict[str, Tensor]:
    return {
        f"present.{index}.{kind}.{what}": tensor
        for index, pair in enumerate(pairs)
        for what, tensor in zip(("key", "value"), pair, strict=True)
    }


def _masked(mask: Tensor | None) -> dict[str, Tensor]:
    """The mask over the encoder's tokens, under the name that the model's own forward uses."""
    return {} if mask is None else {"attention_mask": mask}
