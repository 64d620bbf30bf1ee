"""The inputs, axes and outputs of a Hugging Face model; all of them follow from the model itself.

    input_ids, attention_mask, token_type_ids    int64 [batch, sequence]
    pixel_values                                 float32 [batch, channels, height, width]
    input_values, input_features                 float32, of sound (`sound`)
    past_values                                  float32 [batch, context_length, channels]

Both towers of CLIP have the same batch axis: the outputs are their embeddings. The caller computes
the products of all pairs, because they do not belong to single samples.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.sources.hugging_face import end_token, series, sound, vision_input
from optkit.facts.errors import InputRefused, unknown_name
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache

BATCH = AxisRange(1, 8, 32)
TOKENS = _BATCH, _SEQUENCE = "batch", "sequence"
_MANY = 1 << 16  # the largest sizes for tracing, if the model sets no limit
_POSITIONS = re.compile(r"(?!.*vision).*\b(position_embeddings?|wpe)")
_PAIRS = ("logits_per_image", "logits_per_text")


@dataclass(frozen=True)
class ModelInputs:
    """Inputs, the sizes of each axis, and the largest size for tracing (if there is a limit).
    `positions`: the number of learned positions, None if there are none."""

    specs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisRange]
    limits: Mapping[str, int]
    positions: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def traced(self) -> dict[str, AxisRange]:
        """Ranges for tracing: as wide as the model allows, and small while it runs."""
        return {name: self._traced(name, axis) for name, axis in self.axes.items()}

    def _traced(self, name: str, axis: AxisRange) -> AxisRange:
        if axis.min == axis.max:
            return axis
        widest = max(axis.max, self.limits.get(name, _MANY))
        return AxisRange(axis.min, max(axis.min, 2), widest)

    def overridden(self, specs: Sequence[InputSpec], axes: Mapping[str, AxisRange]) -> ModelInputs:
        """The description with the inputs and axes of a recipe. Raises UnknownName for an input
        that the model does not have, InputRefused if dtype or number of axes differ."""
        by_name = {spec.info.name: spec for spec in self.specs}
        for spec in specs:
            if spec.info.name not in by_name:
                raise unknown_name("input", spec.info.name, by_name, where="inputs")
            info, had = spec.info, by_name[spec.info.name].info
            if (info.dtype, len(info.shape)) != (had.dtype, len(had.shape)):
                raise InputRefused(
                    f"the model has {had.dtype} {list(had.shape)}, but the recipe declares "
                    f"{info.dtype} "
                    f"{list(info.shape)}",
                    where=f"input {info.name!r}",
                    hint="declare the input as the model has it, or leave it out",
                )
            by_name[info.name] = replace(spec, range=spec.range or by_name[info.name].range)
        return replace(self, specs=tuple(by_name.values()), axes={**self.axes, **axes})


def describe(
    model: PreTrainedModel, folder: Path, declared: Sequence[InputSpec] = ()
) -> ModelInputs:
    """The inputs of an encoder. Its forward is replaced by one with only these inputs and with
    named outputs. `declared`: those of the recipe, which give the size of images if the folder does
    not.

    Raises InputRefused for inputs of another kind.
    """
    text = model.config.get_text_config()
    taken = inspect.signature(model.forward).parameters
    specs = sound.specs(model, folder, taken)
    if series.NAME in taken:
        specs += series.specs(model)
    if "input_ids" in taken:
        specs.append(integers("input_ids", TOKENS, text.vocab_size))
    warning = None
    if vision_input.NAME in taken:
        image, warning = vision_input.spec(model.config, folder, declared)
        specs.append(image)
    if "input_ids" in taken and "attention_mask" in taken:
        specs.append(integers("attention_mask", TOKENS, 2))
    if "token_type_ids" in taken and (types := getattr(text, "type_vocab_size", 0)) > 1:
        specs.append(integers("token_type_ids", TOKENS, types))
    names = [spec.info.name for spec in specs]
    if getattr(model, "main_input_name", None) not in names:
        raise InputRefused(
            f"{type(model).__name__} takes neither tokens, nor images, nor sound, nor a series of "
            "known length",
            where=str(folder),
            hint="give it as a Python factory, file.py:function, with `inputs:` in a recipe",
        )
    axes, limits = {_BATCH: BATCH}, dict[str, int]()
    axes |= sound.axes(model, specs)
    if "input_ids" in names:
        longest = position_limit(model) or _MANY
        limits = {_SEQUENCE: longest}
        # an encoder-decoder shifts the tokens, and torch takes one that is left for a constant
        shortest = 3 if model.config.is_encoder_decoder else 1
        axes |= {_SEQUENCE: AxisRange(shortest, min(128, longest), min(512, longest))}
    forward, at_end = model.forward, end_token.classifier(model)

    def call(*values: Tensor) -> dict[str, Tensor]:
        given = dict(zip(names, values, strict=True))
        if at_end is not None:
            return at_end(**given)
        return tensors(forward(**given, return_dict=True))

    for state in ("use_cache", "use_mems_eval"):  # XLNet calls its state memories
        setattr(model.config, state, False)
    present(model, names, call)
    warnings = () if warning is None else (warning,)
    return ModelInputs(tuple(specs), axes, limits, learned_positions(model), warnings)


def integers(name: str, shape: tuple[int | str, ...], count: int) -> InputSpec:
    """An int64 input with values below `count`."""
    return InputSpec(TensorInfo(name, "int64", shape), (0, count - 1))


def position_limit(model: PreTrainedModel) -> int | None:
    """The largest number of tokens that the model takes; None if it is unknown."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return learned_positions(model) or (limit if limit and limit > 0 else None)


def learned_positions(model: PreTrainedModel) -> int | None:
    """The number of rows in a table of positions; None if positions are computed."""
    from torch import nn

    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.fullmatch(name):
            # RoBERTa counts from the index after the padding token
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - reserved
    return None


def present(model: PreTrainedModel, names: Sequence[str], call: Callable[..., object]) -> None:
    """Replace the model's forward by `call`, with parameters of these names (dots become
    underscores)."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name.replace(".", "_"), kind) for name in names]

    def forward(*args: object, **kwargs: object) -> object:
        return call(*signature.bind(*args, **kwargs).args)

    signature = inspect.Signature(parameters)
    forward.__signature__ = signature  # type: ignore[attr-defined]
    model.forward = forward


def tensors(returned: Mapping[str, object]) -> dict[str, Tensor]:
    """The tensors that a model returns, by name, without inputs that it returns unchanged."""
    import torch

    return {
        name: value
        for name, value in returned.items()
        if isinstance(value, torch.Tensor) and name not in _PAIRS
    }


def keys_and_values(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """The tensors of each layer in a filled cache. Raises TypeError for a layer with another kind
    of state."""
    pairs = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None:
            raise TypeError(f"{type(layer).__name__} keeps no keys and values")
        pairs.append((keys, values))
    return pairs
