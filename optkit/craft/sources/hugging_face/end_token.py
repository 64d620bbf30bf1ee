"""Encoder-decoders with a classification head: BART and those that follow it classify a text by the
decoder's state at its last end token.

transformers takes the states of all end tokens out of the batch, whose number is only known at run
time, and refuses a text without one. Here the last one is looked up by its place: the same result,
and a fixed shape. A text without an end token is classified by its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def classifier(model: PreTrainedModel) -> Callable[..., dict[str, Tensor]] | None:
    """The forward of such a model, with the inputs of a text by name; None for other models."""
    head = getattr(model, "classification_head", None)
    end = getattr(model.config, "eos_token_id", None)
    if not model.config.is_encoder_decoder or head is None or end is None:
        return None

    def forward(input_ids: Tensor, **given: Tensor) -> dict[str, Tensor]:
        import torch

        hidden = model.base_model(input_ids, **given, use_cache=False, return_dict=True)[0]
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = torch.where(input_ids == end, places, 0).amax(dim=1)
        at_end = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
        return {"logits": head(at_end)}

    return forward
