"""Encoders of sound. Whisper is among the encoder-decoders."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.matrix.families.sizes import SMALL, VOCAB, Family

_WAVES: dict[str, Any] = {
    "conv_dim": [16, 16, 16], "conv_stride": [10, 8, 4], "conv_kernel": [10, 8, 4],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, **SMALL,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "wav2vec2": Family(
        "Wav2Vec2",
        lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(vocab_size=VOCAB, **_WAVES)),
    ),
    "hubert": Family(
        "HuBERT with a mask",
        lambda: hf.HubertForCTC(
            hf.HubertConfig(vocab_size=VOCAB, feat_extract_norm="layer", conv_bias=True,
                            do_stable_layer_norm=True, **_WAVES)
        ),
    ),
    "wavlm": Family(
        "WavLM",
        lambda: hf.WavLMForSequenceClassification(hf.WavLMConfig(vocab_size=VOCAB, **_WAVES)),
    ),
    "parakeet": Family(
        "Parakeet CTC",
        lambda: hf.ParakeetForCTC(
            hf.ParakeetCTCConfig(
                vocab_size=VOCAB, pad_token_id=VOCAB - 1,
                encoder_config={"num_mel_bins": 32, "subsampling_conv_channels": 8, **SMALL})
        ),
    ),
    "ast": Family(
        "Audio Spectrogram Transformer",
        lambda: hf.ASTForAudioClassification(
            hf.ASTConfig(max_length=64, num_mel_bins=32, patch_size=8, frequency_stride=8,
                         time_stride=8, **SMALL)
        ),
    ),
}  # fmt: skip
