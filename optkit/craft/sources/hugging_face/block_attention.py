"""Encoders whose tokens attend within blocks (LongT5).

They pad a text to whole blocks only `if` its length is no multiple, so torch.export captures one of
the two cases. Here every text is written into whole blocks before the encoder, and cut after it:
ceil(n / block) · block tokens, of which the mask hides those that were added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def pad_inside(model: PreTrainedModel) -> None:
    """Make the encoder of the model take any number of tokens, if it attends within blocks."""
    radius = getattr(model.config, "local_radius", None)
    if not isinstance(radius, int):
        return
    encoder = model.get_encoder()
    forward, block = encoder.forward, radius + 1

    def whole(input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        import torch

        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        returned = forward(
            _in_blocks(input_ids, block), attention_mask=_in_blocks(mask, block), **kwargs
        )
        states = returned.last_hidden_state[:, : input_ids.shape[1]]
        returned["last_hidden_state"] = states
        return returned

    encoder.forward = whole


def _in_blocks(values: Tensor, block: int) -> Tensor:
    """[batch, n] → [batch, (ceil(n / block) + 1) · block], with zeros at the end. With one block
    less, a text of one block would be a case of its own: torch takes a size of 1 for a constant."""
    import torch

    batch, length = values.shape
    added = ((length + block - 1) // block + 1) * block - length
    return torch.cat([values, values.new_zeros((batch, added))], dim=1)
