"""The input of a model of time series: PatchTST, PatchTSMixer.

    past_values    float32 [batch, context_length, channels]

Models that also need features of time or lags (Informer, Autoformer) are not described: which
features they were trained with is in no configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optkit.facts.tensors import InputSpec, TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "past_values"


def specs(model: PreTrainedModel) -> list[InputSpec]:
    """Empty if the model's configuration does not say the sizes."""
    length, channels = (
        getattr(model.config, name, None) for name in ("context_length", "num_input_channels")
    )
    if not isinstance(length, int) or not isinstance(channels, int):
        return []
    return [InputSpec(TensorInfo(NAME, "float32", ("batch", length, channels)))]
