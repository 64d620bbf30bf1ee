"""The inputs of an encoder of sound.

    input_values      float32 [batch, samples]           waveforms (Wav2Vec2, HuBERT)
                      float32 [batch, frames, bins]      a spectrogram of fixed size (AST)
    input_features    float32 [batch, frames, bins]      mel bins of any length (Parakeet)
                      float32 [batch, bins, frames]      mel bins of a fixed window (Whisper)
    attention_mask    int64 [batch, samples or frames]   if the model was trained with it

A model whose first convolution has a group norm was trained without a mask: its batches are padded
with zeros. The feature extractor says which kind it is (`return_attention_mask`); if there is none,
the kind of the norm does. Source: the documentation of Wav2Vec2 in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLES, _FRAMES = "samples", "frames"
_SECOND = 16_000  # samples: the rate of all encoders of waveforms in transformers
WAVES = AxisRange(_SECOND // 10, 5 * _SECOND, 20 * _SECOND)
_MELS = 100  # frames of mel bins per second, as all feature extractors of transformers make them
_MASK = "attention_mask"
_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel")


def specs(model: PreTrainedModel, folder: Path, taken: Collection[str]) -> list[InputSpec]:
    """The inputs of the model in `folder`, among those `taken` by its forward. Empty if it takes no
    sound, or the sizes of its input are not known."""
    if "input_values" in taken:
        return _waves(model, folder, taken)
    if "input_features" in taken:
        return _features(model, taken)
    return []


def axes(model: PreTrainedModel, specs: Sequence[InputSpec]) -> dict[str, AxisRange]:
    """From one tenth of a second to 20 seconds; most often five."""
    named = {dim for spec in specs for dim in spec.info.shape}
    if SAMPLES in named:
        return {SAMPLES: replace(WAVES, min=max(WAVES.min, 2 * _receptive(model)))}
    return {_FRAMES: AxisRange(_MELS // 5, 5 * _MELS, 20 * _MELS)} if _FRAMES in named else {}


def _waves(model: PreTrainedModel, folder: Path, taken: Collection[str]) -> list[InputSpec]:
    config = model.config
    frames, bins = (getattr(config, name, None) for name in ("max_length", "num_mel_bins"))
    if isinstance(frames, int) and isinstance(bins, int):
        return [InputSpec(TensorInfo("input_values", "float32", ("batch", frames, bins)))]
    if not _receptive(model):
        return []
    shape = ("batch", SAMPLES)
    masked = _MASK in taken and _masked(model, folder)
    return [InputSpec(TensorInfo("input_values", "float32", shape)), *_mask(shape, masked)]


def _features(model: PreTrainedModel, taken: Collection[str]) -> list[InputSpec]:
    """Mel bins: a window of fixed length if the model has positions for one, else any length."""
    config = getattr(model.config, "encoder_config", model.config)
    bins = next((n for name in _BINS if isinstance(n := getattr(config, name, None), int)), None)
    if bins is None:
        return []
    positions = getattr(config, "max_source_positions", None)
    if isinstance(positions, int) and (window := _window(model, bins, positions)):
        return [InputSpec(TensorInfo("input_features", "float32", ("batch", *window)))]
    spec = InputSpec(TensorInfo("input_features", "float32", ("batch", _FRAMES, bins)))
    return [spec, *_mask(("batch", _FRAMES), _MASK in taken)]


def _window(model: PreTrainedModel, bins: int, positions: int) -> tuple[int, int] | None:
    """(bins, frames) of the window for which the model has positions; None if it does not run on
    one."""
    import torch

    for stride in (1, 2, 4):
        window = (bins, stride * positions)
        try:
            with torch.no_grad():
                model(input_features=torch.zeros(1, *window))
        except (RuntimeError, ValueError, TypeError):
            continue
        return window
    return None


def _mask(shape: tuple[int | str, ...], masked: bool) -> list[InputSpec]:
    return [InputSpec(TensorInfo(_MASK, "int64", shape), (0, 1))] if masked else []


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
