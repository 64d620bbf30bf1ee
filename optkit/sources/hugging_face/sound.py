"""The inputs of an encoder of sound.

    input_values      float32 [batch, samples]           waveforms (Wav2Vec2, HuBERT)
                      float32 [batch, frames, bins]      a spectrogram of fixed size (AST)
    attention_mask    int64 [batch, samples]             waveforms, if the model was trained with it

A model whose first convolution has a group norm was trained without a mask: its batches are padded
with zeros. The feature extractor says which kind it is (`return_attention_mask`); if there is none,
the kind of the norm does. Source: the documentation of Wav2Vec2 in transformers.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.tensors import AxisRange, InputSpec, TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLES = "samples"
_SECOND = 16_000  # samples: the rate of all encoders of waveforms in transformers
_SHAPE = ("batch", SAMPLES)


def specs(model: PreTrainedModel, folder: Path) -> list[InputSpec]:
    """The inputs of the model in `folder`. Empty if the sizes of its input are not known."""
    config = model.config
    frames, bins = (getattr(config, name, None) for name in ("max_length", "num_mel_bins"))
    if isinstance(frames, int) and isinstance(bins, int):
        return [InputSpec(TensorInfo("input_values", "float32", ("batch", frames, bins)))]
    if not _receptive(model):
        return []
    waves = [InputSpec(TensorInfo("input_values", "float32", _SHAPE))]
    if "attention_mask" in inspect.signature(model.forward).parameters and _masked(model, folder):
        waves.append(InputSpec(TensorInfo("attention_mask", "int64", _SHAPE), (0, 1)))
    return waves


def lengths(model: PreTrainedModel) -> AxisRange:
    """From one tenth of a second to 20 seconds; most often five."""
    return AxisRange(max(_SECOND // 10, 2 * _receptive(model)), 5 * _SECOND, 20 * _SECOND)


def _receptive(model: PreTrainedModel) -> int:
    """The number of samples that one frame of the feature encoder sees; 0 if the model has no such
    convolutions."""
    kernels = getattr(model.config, "conv_kernel", None)
    strides = getattr(model.config, "conv_stride", None)
    if not isinstance(kernels, list | tuple) or not isinstance(strides, list | tuple):
        return 0
    seen, step = 1, 1
    for kernel, stride in zip(kernels, strides, strict=True):
        seen += (kernel - 1) * step
        step *= stride
    return seen


def _masked(model: PreTrainedModel, folder: Path) -> bool:
    file = folder / "preprocessor_config.json"
    try:
        said = json.loads(file.read_bytes()).get("return_attention_mask")
    except (OSError, ValueError, AttributeError):
        said = None
    if isinstance(said, bool):
        return said
    return getattr(model.config, "feat_extract_norm", None) == "layer"
