"""Models of time series."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.matrix.families.sizes import Family

_SERIES: dict[str, Any] = {
    "num_input_channels": 3, "context_length": 64, "patch_length": 8, "prediction_length": 16,
    "d_model": 32,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "patchtst": Family(
        "PatchTST",
        lambda: hf.PatchTSTForPrediction(
            hf.PatchTSTConfig(patch_stride=8, num_attention_heads=4, num_hidden_layers=2,
                              ffn_dim=64, **_SERIES)
        ),
    ),
    "patchtsmixer": Family(
        "PatchTSMixer",
        lambda: hf.PatchTSMixerForPrediction(hf.PatchTSMixerConfig(num_layers=2, **_SERIES)),
    ),
}  # fmt: skip
